r"""LSTM cells on a grid, computed line by line.

$c = \sigma(a_f) \odot c' + \sigma(a_i) \odot \tanh(a_g)$ and $h = \sigma(a_o) \odot \tanh(c)$,
where $a = x + \sum_k W_k h_k$ reads the cells k of an earlier line, and c' is the state of one of
them.

All the cells of a line are computed in one product. Maps have margins of zeros for the edges and
are flattened, so that a line, a row or a diagonal, is a slice, and its neighbours are shifted
slices. The loop over lines is one node of the graph with a hand-written gradient, as separate
nodes for the dozen operations of each line would cost more than the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Neighbourhood:
    """The cells that a cell reads, as (row, column) offsets; number `memory` provides the state.
    Lines are rows, or diagonals from the upper right to the lower left."""

    taps: tuple[tuple[int, int], ...]
    memory: int
    diagonal: bool

    def grid(self, rows: int, columns: int) -> PaddedGrid:
        left = max(0, *(-column for _, column in self.taps))
        right = max(0, *(column for _, column in self.taps))
        return PaddedGrid(self, rows, columns, left, left + columns + right)

    def lines(self, rows: int, columns: int) -> list[list[tuple[int, int]]]:
        """The cells (row, column) of each line."""
        cells = [(row, column) for row in range(rows) for column in range(columns)]
        number = [row + column if self.diagonal else row for row, column in cells]
        return [
            [cell for cell, own in zip(cells, number, strict=True) if own == each]
            for each in range(max(number) + 1)
        ]


@dataclass(frozen=True)
class PaddedGrid:
    """Images of one size in maps with a margin above, `left` and right: (G, pixels, B, C)."""

    neighbours: Neighbourhood
    rows: int
    columns: int
    left: int
    wide: int  # columns including margins

    def blank(self, like: Tensor, groups: int, channels: int) -> Tensor:
        size = (self.rows + 1) * self.wide
        return like.new_zeros(groups, size, like.shape[2], channels)

    def window(self, grid: Tensor, row: int = 0, column: int = 0) -> Tensor:
        """The image shifted by this many rows and columns, (G, H, W, B, C)."""
        across = slice(self.left + column, self.left + column + self.columns)
        return grid.unflatten(1, (-1, self.wide))[:, 1 + row : 1 + row + self.rows, across]

    def shifts(self) -> list[int]:
        """The offsets of the pixels that a pixel reads."""
        return [row * self.wide + column for row, column in self.neighbours.taps]

    def lines(self) -> list[slice]:
        first, wide = self.wide + self.left, self.wide
        if not self.neighbours.diagonal:
            starts = range(first, first + self.rows * wide, wide)
            return [slice(start, start + self.columns, 1) for start in starts]
        return [
            slice(
                first + top * wide + diagonal - top,
                first + last * wide + diagonal - last + 1,
                wide - 1,
            )
            for diagonal in range(self.rows + self.columns - 1)
            for top, last in [(max(0, diagonal - self.columns + 1), min(self.rows - 1, diagonal))]
        ]


def shift_slice(line: slice, shift: int) -> slice:
    return slice(line.start + shift, line.stop + shift, line.step)


class GridLSTM(torch.autograd.Function):
    """Outputs of the cells of G networks, (G, H, W, B, C), from weights (G, K, C, 4 C) of the
    cells read and the inputs of the gates i, f, o, g, G maps (H, W, B, 4 C)."""

    @staticmethod
    def forward(ctx: Any, neighbours: Neighbourhood, weight: Tensor, *maps: Tensor) -> Tensor:
        (groups, _, width, gates), grid = weight.shape, neighbours.grid(*maps[0].shape[:2])
        a = grid.blank(maps[0], groups, gates)
        c, h = (grid.blank(maps[0], groups, width) for _ in range(2))
        for own, x in zip(grid.window(a), maps, strict=True):
            own.copy_(x)
        shifts, joint = grid.shifts(), weight.flatten(1, 2)  # (G, K C, 4 C)
        for line in grid.lines():
            heard = torch.cat([h[:, shift_slice(line, shift)] for shift in shifts], -1)
            here = a[:, line]  # (G, cells, B, 4 C)
            here += (heard.flatten(1, 2) @ joint).view(here.shape)
            lstm_cell(
                here, c[:, shift_slice(line, shifts[neighbours.memory])], c[:, line], h[:, line]
            )
        ctx.save_for_backward(a, c, h, weight)
        ctx.grid = grid
        return grid.window(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        a, c, h, weight = ctx.saved_tensors
        grid: PaddedGrid = ctx.grid
        to_a, to_c, to_h = torch.empty_like(a), torch.zeros_like(c), torch.zeros_like(h)
        grid.window(to_h).copy_(slope)
        shifts, joint = grid.shifts(), weight.flatten(1, 2).mT  # (G, 4 C, K C)
        memory = shifts[grid.neighbours.memory]
        for line in reversed(grid.lines()):
            states = (c[:, shift_slice(line, memory)], c[:, line])
            slopes = (to_c[:, shift_slice(line, memory)], to_c[:, line])
            here = to_a[:, line]
            lstm_cell_backward(a[:, line], states, to_h[:, line], slopes, here)
            parts = (here.flatten(1, 2) @ joint).unflatten(1, here.shape[1:3])
            for shift, part in zip(shifts, parts.chunk(len(shifts), -1), strict=True):
                to_h[:, shift_slice(line, shift)] += part
        maps = grid.window(to_a)  # (G, H, W, B, 4 C)
        flat = maps.flatten(1, 3)
        products = [grid.window(h, *tap).flatten(1, 3).mT @ flat for tap in grid.neighbours.taps]
        return None, torch.stack(products, 1), *maps


def run_lines(neighbours: Neighbourhood, weight: Tensor, *maps: Tensor) -> Tensor:
    """The outputs of `GridLSTM` with a new tensor for each line, which reads the one before it: a
    program of any number of rows, as networks are exported to, cannot write into maps."""
    (groups, _, width, _), (rows, columns, n) = weight.shape, maps[0].shape[:3]
    x, joint = torch.stack(maps).flatten(1, 2), weight.flatten(1, 2)[:, None]  # (G, 1, K C, 4 C)
    nothing = x.new_zeros(groups, 1, n, width)  # beyond the edges
    h = c = nothing
    before: dict[tuple[int, int], int] = {}
    outputs: list[Tensor] = []
    order: list[int] = []
    for line in neighbours.lines(rows, columns):
        read = [
            [before.get((r + up, k + left), 0) for r, k in line] for up, left in neighbours.taps
        ]
        heard = torch.cat([h[:, cells] for cells in read], -1)  # (G, cells, B, K C)
        own = [r * columns + k for r, k in line]
        a = (x[:, own] + heard @ joint).unflatten(-1, (4, width))
        i, f, o = a[..., :3, :].sigmoid().unbind(-2)
        state = f * c[:, read[neighbours.memory]] + i * a[..., 3, :].tanh()
        outputs.append(o * state.tanh())
        h, c = torch.cat([nothing, outputs[-1]], 1), torch.cat([nothing, state], 1)
        before, order = {cell: place for place, cell in enumerate(line, 1)}, order + own
    places = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat(outputs, 1)[:, places].unflatten(1, (rows, columns))


def lstm_cell(a: Tensor, c: Tensor, new: Tensor, h: Tensor) -> None:
    """Apply the gate functions to a (*, 4 C) in place, and write the next state and output."""
    width = c.shape[-1]
    a[..., : 3 * width].sigmoid_()
    i, f, o, g = a.unflatten(-1, (4, width)).unbind(-2)
    g.tanh_()
    torch.mul(f, c, out=new).addcmul_(i, g)
    torch.mul(new.tanh(), o, out=h)


def lstm_cell_backward(
    a: Tensor,
    states: tuple[Tensor, Tensor],
    to_h: Tensor,
    slopes: tuple[Tensor, Tensor],
    to_a: Tensor,
) -> None:
    """Gradients of the gates and the previous state from those of h and the state."""
    (before, state), (to_before, to_state), width = states, slopes, to_h.shape[-1]
    i, f, o, g = a.unflatten(-1, (4, width)).unbind(-2)
    to_i, to_f, to_o, to_g = to_a.unflatten(-1, (4, width)).unbind(-2)
    squashed = state.tanh()
    to_state.addcmul_(to_h * o, 1 - squashed.square())
    for slope, one, other in (
        (to_o, to_h, squashed),
        (to_i, to_state, g),
        (to_f, to_state, before),
        (to_g, to_state, i),
        (to_before, to_state, f),
    ):
        torch.mul(one, other, out=slope)
    gates, bent = a[..., : 3 * width], to_a[..., : 3 * width]
    bent.mul_(gates * (1 - gates))
    to_g.mul_(1 - g.square())
