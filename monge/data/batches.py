"""Rows of a view as batches of tensors, with conditions, masks and lengths."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.batch import Batch
from .augment import EVENT, Augment, Change
from .codecs.array import Array
from .codecs.sequence import SequenceCodec
from .packed import PackedTensor, Ragged, is_missing

if TYPE_CHECKING:
    import numpy as np

    from .dataset import FieldGroup, View
    from .readers.base import Original


MAX_TOGETHER = 2**26
"""Most numbers of a table that are copied to one tensor, which is the faster to take rows from."""


class SideBySide:
    """Columns (N,) of a long table as rows (N, D), put together only for the rows of a batch."""

    def __init__(self, columns: Sequence[Tensor]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def index_select(self, axis: int, where: Tensor) -> Tensor:
        return torch.stack([as_numbers(each.index_select(0, where)) for each in self.columns], 1)


def as_numbers(column: Tensor) -> Tensor:
    """Codes as numbers; NaN for a missing one."""
    if column.is_floating_point():
        return column
    return torch.where(column < 0, torch.nan, column.float())


@dataclass(frozen=True)
class PackedRows:
    """The rows of an event or a condition as they are stored."""

    rows: PackedTensor | SideBySide  # (N, ...): bytes, codes, or float32 with NaN if missing
    filling: Tensor | None = None  # values in place of missing ones, if any are missing
    sampled: Array | None = None  # samples the binary values of a batch
    varies: bool = False  # whether rows differ in length
    coded: bool = False  # whether steps are codes rather than numbers
    optional: Tensor | None = None  # columns in which an empty cell is a value of its own

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes; a column of a table counts as a float32."""
        if isinstance(self.rows, SideBySide):
            return 4 * len(self.rows.columns)
        every = self.rows.flat if isinstance(self.rows, Ragged) else self.rows
        return math.prod(every.shape) * every.dtype.itemsize // max(len(self.rows), 1)

    def batch(
        self, where: Tensor, train: bool, change: Change | None = None, shift: Tensor | int = 0
    ) -> Batch:
        """Rows as a batch, augmented before binary values are sampled; rows of unequal length are
        padded to the longest and start `shift` steps later."""
        if isinstance(self.rows, Ragged):
            x, length = self.rows.pad(where, torch.int64 if self.coded else torch.float32, shift)
            return replace(self.fill(x), length=length if self.varies else None)
        x = self.rows.index_select(0, where)
        x = x if change is None else change(x)
        return (
            self.fill(x)
            if self.sampled is None
            else Batch(self.sampled.sample_bits(x, where, train))
        )

    def fill(self, x: Tensor) -> Batch:
        hidden = None if self.filling is None else is_missing(x)
        value = x if x.dtype == torch.int64 else x.float()
        if hidden is None or self.filling is None:
            return Batch(value)
        if self.optional is not None:
            hidden = hidden & ~self.optional
        return Batch(torch.where(hidden, self.filling.to(value.dtype), value), observed=~hidden)


def compact(group: FieldGroup, tensors: Mapping[str, PackedTensor]) -> PackedRows:
    """The rows of an event or a condition, of which batches are taken."""
    codec = group.fields[0].codec
    filling = filling_of(group) if group.space.missing else None
    flags = [field.space.optional for field in group.fields]
    optional = torch.tensor(flags[0] if group.single else flags) if any(flags) else None
    if group.single:
        sampled = codec if isinstance(codec, Array) and codec.sampled else None
        return PackedRows(
            tensors[group.fields[0].name],
            filling,
            sampled,
            group.space.varies,
            group.space.kind == "tokens",
            optional,
        )
    every = [tensors[field.name] for field in group.fields]
    columns = [column for column in every if isinstance(column, Tensor)]
    if len(columns) * len(columns[0]) > MAX_TOGETHER:
        return PackedRows(SideBySide(columns), filling, optional=optional)
    numbers = torch.stack([as_numbers(column) for column in columns], 1)  # (N, D)
    return PackedRows(numbers, filling, optional=optional)


def filling_of(group: FieldGroup) -> Tensor:
    """The values in place of missing ones: in the support and in the shape of an event."""
    space = group.space
    if isinstance(group.fields[0].codec, SequenceCodec):
        return space.statistic("mean")
    mean = space.spread("mean")
    kinds = [part.kind for part in space.columns] or [space.kind]
    numeric = torch.tensor([kind in ("real", "counts") for kind in kinds])
    whole = torch.tensor([kind == "counts" for kind in kinds])
    return (torch.where(whole, mean.round(), mean) * numeric).reshape(space.shape)


