r"""Monotone rational-quadratic splines, the identity outside a box.

On the bin with knots $(a, c)$ and $(a+w, c+h)$, slope $\delta = h/w$ and derivatives $d_0, d_1$
at the knots, with $\theta = (x - a)/w$ (Gregory & Delbourgo 1982; Durkan et al. 2019)

$z = c + h \frac{\delta\theta^2 + d_0\theta(1-\theta)}{\delta + (d_0+d_1-2\delta)\theta(1-\theta)}$

$dz/dx = \delta^2 \frac{d_1\theta^2 + 2\delta\theta(1-\theta) + d_0(1-\theta)^2}
         {[\delta + (d_0+d_1-2\delta)\theta(1-\theta)]^2}$

and the inverse is the root $2q / (-p - \sqrt{p^2 - 4oq})$ of a quadratic, the form without
cancellation. Outside [-reach, reach] the map is z = x with slope 1, and the derivatives at the
ends are 1 too, so the map is defined everywhere and the density has no jump.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Mapped
from .univariate import UnivariateMap

MIN_SHARE = 1e-3
"""Smallest share of the box of a bin, and smallest derivative at a knot."""
UNIT_DERIVATIVE_LOGIT = math.log(math.expm1(1 - MIN_SHARE))
"""The input at which softplus gives a derivative of 1."""


class SplineBin(NamedTuple):
    """The bin of each number, each (*S,)."""

    left: Tensor  # a
    bottom: Tensor  # c
    width: Tensor  # w
    height: Tensor  # h
    first: Tensor  # d_0
    last: Tensor  # d_1

    @property
    def mean_derivative(self) -> Tensor:
        return self.height / self.width


class SplineMap(UnivariateMap):
    """z as a spline of x; parameters are K logits of widths, K of heights, K - 1 slopes.

    The direct formula maps x to z, the direction of training.
    """

    def __init__(self, bins: int = 8, reach: float = 5.0) -> None:
        super().__init__()
        self.bins, self.reach, self.count = bins, reach, 3 * bins - 1

    def inverse(self, params: Tensor, x: Tensor) -> Mapped:
        inside = x.abs() < self.reach
        piece, held = self.find(params, x, 0)
        theta, slope = (held - piece.left) / piece.width, piece.mean_derivative
        mixed = theta * (1 - theta)
        below = slope + (piece.first + piece.last - 2 * slope) * mixed
        rise = slope * theta.square() + piece.first * mixed
        z = piece.bottom + piece.height * rise / below
        log_slope = log_derivative_at(piece, slope, theta, mixed, below)
        return torch.where(inside, z, x), torch.where(inside, log_slope, 0.0)

    def forward(self, params: Tensor, z: Tensor) -> Mapped:
        inside = z.abs() < self.reach
        piece, held = self.find(params, z, 1)
        up, slope = held - piece.bottom, piece.mean_derivative
        bend = piece.first + piece.last - 2 * slope
        o = piece.height * (slope - piece.first) + up * bend
        p, q = piece.height * piece.first - up * bend, -slope * up
        square = (p.square() - 4 * o * q).clamp_min(torch.finfo(z.dtype).tiny)
        theta = (2 * q / (-p - square.sqrt())).clamp(0, 1)
        mixed = theta * (1 - theta)
        log_slope = log_derivative_at(piece, slope, theta, mixed, slope + bend * mixed)
        x = piece.left + piece.width * theta
        return torch.where(inside, x, z), torch.where(inside, -log_slope, 0.0)

    def find(self, params: Tensor, value: Tensor, axis: int) -> tuple[SplineBin, Tensor]:
        """The bin of each value among the abscissae (axis 0) or ordinates (axis 1), and the value
        within the box.

        A knot is a sum of shares, so with masks of the bins below a value and of its own bin,
        knots and widths are sums over bins, and no knots are stored.
        """
        bins, reach = self.bins, self.reach
        held = value.clamp(-reach, reach)
        shares, raw = params.movedim(-1, 0).split([2 * bins, bins - 1])
        shares = shares.unflatten(0, (2, bins)).softmax(1)  # (2, K, *S)
        below, own = self.masks(shares[axis].detach(), held.detach())
        scale = 2 * reach * (1 - MIN_SHARE * bins)
        start = (shares * below).sum(1) * scale + (2 * reach * MIN_SHARE * below.sum(0) - reach)
        size = (shares * own).sum(1) * scale + 2 * reach * MIN_SHARE
        # The knots at the ends have no parameter: the sum is 0, which means slope 1.
        ends = torch.stack([(raw * own[1:]).sum(0), (raw * own[:-1]).sum(0)])
        first, last = (MIN_SHARE + F.softplus(ends + UNIT_DERIVATIVE_LOGIT)).unbind()
        (left, bottom), (width, height) = start.unbind(), size.unbind()
        return SplineBin(left, bottom, width, height, first, last), held

    def masks(self, shares: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """1 for the bins below that of a value, and 1 for its own, each (K, *S)."""
        bins = self.bins
        upto = torch.ones(bins - 1, bins, dtype=value.dtype, device=value.device).tril()
        sums = (upto @ shares.flatten(1)).reshape(bins - 1, *value.shape)
        place = torch.arange(1, bins, dtype=value.dtype, device=value.device)
        fixed = (2 * self.reach * MIN_SHARE * place - self.reach).reshape(-1, *(1,) * value.ndim)
        passed = value >= fixed + 2 * self.reach * (1 - MIN_SHARE * bins) * sums  # (K - 1, *S)
        below = F.pad(passed.to(value.dtype), (0, 0) * value.ndim + (0, 1))
        own = -below
        own[0] += 1
        own[1:] += below[:-1]
        return below, own


def log_derivative_at(
    piece: SplineBin, slope: Tensor, theta: Tensor, mixed: Tensor, below: Tensor
) -> Tensor:
    """log dz/dx at a position in a bin: `mixed` is theta (1 - theta), `below` the denominator."""
    top = piece.last * theta.square() + 2 * slope * mixed + piece.first * (1 - theta).square()
    return ((slope / below).square() * top).log()
