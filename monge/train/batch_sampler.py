"""Training rows as the trainer reads them, and how an epoch of them is cut into batches.

An epoch is one pass over the rows: every row is in exactly one of its batches. Which rows the k-th
batch holds is a function of the seed and of k, so that no position has to be stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from ..core.batch import Batch
from ..core.rng import derive_seed, make_generator

LONG = 2**24
"""Rows from which an epoch is shuffled in two levels."""
HEAVY = 2**32
"""Bytes of rows from which an epoch is shuffled in two levels."""
WINDOW = 2**20
"""Most rows of a window."""
WINDOW_BYTES = 2**28
"""Bytes of the rows of a window, unless these are so large that it would have few."""
FEWEST = 2**12
"""Fewest rows of a window."""
BLOCKS = 2**8
"""Blocks of consecutive rows in a window."""


class RowSource(Protocol):
    """Rows of a split, read by index."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor, train: bool = False) -> Batch: ...
    def whole(self) -> Batch: ...

    @property
    def lengths(self) -> Tensor | None:
        """Lengths of the event and of each condition, (n, parts); None if rows do not differ."""

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes, held in memory or not."""


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
        self.epoch, self.order = -1, self.shuffled(-1)

    def index(self, number: int) -> Tensor:
        """Row indices of the number-th batch."""
        epoch, place = divmod(number, self.batches.count)
        if self.epoch != epoch:
            self.epoch, self.order = epoch, self.shuffled(epoch)
        return self.order[self.batches.part(place)]

    def shuffled(self, epoch: int) -> EpochOrder:
        """All rows in the order of this epoch."""
        keys = ("epoch", epoch, self.number) if self.number else ("epoch", epoch)
        return EpochOrder(self.rows, self.batches.size, self.bucket_by_length, (self.seed, *keys))


class EpochOrder:
    """The order of the rows in an epoch, a function of `keys`.

    Usually it is one permutation, every one equally likely. Where that would take much memory, or
    its rows would be read from places all over a large file, it has two levels: the rows are cut
    into blocks of consecutive rows, whose sizes differ by one at most; the blocks are permuted;
    BLOCKS of them after another form a window, the rows of which are permuted. In both every row
    occurs exactly once. With two levels, rows of one block are in one window, and rows of two of
    the B blocks are so with probability (BLOCKS - 1) / (B - 1), if BLOCKS divides B.

    Which it is depends on the number and the size of the rows alone, not on the machine, nor on
    whether the rows are held in memory.
    """

    def __init__(
        self, rows: RowSource, size: int, bucket_by_length: bool, keys: Sequence[int | str]
    ) -> None:
        self.rows, self.count, self.size, self.keys = rows, len(rows), size, keys
        self.bucket_by_length = bucket_by_length
        self.block = block_rows(self.count, rows.row_bytes)
        self.window: tuple[int, Tensor] = (-1, torch.empty(0))
        if self.block:
            blocks = math.ceil(self.count / self.block)
            order = torch.randperm(blocks, generator=make_generator(derive_seed(*self.keys)))
            edges = torch.arange(blocks + 1) * self.count // blocks
            self.starts, self.sizes = edges[:-1][order], edges.diff()[order]
            ends = self.sizes.cumsum(0)  # places in the epoch
            last = torch.arange(BLOCKS - 1, blocks + BLOCKS - 1, BLOCKS).clamp(max=blocks - 1)
            self.ends = ends[last]
        else:
            self.ends = torch.tensor([self.count])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, where: slice) -> Tensor:
        """The rows at consecutive places of the epoch."""
        start, stop, _ = where.indices(self.count)
        found = []
        while start < stop:
            number = int(torch.searchsorted(self.ends, start, right=True))
            if self.window[0] != number:
                self.window = (number, self.rows_of_window(number))
            first = int(self.ends[number - 1]) if number else 0
            end = min(stop, int(self.ends[number]))
            found.append(self.window[1][start - first : end - first])
            start = end
        return torch.cat(found) if len(found) != 1 else found[0]

    def rows_of_window(self, number: int) -> Tensor:
        """The rows of a window in their order; of an epoch without windows, all."""
        if not self.block:
            generator = make_generator(derive_seed(*self.keys))
            rows, first = torch.randperm(self.count, generator=generator), 0
        else:
            generator = make_generator(derive_seed(*self.keys, "window", number))
            blocks = slice(number * BLOCKS, (number + 1) * BLOCKS)
            starts, sizes = self.starts[blocks], self.sizes[blocks]
            before = sizes.cumsum(0) - sizes
            total = int(sizes.sum())
            rows = (starts - before).repeat_interleave(sizes) + torch.arange(total)
            rows = rows[torch.randperm(total, generator=generator)]
            first = int(self.ends[number - 1]) if number else 0
        if not self.bucket_by_length:
            return rows
        # the first rows complete the batch that the window before began
        head = -first % self.size if self.block else 0
        return torch.cat(
            [rows[:head], bucketed(rows[head:], self.rows.lengths, self.size, generator)]
        )


def block_rows(count: int, row_bytes: int) -> int:
    """Rows of a block; 0 for an epoch that is one permutation."""
    if count < LONG and count * row_bytes < HEAVY:
        return 0
    window = max(min(WINDOW, WINDOW_BYTES // max(row_bytes, 1)), FEWEST)
    return window // BLOCKS


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
