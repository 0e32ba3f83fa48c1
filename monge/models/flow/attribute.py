r"""Attribute flow: encode with some attributes, decode with others, keep everything else

$x = f(z; a)$ with z ~ N(0, I) for all attributes a: z is independent of a, so that
$x' = f(f^{-1}(x; a); a')$ is x with other attributes (Abdal et al. 2021). Images use a multi-scale
flow, vectors a coupling flow.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import DataError
from ...core.model import Defaults, Losses, is_exporting
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.init import Init
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection
from ...prob.distributions import normal_log_prob_rows
from ._base import Flow
from ._completion import TransferFlow
from ._coupling import CouplingStackConfig, coupling_stack, small_data_train_config
from ._image import GlowSteps, count_halvings, image_shape
from ._tables import SMALLEST_TABLE_NET, TableConfig, default_table_net

EXTRAPOLATION_MARGIN = 1.0
"""By how many of its training ranges a numeric attribute may leave that range."""


class AttributeFlow(TransferFlow):
    """p(x | a) = N(f^{-1}(x; a); 0, I) |det df^{-1}/dx|, every coupling reading a.

    Attributes must be in or near the range of the training data: elsewhere networks extrapolate,
    and a map of unbounded scale cannot be inverted numerically.
    """

    class Config(Flow.Config, CouplingStackConfig, TableConfig):
        tag = "model/flow.attribute"
        levels: Annotated[int, Range(0)] = 0
        """Images: number of resolutions; 0 takes as many as the size allows, at most three."""
        steps: Annotated[int, Range(1, MAX_LAYERS)] = 8
        """Images: steps per level."""
        width: Annotated[int, Range(1)] = 64
        """Images: channels of the hidden layers of a coupling."""
        init: Init = "auto"
        """Images: initial weights of the convolutions of a coupling but the last, which are 0: he,
        xavier, orthogonal, small, or torch's own (auto, torch)."""

    config: Config

    def build_layers(self, context: int) -> Bijection:
        if (most := count_halvings(image_shape(self.space))) and self.space.is_image:
            steps = GlowSteps(self.config.steps, self.config.width, context, init=self.config.init)
            return steps.flat(image_shape(self.space), min(self.config.levels or 3, most))
        dims = self.space.dims
        return self.config.with_mixture(coupling_stack(self.config, dims, context), dims)

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
        """z ~ N(0, temperature^2 I), then x = f(z, c)."""
        z = self.sample_latent(n, options, generator)
        return self.decode(z, given)

    def context(self, given: Given, n: int) -> Tensor:
        ready = broadcast_conditions(given, self.space, n)
        for name, part in self.space.given.items():
            check_attribute(name, part, ready[name].x)
        return self.conditions(ready, n)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if not space.given:
            return (
                "expected attributes as conditions, found none; add --given FIELD, or use coupling"
            )
        if space.dims < 2:
            return (
                "expected events of two entries or more, which a coupling splits, found one; "
                "use maf"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few, large, train_config = (
            space.rows < 2000,
            space.dims > 256,
            small_data_train_config(space),
        )
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
        net = MLP.Config(width=32 if few else 128, residual=True)
        return Defaults(
            cls.Config(
                layers=4 if few else 8,
                kind="affine" if few else "spline",
                net=net,
                steps=8 if large else 6,
                width=96 if large else 48,
                table_net=default_table_net(space),
                optional_first=True,
            ),
            train_config,
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            layers=2,
            bins=4,
            steps=2,
            width=8,
            net=MLP.Config(width=16, depth=1),
            table_net=SMALLEST_TABLE_NET,
            optional_first=True,
        )


def check_attribute(name: str, part: Space, value: Tensor) -> None:
    """Raise a DataError for an attribute at which the map cannot be inverted."""
    if torch.compiler.is_compiling():  # values are not known while a network is traced
        return
    spaces = part.columns or (part,)
    columns = value.reshape(len(value), -1).T if part.columns else [value]
    for space, column in zip(spaces, columns, strict=True):
        if space.kind in ("real", "counts"):
            low, high = min(space.low), max(space.high)
            margin = EXTRAPOLATION_MARGIN * max(high - low, 1e-12)
        else:
            size = 2 if space.kind == "binary" else space.size
            low, high, margin = 0, size - 1, 0.0
        inside = (column >= low - margin) & (column <= high + margin)  # false of NaN
        outside = ~(inside | space.empty(column))
        if not is_exporting() and bool(outside.any()):
            worst = float(column[outside].flatten()[0])
            title = name if space.name in ("", name) else f"{space.name} of {name}"
            raise DataError(
                f"expected attribute {title} near its training range {low:g} to {high:g}, found "
                f"{title}={worst:g}; give a value within the range"
            )
