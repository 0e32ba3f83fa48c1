r"""Monotone splines of quotients of quadratics, the identity outside of a box.

On the bin with knots $(a, c)$ and $(a+w, c+h)$, slope $\delta = h/w$ and derivatives $d_0, d_1$
at the knots, with $\theta = (x - a)/w$ (Gregory & Delbourgo 1982; Durkan et al. 2019)

$z = c + h \frac{\delta\theta^2 + d_0\theta(1-\theta)}{\delta + (d_0+d_1-2\delta)\theta(1-\theta)}$

$dz/dx = \delta^2 \frac{d_1\theta^2 + 2\delta\theta(1-\theta) + d_0(1-\theta)^2}
         {[\delta + (d_0+d_1-2\delta)\theta(1-\theta)]^2}$

and $\theta$ is undone as the root $2q / (-p - \sqrt{p^2 - 4oq})$ of a quadratic, the form in which
nothing cancels. Outside of [-reach, reach] the map is z = x with slope 1, and so are the
derivatives at the ends: numbers of any size pass, and the density has no jump.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Mapped
from .warps import Warp

LEAST = 1e-3
"""Least share of the box that a bin takes, and least derivative at a knot."""


class Bin(NamedTuple):
    """The piece of the spline that a number falls into, each (*S,)."""

    left: Tensor  # a
    bottom: Tensor  # c
    width: Tensor  # w
    height: Tensor  # h
    first: Tensor  # d_0
    last: Tensor  # d_1

    @property
    def slope(self) -> Tensor:
        return self.height / self.width

    @property
    def bend(self) -> Tensor:
        return self.first + self.last - 2 * self.slope


class Spline(Warp):
    """z as a spline of x; parameters are K logits of widths, K of heights, K - 1 slopes.

    The plain formula leads from x to z, which is the way that training goes.
    """

    def __init__(self, bins: int = 8, reach: float = 5.0) -> None:
        super().__init__()
        self.bins, self.reach, self.count = bins, reach, 3 * bins - 1

    def inverse(self, params: Tensor, x: Tensor) -> Mapped:
        inside, held, tables = x.abs() < self.reach, self.hold(x), self.tables(params)
        piece = self.find(tables, held, 0)
        theta = (held - piece.left) / piece.width
        rise = piece.slope * theta.square() + piece.first * theta * (1 - theta)
        z = piece.bottom + piece.height * rise / denominator(piece, theta)
        log_slope = torch.where(inside, log_slope_of(piece, theta), 0.0)
        return torch.where(inside, z, x), log_slope

    def forward(self, params: Tensor, z: Tensor) -> Mapped:
        inside, held, tables = z.abs() < self.reach, self.hold(z), self.tables(params)
        piece = self.find(tables, held, 1)
        up = held - piece.bottom
        o = piece.height * (piece.slope - piece.first) + up * piece.bend
        p, q = piece.height * piece.first - up * piece.bend, -piece.slope * up
        square = (p.square() - 4 * o * q).clamp_min(torch.finfo(z.dtype).tiny)
        theta = (2 * q / (-p - square.sqrt())).clamp(0, 1)
        x = piece.left + piece.width * theta
        log_slope = torch.where(inside, -log_slope_of(piece, theta), 0.0)
        return torch.where(inside, x, z), log_slope

    def hold(self, x: Tensor) -> Tensor:
        return x.clamp(-self.reach, self.reach)

    def tables(self, params: Tensor) -> Tensor:
        """Abscissae, ordinates and derivatives of the K + 1 knots, (*S, 3, K + 1)."""
        bins, reach = self.bins, self.reach
        shares = params[..., :2 * bins].unflatten(-1, (2, bins)).softmax(-1)
        shares = LEAST + (1 - LEAST * bins) * shares
        inner = shares.cumsum(-1)[..., :-1] * (2 * reach) - reach  # (*S, 2, K - 1)
        knots = F.pad(F.pad(inner, (1, 0), value=-reach), (0, 1), value=reach)
        at_zero = math.log(math.expm1(1 - LEAST))  # where softplus gives a derivative of 1
        slopes = LEAST + F.softplus(params[..., 2 * bins:] + at_zero)
        slopes = F.pad(slopes, (1, 1), value=1.0)
        return torch.cat([knots, slopes[..., None, :]], -2)

    def find(self, tables: Tensor, value: Tensor, axis: int) -> Bin:
        """The bin of each value among the abscissae (axis 0) or ordinates (axis 1)."""
        inner = tables[..., axis, 1:-1].detach()
        place = (value.detach()[..., None] >= inner).sum(-1, keepdim=True)  # (*S, 1)
        starts = (self.bins + 1) * torch.arange(3, device=place.device)
        index = torch.cat([place + starts, place + starts + 1], -1)  # (*S, 6)
        a, c, d0, b, d, d1 = tables.flatten(-2).gather(-1, index).unbind(-1)
        return Bin(a, c, b - a, d - c, d0, d1)


def denominator(piece: Bin, theta: Tensor) -> Tensor:
    return piece.slope + piece.bend * theta * (1 - theta)


def log_slope_of(piece: Bin, theta: Tensor) -> Tensor:
    """log dz/dx at a place of a bin."""
    rest = 1 - theta
    top = (piece.last * theta.square() + 2 * piece.slope * theta * rest
           + piece.first * rest.square())
    return 2 * piece.slope.log() + top.log() - 2 * denominator(piece, theta).log()
