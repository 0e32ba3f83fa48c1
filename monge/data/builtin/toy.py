"""Two-dimensional toy datasets, generated rather than stored.

A toy maps the uniform random numbers of a row to a point, so row i does not depend on the number
of rows. If log p(x) has a closed form it is included, so models can be compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.gaussian_modes import GaussianModes
from ...core.rng import derive_seed, keyed_uniform
from ..options import Options, check_rows
from ..readers.base import RawData, RowLocations

Density = Callable[[Tensor], Tensor]
ROWS = 10_000
TURN = 2 * math.pi


@dataclass(frozen=True)
class Toy:
    sample: Callable[[Tensor], Tensor]  # uniforms (N, 4) -> points (N, 2), float64
    density: Density | None = None  # points (..., 2) -> log p (...)

    def raw(self, name: str, options: Options) -> RawData:
        n = options.rows or ROWS
        check_rows(n, 2)
        points = self.sample(keyed_uniform(torch.arange(n), (4,), derive_seed(options.seed, name)))
        return RawData(
            name,
            {"x": points.float().numpy()},
            ("x",),
            RowLocations.count(n),
            density=self.density,
        )


def moons() -> Toy:
    """Two half circles, one inside the other's arms"""

    def sample(u: Tensor) -> Tensor:
        angle, lower = math.pi * u[:, 0], u[:, 1] < 0.5
        upper = torch.stack([angle.cos(), angle.sin()], 1)
        points = torch.where(lower[:, None], torch.tensor([1.0, 0.5]) - upper, upper)
        return points + _noise(u, 0.1)

    return Toy(sample)


def rings() -> Toy:
    """Four concentric rings; the density is known"""
    radii, spread = torch.tensor([0.75, 1.5, 2.25, 3.0]).double(), 0.08

    def sample(u: Tensor) -> Tensor:
        radius = radii[_choice(u[:, 0], 4)] + _noise(u, spread)[:, 0]
        angle = TURN * u[:, 1]
        return radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)

    def density(x: Tensor) -> Tensor:
        # p(x) = p(r) / (2 pi r); a negative radius lands on the other side of the circle
        radius = x.norm(dim=-1, keepdim=True)
        signed = torch.stack([radius, -radius], -1) - radii.to(x)[:, None]  # (..., 4, 2)
        log = -((signed / spread) ** 2) / 2 - math.log(spread * math.sqrt(TURN) * len(radii))
        return log.flatten(-2).logsumexp(-1) - (TURN * radius[..., 0]).log()

    return Toy(sample, density)


def checkerboard() -> Toy:
    """Uniform on the eight dark squares of a board; the density is known"""

    def sample(u: Tensor) -> Tensor:
        row, place = _choice(u[:, 0], 4), _choice(u[:, 1], 2)
        column = 2 * place + row % 2
        return 2 * torch.stack([column + u[:, 2], row + u[:, 3]], 1) - 4

    def density(x: Tensor) -> Tensor:
        square = ((x + 4) / 2).floor()
        dark = (square.sum(-1) % 2 == 0) & ((square >= 0) & (square <= 3)).all(-1)
        return torch.where(dark, -math.log(32.0), -math.inf).to(x.dtype)

    return Toy(sample, density)


def eight_gaussians() -> Toy:
    """Eight round Gaussians on a circle; the density is known"""
    return _mixture(_circle(8, 2 * math.sqrt(2)), math.sqrt(2) / 4)


def ring() -> Toy:
    """Eight narrow modes on a circle, a test for mode collapse; the density is known"""
    return _mixture(_circle(8, 2.0), 0.02)


def grid() -> Toy:
    """Twenty-five narrow modes on a grid; the density is known"""
    line = torch.arange(-2, 3).double()
    return _mixture(torch.cartesian_prod(line, line), 0.05)


def pinwheel() -> Toy:
    """Five arms, bent"""

    def sample(u: Tensor) -> Tensor:
        normal = _noise(u, 1.0)
        along, across = 1 + 0.3 * normal[:, 0], 0.05 * normal[:, 1]
        angle = TURN * _choice(u[:, 0], 5) / 5 + 0.25 * along.exp()
        cos, sin = angle.cos(), angle.sin()
        return 2 * torch.stack([cos * along - sin * across, sin * along + cos * across], 1)

    return Toy(sample)


def spirals() -> Toy:
    """Two spirals, one half a turn behind the other"""

    def sample(u: Tensor) -> Tensor:
        angle = 1.5 * TURN * u[:, 0].sqrt()
        arm = angle[:, None] / 3 * torch.stack([-angle.cos(), angle.sin()], 1)
        return torch.where(u[:, 1:2] < 0.5, arm, -arm) + _noise(u, 0.1)

    return Toy(sample)


def _mixture(centres: Tensor, spread: float) -> Toy:
    """Equal round Gaussians."""

    def sample(u: Tensor) -> Tensor:
        return centres[_choice(u[:, 0], len(centres))] + _noise(u, spread)

    return Toy(sample, GaussianModes(centres, spread))


def _circle(n: int, radius: float) -> Tensor:
    angle = TURN * torch.arange(n).double() / n
    return radius * torch.stack([angle.cos(), angle.sin()], 1)  # (n, 2)


def _choice(u: Tensor, n: int) -> Tensor:
    return (u * n).long()


def _noise(u: Tensor, spread: float) -> Tensor:
    """Two normals from the last two uniforms."""
    return spread * torch.special.ndtri(u[:, 2:])
