"""Training rows as the trainer reads them, and how an epoch of them is cut into batches.

An epoch is one pass over the rows: every row is in exactly one of its batches. Which rows the k-th
batch holds is a function of the seed and of k, so that no position has to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from ..core.batch import Batch
from ..core.model import Update
from ..core.rng import derive_seed, make_generator


class RowSource(Protocol):
    """Rows of a split, read by index."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor, train: bool = False) -> Batch: ...
    def whole(self) -> Batch: ...

    @property
    def lengths(self) -> Tensor | None:
        """Lengths of the event and of each condition, (n, parts); None if rows do not differ."""


@dataclass(frozen=True)
class EpochBatches:
    """An epoch of `rows` rows as batches of `size` rows, the last one smaller; if that would have
    fewer than `least` rows, they are in the batch before it."""

    rows: int
    size: int
    least: int = 2

    @property
    def count(self) -> int:
        """Batches of an epoch."""
        full, rest = divmod(self.rows, self.size)
        return full + (rest >= self.least) or 1

    def part(self, place: int) -> slice:
        """Where the batch at this place stands in the order of an epoch."""
        start = place * self.size
        return slice(start, self.rows if place == self.count - 1 else start + self.size)

    @property
    def largest(self) -> int:
        """Rows of the largest batch."""
        return max(self.size, self.rows - (self.count - 1) * self.size)


def steps_per_epoch(batches: EpochBatches, updates: Sequence[Update]) -> int:
    """Steps in which an update that takes a batch at each step sees every row once; 1 if every
    update takes the whole split."""
    return 1 if all(update.whole for update in updates) else batches.count


class BatchSequence:
    """Row indices of batches, epoch after epoch, each epoch in an order of its own; `number`
    distinguishes the sequences of one fit."""

    def __init__(
        self,
        rows: RowSource,
        batches: EpochBatches,
        seed: int,
        number: int = 0,
        bucket_by_length: bool = False,
    ) -> None:
        self.rows, self.batches, self.seed, self.number = rows, batches, seed, number
        self.bucket_by_length = bucket_by_length
        self.epoch, self.order = -1, torch.empty(0)

    def index(self, number: int) -> Tensor:
        """Row indices of the number-th batch."""
        epoch, place = divmod(number, self.batches.count)
        if self.epoch != epoch:
            self.epoch, self.order = epoch, self.shuffled(epoch)
        return self.order[self.batches.part(place)]

    def shuffled(self, epoch: int) -> Tensor:
        """All rows in the order of this epoch."""
        keys = ("epoch", epoch, self.number) if self.number else ("epoch", epoch)
        generator = make_generator(derive_seed(self.seed, *keys))
        order = torch.randperm(len(self.rows), generator=generator)
        if self.bucket_by_length:
            order = bucketed(order, self.rows.lengths, self.batches.size, generator)
        return order


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
