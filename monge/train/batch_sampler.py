"""Training rows as the trainer reads them, and batches of rows of similar length."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Generator, Tensor

from ..core.batch import Batch


class RowSource(Protocol):
    """Rows of a split, read by index."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor, train: bool = False) -> Batch: ...
    def whole(self) -> Batch: ...

    @property
    def lengths(self) -> Tensor | None:
        """Lengths of the event and of each condition, (n, parts); None if rows do not differ."""


def bucketed(order: Tensor, lengths: Tensor | None, size: int, generator: Generator) -> Tensor:
    """Reorder an epoch so that each batch of `size` rows has similar lengths and little padding.

    Rows are sorted by the length of the event, then of each condition, `lengths` (n, parts). Rows
    of equal length stay in their random order, batches are shuffled, and the rows of the last
    incomplete batch stay at the end."""
    if lengths is None:
        return order
    extra = len(order) % size
    rest, order = order[len(order) - extra :], order[: len(order) - extra]
    for part in reversed(range(lengths.shape[1])):
        order = order[lengths[order, part].argsort(stable=True)]
    batches = order.reshape(-1, size)
    return torch.cat([batches[torch.randperm(len(batches), generator=generator)].flatten(), rest])
