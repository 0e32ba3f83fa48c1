"""The entries of a sequence as vectors, which is what a network of sequences reads.

A number is standardised by its place and mapped linearly; one of a few codes (a bit, a level, a
token) has a learned vector of its own besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.space import Space

CODES = 1024
"""Up to so many levels have a vector each; beyond, a level is read as a number alone."""


class Entries(nn.Module):
    """e(x_t) = table[x_t] + w (x_t - mean_p) / scale_p, where p is the place t is at.

    The places of `space` (cycle,) come again and again along a sequence. Reals have no table,
    tokens no number.
    """

    shift: Tensor
    factor: Tensor

    def __init__(self, space: Space, width: int) -> None:
        super().__init__()
        self.cycle, self.width = space.dims, width
        listed = (space.kind != "real" and space.size <= CODES) or space.kind == "tokens"
        size = 2 if space.kind == "binary" else space.size
        self.table = nn.Parameter(0.5 * torch.randn(size, width)) if listed else None
        numbers = space.kind != "tokens"
        self.weight = nn.Parameter(torch.randn(width)) if numbers else None
        scale = space.spread("scale")
        scale = scale if space.kind == "real" else scale.clamp_min(0.5)
        self.register_buffer("shift", space.spread("mean").clone(), persistent=False)  # (cycle,)
        self.register_buffer("factor", 1 / scale, persistent=False)  # (cycle,)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        """Of values x (..., T) that stand at `place` (..., T) of the cycle, (..., T, width)."""
        parts = []
        if self.weight is not None:
            number = (x - self.shift[place]) * self.factor[place]
            parts.append(number[..., None] * self.weight)
        if self.table is not None:
            parts.append(F.embedding(x.detach().long(), self.table))
        return parts[0] + parts[1] if len(parts) > 1 else parts[0]

    def reader(self) -> Callable[[Tensor, int], Tensor]:
        """`forward` of values (m,) at one place, for many places in turn: what it needs is taken
        apart once."""
        table, weight = self.table, self.weight
        if table is not None and (weight is None or self.cycle == 1):
            codes = torch.arange(len(table), device=table.device)
            listed = self(codes.to(table), torch.zeros_like(codes))  # (size, width)
            return lambda x, place: F.embedding(x.long(), listed)
        shift = self.shift.unbind()
        slope = (self.factor[:, None] * cast(Tensor, weight)).unbind()  # (width,) each
        if table is None:
            return lambda x, place: (x[:, None] - shift[place]) * slope[place]
        return lambda x, place: F.embedding(x.long(), table).addcmul(
            x[:, None] - shift[place], slope[place])
