r"""Adaptive integrals over the real line and the plane, with an error estimate.

The line is mapped to (-1, 1) by $y = t / (1 - t^2)$, where every density that decays faster than a
power vanishes smoothly at the ends. Boxes are halved while a Gauss-Legendre rule on the halves
disagrees with the rule on the whole, so narrow ridges and steps get more points.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

ORDER = 8
"""Points of the rule in each dimension."""
BOXES = 100
"""Initial boxes: with fewer, a narrow peak may be missed."""
POINTS = 1 << 20
"""Points after which no box is halved by default."""


def integral(
    f: Callable[[Tensor], Tensor], dims: int, wanted: float, points: int = POINTS
) -> tuple[Tensor, float]:
    """The integrals (m,) of f: (N, dims) -> (N, m) over R^dims, and their estimated error:
    within the tolerance, or larger if that would take too many points."""
    corners = grid(torch.tensor([-0.5, 0.5], dtype=torch.float64), dims)  # (2^dims, dims)
    count = round(BOXES ** (1 / dims))  # in each dimension
    axis = (2 * torch.arange(count, dtype=torch.float64) + 1) / count - 1
    centres, half, spent = grid(axis, dims), 1 / count, 0
    whole = rule(f, centres, half)  # (boxes, m)
    total, error = whole.new_zeros(whole.shape[1]), 0.0
    while len(centres):
        centres, half = (centres[:, None] + half * corners).flatten(0, 1), half / 2
        parts = rule(f, centres, half).unflatten(0, (-1, len(corners)))  # (boxes, 2^dims, m)
        gap, order = (parts.sum(1) - whole).abs().amax(1).sort()
        spent += len(centres) * ORDER**dims
        # The boxes that agree best are finished, as long as their error is at most half of what
        # remains.
        room = (wanted - error) / 2 if spent < points else math.inf
        fine = ~(gap.cumsum(0) > room)  # true for NaN, which would never converge
        done, rough = order[fine], order[~fine]
        total, error = total + parts[done].sum((0, 1)), error + float(gap[: len(done)].sum())
        whole = parts[rough].flatten(0, 1)
        centres = centres.unflatten(0, (-1, len(corners)))[rough].flatten(0, 1)
    return total, error


def rule(f: Callable[[Tensor], Tensor], centres: Tensor, half: float) -> Tensor:
    """The integral over each box of this half-width, (boxes, m)."""
    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(ORDER))
    dims = centres.shape[1]
    t = (centres[:, None] + half * grid(nodes, dims)).flatten(0, 1)  # (N, dims)
    room = 1 - t.square()
    stretch = ((1 + t.square()) / room.square()).prod(1, keepdim=True)
    values = (f(t / room) * stretch).unflatten(0, (len(centres), -1))  # (boxes, ORDER^dims, m)
    return torch.einsum("bnm,n->bm", values, half**dims * grid(weights, dims).prod(1))


def grid(axis: Tensor, dims: int) -> Tensor:
    """The product of an axis with itself, (len^dims, dims)."""
    return torch.cartesian_prod(*[axis] * dims).reshape(-1, dims)


def lattice(dims: int, points: int, reach: float) -> tuple[Tensor, float]:
    """Points (points^dims, dims) of an even grid over [-reach, reach]^dims and the logarithm of
    the volume of each: the trapezoidal rule, which is spectrally accurate for functions that
    vanish at the ends."""
    axis = torch.linspace(-reach, reach, points, dtype=torch.float64)
    return grid(axis, dims), dims * float((axis[1] - axis[0]).log())
