"""Rejection: values that do not obey the constraints of the data are drawn again, row by row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.batch import Batch

MAX_REPEATS = 200
"""Tries of a row until one obeys the constraints of the data."""

Obeys = Callable[[Tensor], Tensor]
"""Which rows (n, D) obey the constraints, (n,)."""
CompleteRows = Callable[[Batch, int], Tensor]
"""Rows (B, *event), each completed several times, (B, draws, *event)."""


def draw_obeying(
    draw: Callable[[Tensor], Tensor], n: int, obeys: Obeys | None
) -> tuple[Tensor, Tensor]:
    """`draw` of the rows numbered 0 to n - 1, each repeated until it obeys, and the numbers of
    the rows of which no try does."""
    x = draw(torch.arange(n))
    wrong = torch.arange(0)
    for _ in range(MAX_REPEATS if obeys is not None else 0):
        wrong = (~obeys(x)).nonzero()[:, 0]  # type: ignore[misc]
        if not len(wrong):
            break
        x[wrong] = draw(wrong)
    return x, wrong


def complete_obeying(
    complete: CompleteRows, batch: Batch, count: int, obeys: Obeys | None
) -> tuple[Tensor, Tensor]:
    """`count` completions of each row, (B, count, *event), each repeated until it obeys, and the
    numbers of the rows of which no try does."""

    def draw(rows: Tensor) -> Tensor:
        if len(rows) == count * len(batch):  # all of them
            return complete(batch, count).flatten(0, 1)
        return complete(batch[rows // count], 1)[:, 0]

    x, wrong = draw_obeying(draw, count * len(batch), obeys)
    return x.unflatten(0, (len(batch), count)), wrong // count
