"""The choice of what moves an entry, as fields of a flow."""

from __future__ import annotations

from typing import Annotated, Literal

from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.recipe import Recipe
from ...core.space import Space
from ...prob.bijections.base import Bijection
from ...prob.bijections.rosenblatt import Rosenblatt, Started
from ...prob.bijections.spline import Spline
from ...prob.bijections.warps import Additive, Affine, Warp


class Warping(BaseConfig):
    kind: Literal["additive", "affine", "spline"] = "spline"
    """How an entry moves: x = z + t (NICE), t + e^s z (RealNVP), or along a monotone spline."""
    bins: Annotated[int, Range(2, 256)] = 8
    """Pieces of a spline."""
    reach: Annotated[float, Range(0, open=True)] = 5.0
    """A spline bends numbers between -reach and reach; beyond, it leaves them as they are."""

    components: Annotated[int, Range(0)] = 0
    """Components, at most, of a mixture of Gaussians that the flow begins as, fitted before the
    first step; 0 begins as N(0, I) in coordinates near one."""

    def started(self, learned: Bijection, dims: int) -> Bijection:
        """The map with what it begins as, where that is a mixture."""
        return Started(learned, Rosenblatt(dims, self.components)) if self.components else learned

    def warp(self) -> Warp:
        if self.kind == "additive":
            return Additive()
        return Affine() if self.kind == "affine" else Spline(self.bins, self.reach)


def beginning(space: Space) -> int:
    """Components that a flow of so many rows and entries begins as: a few rows of numbers that
    have no picture are better told by a mixture than by any network at first."""
    numbers = space.kind in ("real", "columns", "counts") and len(space.shape) == 1
    return 30 if numbers and not space.given and 30 <= space.rows < 2000 and (
        2 <= space.dims <= 64) else 0


def held_back(space: Space) -> Recipe:
    """A recipe for so many rows: few ask for weight decay, small batches and, around a mixture
    that is fitted already, small steps; a plane of many rows bears long steps."""
    few = space.rows < 2000
    if beginning(space):
        return Recipe(optimiser="adamw", rate=1e-4 if space.rows < 300 else 1e-3, decay=0.1,
                      clip=5.0, batch=64, average=0.99)
    rate = 3e-3 if space.dims <= 8 and not few else 1e-3
    return Recipe(optimiser="adamw", rate=rate, decay=0.1 if few else 1e-4, clip=5.0,
                  batch=64 if few else 256, average=0.99 if few else 0.998)