class Split:
    """Rows of a view, read in batches."""

    weight: Tensor | None = None  # (n,): of training rows, how much each counts
    hidden: Tensor | None = None  # (n,): of training rows, which of them hide their label
    first = 0  # number of the first row, in a part of a split

    def __init__(
        self,
        view: View,
        index: Tensor,
        augment: Augment | None = None,
        crop_limits: Tensor | None = None,
        notes: tuple[str, ...] = (),
        numbers: Tensor | None = None,
    ) -> None:
        self.view, self.space = view, view.space
        self.augment, self.crop_limits = augment, crop_limits
        self.notes = notes  # about rows that were left out
        self.numbered = numbers
        self.index, self.density = index, view.dataset.density  # (n,) row numbers of the source
        self.event, self.given = view.compact
        self.row_keys = {name: cells[index] for name, cells in view.dataset.row_keys.items()}

    def __len__(self) -> int:
        return len(self.index)

    @property
    def numbers(self) -> Tensor:
        """The number of each row in the split, from 1, (n,); rows that were left out count."""
        if self.numbered is not None:
            return self.numbered
        return torch.arange(self.first + 1, self.first + 1 + len(self))

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        """The rows numbered `index` within the split; random binary values are new at each call if
        `train`, otherwise a function of the row."""
        where = self.index[index]
        changes = self.augment.sample(len(index)) if train and self.augment else {}
        given = {
            name: part.batch(where, train, changes.get(name)) for name, part in self.given.items()
        }
        shift: Tensor | int = 0
        if train and self.crop_limits is not None:
            shift = (torch.rand(len(index)) * (self.crop_limits[index] + 1)).long()
        event = self.event.batch(where, train, changes.get(EVENT), shift)
        weight = None if self.weight is None else self.weight[index]
        found = replace(event, given=given, row=index + self.first, weight=weight)
        return found if self.hidden is None else self.without_labels(found, self.hidden[index])

    def without_labels(self, batch: Batch, hidden: Tensor) -> Batch:
        """The rows with the label of those that are `hidden` (B,) unknown."""
        if self.view.selection.predicted:
            cells = hidden.reshape(-1, *(1,) * (batch.x.ndim - 1)).expand_as(batch.x)
            return batch.hide(cells, self.space)
        given = dict(batch.given)
        for name in self.view.labels:
            given[name] = given[name].hide(hidden, self.space.given[name])
        return replace(batch, given=given)

    def parts(self, size: int) -> Iterator[Split]:
        """The rows some at a time, for results that are written while they are computed."""
        for start in range(0, max(len(self), 1), size):
            rows, part = slice(start, start + size), copy.copy(self)
            part.index, part.first = self.index[rows], start
            part.numbered = None if self.numbered is None else self.numbered[rows]
            part.row_keys = {name: cells[rows] for name, cells in self.row_keys.items()}
            part.weight = None if self.weight is None else self.weight[rows]
            part.hidden = None if self.hidden is None else self.hidden[rows]
            part.crop_limits = None if self.crop_limits is None else self.crop_limits[rows]
            yield part

    @property
    def lengths(self) -> Tensor | None:
        """Steps of the event and of each condition of every row, (n, parts); None if all rows have
        the same length."""
        parts = [
            part.rows.length[self.index]
            for part in (self.event, *self.given.values())
            if isinstance(part.rows, Ragged) and part.varies
        ]
        return torch.stack(parts, 1) if parts else None

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes, held in memory or not."""
        return sum(part.row_bytes for part in (self.event, *self.given.values()))

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))

    @property
    def implied(self) -> dict[str, Tensor]:
        """What known cells say about empty ones that they are computed from, (n,) each."""
        return {
            name: torch.from_numpy(codes)[self.index] for name, codes in self.view.implied.items()
        }

    @property
    def original(self) -> Original | None:
        """The rows as they were read, if they are those of a table."""
        table = self.view.dataset.original
        return None if table is None else table.take(self.index.numpy())

    def repeated_keys(self, times: int, rows: int | None = None) -> dict[str, np.ndarray]:
        """The keys of the first rows, by default of all, each `times` times."""
        return {name: cells[:rows].repeat(times) for name, cells in self.row_keys.items()}
