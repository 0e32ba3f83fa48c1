"""Cells on a grid are the equations, pixel by pixel, and their slope is autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from monge.nn.autoregressive.pixelrnn_kernel import GridLSTM, Neighbourhood, run_lines

ROWS = Neighbourhood(((-1, -1), (-1, 0), (-1, 1)), memory=1, diagonal=False)
DIAGONALS = Neighbourhood(((-1, 0), (0, -1)), memory=1, diagonal=True)
SHAPES = [(3, 4), (4, 2), (1, 3), (3, 1)]


def rows_of(groups: int, shape, taps: int) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    weight = torch.randn(groups, taps, 2, 8, dtype=torch.float64, requires_grad=True)
    maps = [
        torch.randn(*shape, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(groups)
    ]
    return weight, maps


def by_pixel(hearing: Neighbourhood, weight: Tensor, x: Tensor) -> Tensor:
    """One network, one pixel after the other, in raster order."""
    rows, columns = x.shape[:2]
    zero, c, h = torch.zeros(2, 2, dtype=torch.float64), {}, {}
    for r in range(rows):
        for s in range(columns):
            near = [(r + row, s + column) for row, column in hearing.taps]
            a = x[r, s] + sum(h.get(at, zero) @ w for at, w in zip(near, weight, strict=True))
            i, f, o, g = a.chunk(4, -1)
            c[r, s] = f.sigmoid() * c.get(near[hearing.memory], zero) + i.sigmoid() * g.tanh()
            h[r, s] = o.sigmoid() * c[r, s].tanh()
    return torch.stack([h[r, s] for r in range(rows) for s in range(columns)]).unflatten(
        0, (rows, columns)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("hearing", [ROWS, DIAGONALS], ids=["rows", "diagonals"])
def test_lines_are_the_equations_and_their_slope(hearing, shape):
    weight, maps = rows_of(2, shape, len(hearing.taps))
    whole = GridLSTM.apply(hearing, weight, *maps)
    apart = torch.stack([by_pixel(hearing, *pair) for pair in zip(weight, maps, strict=True)])
    torch.testing.assert_close(whole, apart, rtol=0, atol=1e-12)
    exported = run_lines(hearing, weight, *maps)
    torch.testing.assert_close(exported, apart, rtol=0, atol=1e-12)
    mixed = torch.randn_like(whole)
    for one, other in zip(
        *(
            torch.autograd.grad((output * mixed).sum(), (weight, *maps))
            for output in (whole, apart)
        ),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
