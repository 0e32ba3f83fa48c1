r"""Super-resolution flow (SRFlow): images given smaller ones, each consistent with it

$p(x | s)$ for an image x given its small image s, of a k-th of its sides. A square of k x k pixels
is its mean and $k^2 - 1$ differences. The mean is known from s up to rounding, which an interval
bounds; the rest is a multi-scale flow whose steps read features of s: affine injectors at every
pixel, and couplings (Lugmayr et al. 2020). Small images that were made otherwise, by a camera or
another filter, bound no mean (pairs=any). `temperature` below 1 samples smoother images.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import CanEnlarge, Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import DataError, UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Conditions
from ...nn.layers.init import Init, initialise
from ...prob.bijections.base import Bijection, Compose, Inverse
from ...prob.bijections.detail_split import SquareDetails
from ...prob.bijections.linear import Reshape
from ...prob.distributions import normal_log_prob_rows
from ._base import Flow
from ._image import GlowSteps, count_halvings, flatten_channels_last
from ._units import data_units

SMALL_KINDS = ("levels", "real")
"""Kinds of small images."""


def rounding_slack(kind: str, factor: int) -> float:
    """By how much a small image may differ from the means of squares: its own rounding."""
    return 0.5 if kind == "levels" else 0.5 / factor**2


class Superres(Flow, CanEnlarge):
    """p(x | s) on images of levels whose k x k means are s: x + u = H(s, f(z; s)), the mean of
    each square of x + u lying in the interval that s leaves, u uniform.

    The likelihood is a bound, in nats of the image given the small one. Samples are floored and,
    where rounding changed the mean of a square, adjusted by the fewest levels, so that the k x k
    means of a sample are s up to the rounding of s itself. With pairs=any neither holds: s is what
    the pairs say, and the mean of a square is learned like its differences.
    """

    events = {"levels"}
    givens = {"real", "levels", "label", "binary", "counts", "columns"}
    is_predictor = True

    class Config(Flow.Config):
        tag = "model/flow.superres"
        margin: Annotated[float, Range(0, 0)] = 0.0
        """Always 0: levels are standardised without a logit, so that means are preserved."""
        noise: Literal["uniform"] = "uniform"
        """Dequantisation noise."""
        pairs: Literal["means", "any"] = "means"
        """means: small images are the means of squares, which samples keep; any: small images of
        real pairs, made in any way."""
        levels: Annotated[int, Range(0)] = 0
        """Number of resolutions, the first being that of the small image; 0 takes up to two."""
        steps: Annotated[int, Range(1, MAX_LAYERS)] = 6
        """Steps per level."""
        width: Annotated[int, Range(1)] = 64
        """Channels of the hidden layers of a coupling."""
        features: Annotated[int, Range(1)] = 32
        """Feature channels computed from the small image."""
        kernel_size: Literal[1, 3] = 3
        """Kernel size of the convolutions of these features in a coupling; 1 takes half of the
        time."""
        init: Init = "auto"
        """Initial weights of the convolutions but the last of a coupling, which are 0: he,
        xavier, orthogonal, small, or torch's own (auto, torch)."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        self.source = small_image_condition(space)
        super().__init__(config, space)
        part = space.given[self.source]
        means = config.pairs == "means"
        self.slack = rounding_slack(part.kind, self.factor) if means else math.inf
        rest = {name: other for name, other in space.given.items() if name != self.source}
        self.conditions = Conditions(Space(kind="real", shape=space.shape, given=rest))
        self.seen = Conditions(Space(kind="real", shape=space.shape, given={self.source: part}))
        self.reads = SmallImageEncoder(part.shape[0], config.features)
        initialise(self.reads, config.init, "relu")

    @property
    def factor(self) -> int:
        """k, by which an image is larger than the small one."""
        return self.space.shape[1] // self.space.given[self.source].shape[1]

    def build_inner(self, context: int) -> Bijection:
        """Conditions enter through the injectors only."""
        return self.build_layers(context)

    def build_outer(self) -> Bijection:
        return data_units(self.space, 0.0)

    def build_layers(self, context: int) -> Bijection:
        part = self.space.given[self.source]
        shape: tuple[int, int, int] = part.shape  # type: ignore[assignment]
        rest = context - part.dims
        view = (self.config.features, *shape[1:])
        steps = GlowSteps(
            self.config.steps,
            self.config.width,
            math.prod(view) + rest,
            view,
            True,
            self.config.kernel_size,
            init=self.config.init,
        )
        shape = (self.factor**2 * shape[0], *shape[1:])
        count = self.config.levels or 1 + min(count_halvings(shape), 1)
        if count > 1 + count_halvings(shape):
            most = count_halvings(shape)
            raise UsageError(
                f"expected at most {1 + most} levels, as {shape[1]}x{shape[2]} can be halved "
                f"{most} times, found levels={count}; use levels={1 + most}"
            )
        reach = math.inf
        if self.config.pairs == "means":
            reach = 1 + 2 * rounding_slack(part.kind, self.factor)
        length = reach / self.channel_units()[1]
        details = SquareDetails(part.shape, length, self.factor)  # type: ignore[arg-type]
        return Compose(
            [
                steps.levels(shape, count, squeezes=False),
                details,
                Inverse(Reshape(self.space.shape)),
            ]
        )

    def channel_units(self) -> tuple[Tensor, Tensor]:
        """Shift and scale of each channel, those of the coordinates, (C,)."""
        zero, one = (
            data_units(self.space, 0.0)(torch.full((1, self.space.dims), value))[0]
            for value in (0.0, 1.0)
        )
        both = torch.cat([zero, one - zero]).reshape(2, *self.space.shape)[:, :, 0, 0]
        return both[0], both[1]

    def context(self, given: Given, n: int) -> Tensor:
        """Features of the small image, other conditions, and the lower limit of each mean."""
        ready = broadcast_conditions(given, self.space, n)
        low = ready[self.source].x.to(self.low.dtype)  # (n, C, h, w)
        shape = (n, *self.space.given[self.source].shape)
        features = self.reads(self.seen({self.source: ready[self.source]}, n).reshape(shape))
        shift, scale = (each.to(low)[:, None, None] for each in self.channel_units())
        lowest = (low - (self.slack if math.isfinite(self.slack) else 0.0) - shift) / scale
        return torch.cat(
            [flatten_channels_last(features), self.conditions(ready, n), lowest.flatten(1)], 1
        )

    def loss(self, batch: Batch) -> Losses:
        """-log p(y) = -(log N(z; 0, I) + log|det dz/dy|) at z = f^{-1}(y, c), y dequantised."""
        y, log_q = self.dequantise(batch, self.dequantisation_noise(batch))
        z, log_det = self.map.inverse(y, self.context(batch.given, len(y)))
        return {"nll": log_q - (normal_log_prob_rows(z) + log_det)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ N(0, temperature^2 I), then x = f(z; s) with the means of s."""
        z = self.sample_latent(n, options, generator)
        return self.decode(z, given)

    def dequantise(self, batch: Batch, uniform: Tensor | None) -> tuple[Tensor, Tensor | float]:
        if self.config.pairs == "any":
            return super().dequantise(batch, uniform)
        low = broadcast_conditions(batch.given, self.space, len(batch))[self.source].x
        away = (self.shrink(batch.x.to(low.dtype)) - low).abs().max()
        if away > self.slack + 1e-4:
            raise DataError(
                f"expected images whose {self.factor}x{self.factor} means are {self.source!r}, "
                f"found a row that is off by {float(away):.4g} levels; set pairs=any, or compute "
                f"it from the images, as +low{self.factor} does"
            )
        return super().dequantise(batch, uniform)

    def shrink(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.factor)

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        x = super().decode(z, given)
        if self.config.pairs == "any":
            return x
        low = broadcast_conditions(given or {}, self.space, len(z))[self.source].x.to(x)
        count = self.factor**2
        ends = count * (low - self.slack), count * (low + self.slack)
        return match_block_sums(x, *ends, self.space.size - 1, self.factor)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if not space.is_image or space.kind != "levels":
            return f"expected images of levels, found {space}; use coupling"
        if small_image_condition(space) not in space.given:
            rows, columns = space.shape[1:]
            factors = [k for k in range(2, min(rows, columns)) if not (rows % k or columns % k)]
            if not factors:
                return (
                    f"expected images whose sides have a common divisor, found {rows}x{columns}; "
                    f"crop them to sizes such as {rows - rows % 2}x{columns - columns % 2}"
                )
            half = f"{rows // factors[0]}x{columns // factors[0]}"
            return (
                f"expected a small image such as {half} as a condition, found none; write "
                f"+low{factors[0]} after the name of the data, or add --given FIELD"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        large = space.dims > 256
        config = cls.Config(
            steps=6 if large else 4,
            width=64 if large else 48,
            features=32 if large else 16,
            kernel_size=1,
        )
        return Defaults(
            config,
            TrainConfig(
                lr=1e-3,
                batch_size=32 if large else 64,
                ema_decay=0.998,
                grad_clip=50.0,
                warmup=200,
                eval_every=1000 if large else 0,
                optimiser="adamw",
                weight_decay=0.01 if space.rows < 10_000 else 0.0,
            ),
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(steps=2, width=8, features=4)


class SmallImageEncoder(nn.Module):
    """Features of a small image: three convolutions, the last two residual."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.more = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.more:
            h = h + layer(F.relu(h))
        return h


def small_image_condition(space: Space) -> str:
    """The name of the condition that is an image whose sides are a whole number of times smaller;
    empty without one."""
    return next(
        (name for name, part in space.given.items() if is_small_image(part, space)),
        "",
    )


def is_small_image(part: Space, space: Space) -> bool:
    if part.kind not in SMALL_KINDS or not part.is_image or part.shape[0] != space.shape[0]:
        return False
    times = [whole / side for whole, side in zip(space.shape[1:], part.shape[1:], strict=True)]
    return times[0] == times[1] == int(times[0]) >= 2


def match_block_sums(x: Tensor, least: Tensor, most: Tensor, top: int, factor: int = 2) -> Tensor:
    """Whole x (B, C, k h, k w) within 0..top, the sum of each square brought between `least` and
    `most` (B, C, h, w) by moving its pixels alike as far as there is room."""
    squares = F.pixel_unshuffle(x, factor).unflatten(1, (-1, factor**2))  # (B, C, k^2, h, w)
    whole = factor**2 * top
    least, most = (least - 1e-3).ceil().clamp(0, whole), (most + 1e-3).floor().clamp(0, whole)
    while True:
        sums = squares.sum(2)
        miss = (sums.clamp(least, most) - sums)[:, :, None]  # (B, C, 1, h, w)
        if not bool(miss.any()):
            return F.pixel_shuffle(squares.flatten(1, 2), factor)
        room = torch.where(miss > 0, squares < top, squares > 0)
        even = (miss.abs() / room.sum(2, keepdim=True).clamp_min(1)).floor()
        ones = (even == 0) & (room.cumsum(2) <= miss.abs())  # fewer levels than pixels
        squares = (squares + miss.sign() * room * (even + ones)).clamp(0, top)
