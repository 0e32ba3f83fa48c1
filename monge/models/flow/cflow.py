r"""Conditional flow of pairs (C-Flow): a flow of b whose couplings read a flow of a at every depth

A flow of a, and beside it one of b each of whose couplings reads the state of the first at the
same depth (Pumarola et al. 2020). Both are trained at once on $-\log p(a) - \log p(b | a)$, by one
pass of each. Keeping the code of b and changing a to a' transfers b to a'.

Both flows are ladders of rungs, each a coupling and a linear map. On its way to noise the first
flow returns the input of each of its couplings, which the coupling of the second reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.rng import keyed_uniform
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Conditions
from ...nn.layers.init import Init
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose, Inverse, Mapped, zero_log_det
from ...prob.bijections.coupling import MAX_NET_INPUT, CouplingBijection
from ...prob.bijections.elementwise import ActNorm
from ...prob.bijections.linear import LULinear, Reshape, Squeeze
from ...prob.bijections.multiscale import ImageShape
from ...prob.bijections.univariate import AffineMap
from ...prob.distributions import normal_log_prob_rows
from ._base import Flow
from ._completion import TransferFlow
from ._coupling import CouplingStackConfig, coupling_layer, mixing_layers, small_data_train_config
from ._image import CouplingConvNet, count_halvings, flatten_channels_last
from ._tables import SMALLEST_TABLE_NET, TableConfig, TableUnits, default_table_net
from ._units import data_units, value_limits


class CouplingLadder(Compose):
    """x = g_K(h_K(... g_1(h_1(z)))), h couplings and g linear maps, from z to x."""

    def __init__(self, rungs: Sequence[tuple[Bijection, Bijection]]) -> None:
        super().__init__([part for rung in rungs for part in rung])

    def inverse_with_inputs(self, x: Tensor, context: Tensor) -> tuple[Tensor, Mapped]:
        """The inputs of the couplings, each with the context, (B, K (D + C)), and the inverse
        of x."""
        found, total = [], zero_log_det(x)
        for number, part in reversed(list(enumerate(self.each()))):
            if number % 2 == 0:
                row = flatten_channels_last(x) if x.ndim == 4 else x
                found += [context, row.clamp(-MAX_NET_INPUT, MAX_NET_INPUT)]
            x, log_det = part.inverse(x, context)
            total = total + log_det
        return torch.cat(found[::-1], 1), (x, total)


@dataclass(frozen=True)
class VectorRungs:
    """Builds ladders of vectors."""

    config: CouplingStackConfig

    def ladder(self, dims: int, context: int, blocks: bool) -> CouplingLadder:
        """With `blocks` each coupling reads its own block of `context` entries."""

        def rung(number: int) -> tuple[Bijection, Bijection]:
            skip = number * context if blocks else 0
            return (
                coupling_layer(self.config, dims, context, bool(number % 2), skip),
                Compose(mixing_layers(self.config, dims)),
            )

        return CouplingLadder([rung(number) for number in range(self.config.layers)])


@dataclass(frozen=True)
class ImageRungs:
    """Builds ladders of images, squeezed once per level; no channels leave on the way, so that
    both flows have the whole image at every depth."""

    steps: int
    width: int
    levels: int
    init: Init

    def ladder(self, shape: ImageShape, context: int, other: int = 0) -> CouplingLadder:
        """With `other`, each coupling reads its own block of the context, which starts with an
        image of the same size and `other` channels."""
        rungs: list[tuple[Bijection, Bijection]] = []
        for level in range(self.levels, 0, -1):
            sides = (shape[1] >> level, shape[2] >> level)
            channels, view = shape[0] * 4**level, (other * 4**level, *sides) if other else None
            for step in range(self.steps):
                parts: list[Bijection] = [LULinear(channels), ActNorm(channels)]
                if step == self.steps - 1:
                    parts += [Squeeze(), *self.flat(shape, level)]
                skip = len(rungs) * context if other else 0
                rungs.append(
                    (self.coupling(channels, context, view, skip, bool(step % 2)), Compose(parts))
                )
        return CouplingLadder(self.with_input(rungs, shape))

    def coupling(
        self, channels: int, context: int, view: ImageShape | None, skip: int, flip: bool
    ) -> Bijection:
        size, warp = channels - channels // 2, AffineMap()
        stays, moves = (channels - size, size) if flip else (size, channels - size)
        net = CouplingConvNet(
            stays, self.width, moves * warp.count, context, view, skip, init=self.init
        )
        return CouplingBijection(net, warp, size, flip)

    def flat(self, shape: ImageShape, level: int) -> list[Bijection]:
        """The flattening after the finest level."""
        return [Inverse(Reshape(shape))] if level == 1 else []

    def with_input(
        self, rungs: list[tuple[Bijection, Bijection]], shape: ImageShape
    ) -> list[tuple[Bijection, Bijection]]:
        """The rungs with codes (B, D) reshaped for the coarsest level."""
        sides = (shape[1] >> self.levels, shape[2] >> self.levels)
        coarse = Reshape((shape[0] * 4**self.levels, *sides))
        first, between = rungs[0]
        return [(Compose([coarse, first]), between), *rungs[1:]]


class CFlow(TransferFlow):
    """p(b | a) = N(z; 0, I) |det dz/db|, z = g^{-1}(b; h_1(a), ..., h_K(a)), h_k(a) being the
    state of a flow of a at depth k (Pumarola et al. 2020). The first condition of two numbers or
    more is a; both flows read the others."""

    events = {"real", "binary", "levels", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}
    is_predictor = True

    class Config(Flow.Config, CouplingStackConfig, TableConfig):
        tag = "model/flow.cflow"
        noise: Literal["uniform"] = "uniform"
        """Dequantisation noise."""
        kind: Literal["additive", "affine", "spline"] = "affine"
        """Map of an entry of a vector; images use affine maps."""
        levels: Annotated[int, Range(0)] = 0
        """Images of one size: number of resolutions; 0 takes as many as fit, at most two."""
        steps: Annotated[int, Range(1, MAX_LAYERS)] = 6
        """Images of one size: couplings per level."""
        width: Annotated[int, Range(1)] = 64
        """Images of one size: channels of the hidden layers of a coupling."""
        source_width: Annotated[int, Range(0)] = 0
        """Images of one size: the same for the flow of a; 0 takes `width`."""
        init: Init = "auto"
        """Images of one size: initial weights of the convolutions of a coupling but the last,
        which are 0: he, xavier, orthogonal, small, or torch's own (auto, torch)."""
        cycle: Annotated[float, Range(0)] = 0.0
        """Weight of the mean absolute error of decoding the code 0 given a, in standardised
        coordinates (cycle loss); 10 helps step for step, but a step takes half as long again, and
        0 is better in the same time."""

    config: Config
    source_discrete: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        self.source = source_condition(space)
        rest = {name: part for name, part in space.given.items() if name != self.source}
        self.extra = Conditions(Space(kind="real", given=rest)).width
        super().__init__(config, space)
        given = space.given[self.source]
        self.conditions = Conditions(Space(kind="real", given=rest))
        units = (
            TableUnits(given.columns)
            if given.kind == "columns"
            else data_units(given, config.margin)
        )
        self.other = Compose([self.ladder_of(given), units])
        self.register_buffer(
            "source_discrete", ~value_limits(given)[0].isnan(), persistent=False
        )  # (D_a,), false for columns

    def build_inner(self, context: int) -> Bijection:
        return self.build_layers(context)

    @property
    def context_width(self) -> int:
        """The states of the flow of a at the depths of all couplings."""
        return self.config.layers * (self.space.given[self.source].dims + self.extra)

    def build_layers(self, context: int) -> Bijection:
        given = self.space.given[self.source]
        width = given.dims + self.extra
        if self.image_rungs:
            return self.image_rungs.ladder(self.space.shape, width, given.shape[0])  # type: ignore
        return VectorRungs(self.config).ladder(self.space.dims, width, blocks=True)

    def ladder_of(self, given: Space) -> Bijection:
        if self.image_rungs:
            rungs = replace(self.image_rungs, width=self.config.source_width or self.config.width)
            return rungs.ladder(given.shape, self.extra)  # type: ignore[arg-type]
        return VectorRungs(self.config).ladder(given.dims, self.extra, blocks=False)

    @property
    def image_rungs(self) -> ImageRungs | None:
        """The builder for two images of one size that can be halved; None for other data."""
        given, config = self.space.given[self.source], self.config
        both = self.space.is_image and given.is_image
        if not both or self.space.shape[1:] != given.shape[1:]:
            return None
        most = count_halvings(given.shape)  # type: ignore[arg-type]
        levels = min(config.levels or 2, most)
        return ImageRungs(config.steps, config.width, levels, config.init) if levels else None

    def context(self, given: Given, n: int) -> Tensor:
        return self.encode_source(broadcast_conditions(given, self.space, n), n, None)[0]

    def encode_source(self, ready: Given, n: int, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the couplings read of a, and log p(a), (n,), with a dequantised by noise."""
        ladder, units = self.other.each()
        y, log_q = self.dequantise_source(ready[self.source], uniform)
        a, units_log_det = units.inverse(y)
        conditions = self.conditions(ready, n)
        states, (z, log_det) = ladder.inverse_with_inputs(a, conditions)  # type: ignore[operator]
        return states, normal_log_prob_rows(z) + log_det + units_log_det - log_q

    def dequantise_source(
        self, part: Batch, uniform: Tensor | None
    ) -> tuple[Tensor, Tensor | float]:
        """a (B, D_a) with discrete entries at the middle of their interval, or moved by noise, and
        log q of that."""
        a = part.x.reshape(len(part), -1).to(self.low.dtype)
        u = torch.full_like(a, 0.5) if uniform is None else uniform
        units = self.other.each()[1]
        if isinstance(units, TableUnits):
            y, log_slopes = units.cells.place(a, u)
            return y, -log_slopes.sum(1)
        return torch.where(self.source_discrete, a + u, a), 0.0

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        whole, batch = batch, self.init_rows(batch)
        ready = broadcast_conditions(batch.given, self.space, len(batch))
        noise = keyed_uniform(batch.rows, (len(self.source_discrete),)).to(self.low)
        units = self.other.each()[1]
        if isinstance(units, TableUnits):
            units.fit(ready[self.source].x.to(self.low))
        a, _ = self.dequantise_source(ready[self.source], noise)
        self.other.initialise_from_data(a, self.conditions(ready, len(batch)))
        super().initialise_from_data(whole)

    def loss(self, batch: Batch) -> Losses:
        """-log p(b | a) - log p(a), with an optional cycle loss of the code 0."""
        n, flat = len(batch), self.flat(batch)
        ready = broadcast_conditions(batch.given, self.space, n)
        noise = torch.rand(n, len(self.source_discrete)).to(self.low)
        states, log_p = self.encode_source(ready, n, noise)
        y, log_q = self.dequantise(batch, torch.rand_like(flat) if self.discrete else None)
        z, log_det = self.map.inverse(y, states)
        losses = {"nll": log_q - (normal_log_prob_rows(z) + log_det), "other": -log_p}
        if self.config.cycle:
            found, _ = self.inner(torch.zeros_like(flat), states)
            wanted, _ = self.outer.inverse(self.midpoints(batch), states)
            losses["cycle"] = self.config.cycle * (found - wanted).abs().mean(1)
        return losses

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ N(0, temperature^2 I), then b = g(z; h_1(a), ..., h_K(a))."""
        z = self.sample_latent(n, options, generator)
        return self.decode(z, given)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if space.dims < 2:
            return (
                "expected two columns or entries to predict, which a coupling splits, found one "
                f"({space.name}); name several with --target, or use maf or predict.mlp"
            )
        if not source_condition(space):
            return (
                "expected an image or vector as a condition, found none; add --given FIELD, or "
                "write +edges after the name of an image dataset"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        large = space.dims > 256
        train_config = small_data_train_config(space)
        if space.is_image:
            train_config = TrainConfig(
                lr=1e-3,
                batch_size=32 if large else 64,
                ema_decay=0.998,
                grad_clip=50.0,
                warmup=200,
                eval_every=1000 if large else 0,
                optimiser="adamw",
                weight_decay=0.01 if space.rows < 10_000 else 0.0,
            )
        net = MLP.Config(width=32 if space.rows < 2000 else 128, residual=True)
        return Defaults(
            cls.Config(
                net=net,
                layers=6,
                steps=6 if large else 4,
                source_width=32,
                width=64 if large else 48,
                table_net=default_table_net(space),
                optional_first=True,
            ),
            train_config,
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            layers=2,
            steps=2,
            width=8,
            net=MLP.Config(width=16, depth=1),
            table_net=SMALLEST_TABLE_NET,
            optional_first=True,
        )


def source_condition(space: Space) -> str:
    """The name of the condition that the first flow models; empty without one."""
    return next(
        (name for name, part in space.given.items() if part.dims > 1 and part.kind != "label"), ""
    )
