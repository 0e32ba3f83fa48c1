r"""Ground costs: the cost of moving a point x to a point y, for all pairs of two point clouds.

A `Cost` computes $c(x_i, y_j)$ for rows of x (..., n, d) and y (..., m, d). Every cost here is
symmetric, and zero if the points are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...core.errors import UsageError

Cost = Callable[[Tensor, Tensor], Tensor]
"""From (..., n, d) and (..., m, d) to (..., n, m)."""
CostName = Literal["squared", "euclidean", "cosine"]


@dataclass(frozen=True)
class Power:
    r"""$c(x, y) = \lVert x - y\rVert^p$: 1 is the Euclidean cost, 2 the squared one."""

    p: float = 2.0

    def __post_init__(self) -> None:
        if not self.p > 0:
            raise UsageError(
                f"expected a power of the cost above 0, found {self.p}; give a larger one"
            )

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.p == 2.0:
            return squared(x, y)
        distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        return distance if self.p == 1.0 else distance**self.p


def squared(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|^2 by one matrix product over centred points, never below zero."""
    centre = y.detach().mean(-2, keepdim=True)
    x, y = x - centre, y - centre
    ones = torch.ones_like(x[..., :1]), torch.ones_like(y[..., :1])
    left = torch.cat([-2 * x, x.square().sum(-1, keepdim=True), ones[0]], -1)
    right = torch.cat([y, ones[1], y.square().sum(-1, keepdim=True)], -1)
    return (left @ right.mT).clamp_min(0.0)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """1 - cos of the angle between x and y."""
    x, y = (torch.nn.functional.normalize(points, dim=-1) for points in (x, y))
    return (1 - x @ y.mT).clamp_min(0.0)


def cost(name: CostName | float | Cost) -> Cost:
    """The cost with this name, with this power of the distance, or the given function."""
    if isinstance(name, str):
        known: dict[str, Cost] = {"squared": squared, "euclidean": Power(1.0), "cosine": cosine}
        return known[name]
    return Power(float(name)) if isinstance(name, int | float) else name
