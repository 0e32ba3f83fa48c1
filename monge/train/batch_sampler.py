"""The training rows as the loop sees them, and batches of those that are of like length, so that
little of them is padding."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Generator, Tensor

from ..core.batch import Batch


class RowSource(Protocol):
    """The training rows."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor, train: bool = False) -> Batch: ...
    def whole(self) -> Batch: ...

    @property
    def lengths(self) -> Tensor | None:
        """Steps of the event and of each condition of every row, (n, parts), where they differ."""


def bucketed(order: Tensor, lengths: Tensor | None, size: int, generator: Generator) -> Tensor:
    """The rows of an epoch's order such that every `size` neighbours are alike in length, first of
    the event, then of each condition; rows of one length keep their order, which is random, and
    batches come in a random one. `lengths` (n, parts); what is left over stays at the end."""
    if lengths is None:
        return order
    left = len(order) % size
    rest, order = order[len(order) - left :], order[: len(order) - left]
    for part in reversed(range(lengths.shape[1])):
        order = order[lengths[order, part].argsort(stable=True)]
    batches = order.reshape(-1, size)
    return torch.cat([batches[torch.randperm(len(batches), generator=generator)].flatten(), rest])
