"""The choice of what moves an entry, as fields of a flow."""

from __future__ import annotations

from typing import Annotated, Literal

from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.recipe import Recipe
from ...core.space import Space
from ...prob.bijections.spline import Spline
from ...prob.bijections.warps import Additive, Affine, Warp


class Warping(BaseConfig):
    kind: Literal["additive", "affine", "spline"] = "spline"
    """How an entry moves: x = z + t (NICE), t + e^s z (RealNVP), or along a monotone spline."""
    bins: Annotated[int, Range(2, 256)] = 8
    """Pieces of a spline."""
    reach: Annotated[float, Range(0, open=True)] = 5.0
    """A spline bends numbers between -reach and reach; beyond, it leaves them as they are."""

    def warp(self) -> Warp:
        if self.kind == "additive":
            return Additive()
        return Affine() if self.kind == "affine" else Spline(self.bins, self.reach)


def held_back(space: Space) -> Recipe:
    """A recipe for so many rows: few ask for weight decay and small batches; a plane of many
    rows bears long steps."""
    few = space.rows < 2000
    rate = 3e-3 if space.dims <= 8 and not few else 1e-3
    return Recipe(optimiser="adamw", rate=rate, decay=0.1 if few else 1e-4, clip=5.0,
                  batch=64 if few else 256, average=0.99 if few else 0.998)
