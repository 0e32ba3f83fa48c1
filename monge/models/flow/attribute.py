r"""Attribute flow: encode under some attributes, decode under others, and all else stays

$x = f(z; a)$ with z ~ N(0, I) whatever the attributes a are: what z holds does not tell of a, so
that $x' = f(f^{-1}(x; a); a')$ is x with other attributes (Abdal et al. 2021). Pictures are read
by a multi-scale flow, vectors by couplings.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ...core.abilities import Given
from ...core.batch import broadcast_conditions
from ...core.config import Range
from ...core.errors import DataError
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection
from ._base import Flow
from ._completion import TransferFlow
from ._coupling import CouplingStackConfig, small_data_recipe, coupling_stack
from ._image import GlowSteps, count_halvings, image_shape

EXTRAPOLATION_MARGIN = 1.0
"""By how much of its training range a numeric attribute may leave it."""


class AttributeFlow(TransferFlow):
    """p(x | a) = N(f^{-1}(x; a); 0, I) |det df^{-1}/dx|, every coupling reading a.

    An attribute must be one that training has seen, or near: elsewhere the networks extrapolate,
    and a map that they stretch without limit cannot be undone in numbers of any precision.
    """

    class Config(Flow.Config, CouplingStackConfig):
        tag = "model/flow.attribute"
        levels: Annotated[int, Range(0)] = 0
        """Pictures: resolutions; 0 takes as many as the size allows, three at most."""
        steps: Annotated[int, Range(1)] = 8
        """Pictures: steps of a level."""
        width: Annotated[int, Range(1)] = 64
        """Pictures: channels of the hidden layers of a coupling."""

    config: Config

    def body(self, context: int) -> Bijection:
        if (most := count_halvings(image_shape(self.space))) and self.space.is_picture:
            steps = GlowSteps(self.config.steps, self.config.width, context)
            return steps.flat(image_shape(self.space), min(self.config.levels or 3, most))
        dims = self.space.dims
        return self.config.started(coupling_stack(self.config, dims, context), dims)

    def context(self, given: Given, n: int) -> Tensor:
        ready = broadcast_conditions(given, self.space, n)
        for name, part in self.space.given.items():
            check_attribute(name, part, ready[name].x)
        return self.conditions(ready, n)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if not space.given:
            return (
                "attribute changes what it is given, and nothing is; say --given FIELD, or "
                "use coupling"
            )
        if space.dims < 2:
            return (
                "attribute moves some entries as the others say, but an event has one entry "
                "only; use maf"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few, large, recipe = space.rows < 2000, space.dims > 256, small_data_recipe(space)
        if space.is_picture:
            recipe = TrainConfig(
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
            ),
            recipe,
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(layers=2, bins=4, steps=2, width=8, net=MLP.Config(width=16, depth=1))


def check_attribute(name: str, part: Space, value: Tensor) -> None:
    """A DataError about an attribute at which the map cannot be undone."""
    spaces = part.columns or (part,)
    columns = value.reshape(len(value), -1).T if part.columns else [value]
    for space, column in zip(spaces, columns, strict=True):
        if space.kind in ("real", "counts"):
            low, high = min(space.low), max(space.high)
            room = EXTRAPOLATION_MARGIN * max(high - low, 1e-12)
        else:
            size = 2 if space.kind == "binary" else space.size
            low, high, room = 0, size - 1, 0.0
        strange = ~((column >= low - room) & (column <= high + room))  # true of NaN
        if bool(strange.any()):
            worst = float(column[strange].flatten()[0])
            title = name if space.name in ("", name) else f"{space.name} of {name}"
            raise DataError(
                f"attribute {title}={worst:g} is far from the {low:g} to {high:g} of "
                "training, where the map cannot be undone; give a value in between"
            )
