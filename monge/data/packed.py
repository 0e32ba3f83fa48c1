"""Rows of unequal length, concatenated in one tensor and padded only in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor

LOWEST = {torch.uint8: 0, torch.int16: -(2**15)}
"""The types whose values are counted, with the smallest value of each."""
PIECE = 2**20
"""Numbers processed at once."""
FEW_CODES = 2**16
"""Codes of names up to which each is counted in a place of its own."""


@dataclass(frozen=True)
class Ragged:
    """Row i is flat[start[i] : start[i] + length[i]]; a stored v stands for v + base."""

    flat: Tensor  # (total, *step)
    start: Tensor  # (N,)
    length: Tensor  # (N,)
    base: int = 0

    @classmethod
    def join(cls, rows: Sequence[Tensor], base: int = 0) -> Ragged:
        length = torch.tensor([len(row) for row in rows])
        return cls(torch.cat(list(rows)), length.cumsum(0) - length, length, base)

    def __len__(self) -> int:
        return len(self.length)

    def __getitem__(self, rows: Tensor) -> Ragged:
        return Ragged(self.flat, self.start[rows], self.length[rows], self.base)

    @property
    def rows(self) -> list[Tensor]:
        """Each row (length, *step) as stored."""
        pairs = zip(self.start.tolist(), self.length.tolist(), strict=True)
        return [self.flat[start : start + length] for start, length in pairs]

    @property
    def steps(self) -> Tensor:
        """The steps of all rows, concatenated."""
        every = int(self.length.sum()) == len(self.flat) and bool((self.start.diff() > 0).all())
        return self.flat if every else torch.cat(self.rows)

    @property
    def parts(self) -> list[Tensor]:
        """Tensors with every entry of the rows once; overlapping rows are not copied."""
        if int(self.length.sum()) > len(self.flat):
            return [self.flat, self.start, self.length]
        return [self.steps, self.length]

    def pad(
        self, rows: Tensor, dtype: torch.dtype = torch.float32, shift: Tensor | int = 0
    ) -> tuple[Tensor, Tensor]:
        """The values of some rows, (B, T, *step) with zeros after the end, and their lengths; T is
        the longest of these. Rows start `shift` (B,) steps later and end as much later."""
        start, length = self.start[rows] + shift, self.length[rows]
        step = torch.arange(int(length.max()) if len(length) else 0)
        exists = step < length[:, None]  # (B, T)
        place = (start[:, None] + step).where(exists, 0)
        x = self.flat[place].to(dtype) + self.base  # (B, T, *step)
        exists = exists.reshape(*exists.shape, *(1,) * (x.ndim - 2))
        return x.masked_fill_(~exists, 0), length

    def change(self, flat: Tensor, base: int = 0) -> Ragged:
        """The same rows with other values of the steps."""
        return Ragged(flat, self.start, self.length, base)


PackedTensor = Tensor | Ragged
"""The stored rows of a field."""


def is_missing(x: Tensor) -> Tensor | None:
    """Which entries of a tensor are missing; None for a type without missing values."""
    if x.is_floating_point():
        return x.isnan()
    return x < 0 if x.dtype == torch.int64 else None


def marks_missing(x: Any) -> bool:
    """Whether entries of this type can be missing."""
    return x.is_floating_point() or x.dtype == torch.int64


def missing_counts(rows: PackedTensor) -> Tensor | None:
    """Number of missing cells of each row, (N,); None for a type without missing values."""
    if not marks_missing(rows.flat if isinstance(rows, Ragged) else rows):
        return None
    if isinstance(rows, Tensor):
        return torch.cat([count_missing(part) for part in some_rows(rows)])
    each = count_missing(rows.flat)
    total = torch.cat([torch.zeros(1, dtype=torch.long), each.cumsum(0)])
    return total[rows.start + rows.length] - total[rows.start]


def count_missing(x: Tensor) -> Tensor:
    mask = is_missing(x)
    assert mask is not None, "asked before"
    return mask.reshape(len(mask), -1).sum(1)


def has_missing(rows: PackedTensor) -> bool:
    """Whether a cell of any row is missing."""
    if isinstance(rows, Ragged):
        found = missing_counts(rows)
        return found is not None and bool(found.any())
    return marks_missing(rows) and any(
        mask is not None and bool(mask.any()) for mask in map(is_missing, some_rows(rows))
    )


def some_rows(x: Any) -> Iterator[Tensor]:
    """The rows of a tensor (N, *row), or of what stands for one, some at a time."""
    size = max(1, PIECE // max(math.prod(x.shape[1:]), 1))
    return iter(x.split(size)) if len(x) else iter([x[:0]])


class Chosen:
    """Some rows of a field (N, *row), which are taken only when they are used: what was read of a
    file does not stay in memory."""

    def __init__(self, fields: Mapping[str, Any], name: str, index: Tensor) -> None:
        self.fields, self.name, self.index = fields, name, index
        rows = fields[name]
        self.dtype, self.shape = rows.dtype, (len(index), *rows.shape[1:])

    def __len__(self) -> int:
        return len(self.index)

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def split(self, size: int) -> Iterator[Tensor]:
        for part in self.index.split(size):
            yield self.fields[self.name].index_select(0, part)

    def __getitem__(self, which: Any) -> Tensor:
        """One column, [:, i], or the first rows."""
        if isinstance(which, slice):
            return self.fields[self.name].index_select(0, self.index[which])
        rows, column = which
        return self.fields[self.name][:, column][self.index[rows]]


class Picked(Mapping[str, Any]):
    """Some of the entries of a mapping, which are taken from it only when they are used."""

    def __init__(self, entries: Mapping[str, Any], names: Sequence[str]) -> None:
        self.entries, self.names = entries, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def single_columns(tensors: Mapping[str, PackedTensor]) -> Mapping[str, Tensor]:
    """The fields of one number per row."""
    return Picked(
        tensors,
        [
            name
            for name, column in tensors.items()
            if isinstance(column, Tensor) and column.ndim == 1
        ],
    )


class Moments(TypedDict):
    """The statistics in a Space, one number for each group of entries."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Statistics(Moments):
    """The statistics of rows."""

    rows: int
    missing: bool


def statistics(x: Any, groups: int) -> Statistics:
    """Statistics of rows x (N, groups * anything), a tensor or what stands for one; NaN counts as
    missing."""
    found: list[Any] = [
        LevelMoments(x.dtype) if x.dtype in LOWEST else NumberMoments() for _ in range(groups)
    ]
    missing = False
    for rows in some_rows(x):
        missing |= rows.is_floating_point() and bool(rows.isnan().any())
        parts = rows.reshape(len(rows), groups, -1).unbind(1) if len(rows) else ()
        for each, part in zip(found, parts, strict=False):
            each.add(part.flatten())
    mean, scale, low, high = (
        tuple(column) for column in zip(*(each.moments for each in found), strict=True)
    )
    return Statistics(mean=mean, scale=scale, low=low, high=high, rows=len(x), missing=missing)


class NumberMoments:
    """Mean, scale, low and high of numbers that are added some at a time, whose moments are joined
    (Chan, Golub and LeVeque 1979); those of zeros if all are missing."""

    def __init__(self) -> None:
        self.count, self.mean, self.variance = 0, 0.0, 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, x: Tensor) -> None:
        empty = x.isnan()
        seen = (x[~empty] if bool(empty.any()) else x).double()
        if not len(seen):
            return
        share, (least, most) = len(seen) / (self.count + len(seen)), seen.aminmax()
        apart, within = float(seen.mean()) - self.mean, float(seen.var(correction=0))
        self.variance += share * (within - self.variance) + share * (1 - share) * apart**2
        self.mean += share * apart
        self.count += len(seen)
        self.low, self.high = min(self.low, float(least)), max(self.high, float(most))

    @property
    def moments(self) -> tuple[float, ...]:
        if not self.count:
            return 0.0, 1.0, 0.0, 0.0
        scale = self.variance**0.5 if self.low < self.high else 1.0
        return self.mean, scale, self.low, self.high


class LevelMoments:
    """The same of integers of 8 or 16 bits, from the counts of the values."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.lowest = LOWEST[dtype]
        self.count = torch.zeros(256 if dtype == torch.uint8 else 65536, dtype=torch.long)

    def add(self, x: Tensor) -> None:
        self.count += torch.bincount(x.int() - self.lowest, minlength=len(self.count))

    @property
    def moments(self) -> tuple[float, ...]:
        count = self.count.double()
        levels = torch.arange(len(count)).double() + self.lowest
        mean = (count @ levels) / count.sum()
        scale = ((count @ (levels - mean) ** 2) / count.sum()).sqrt()
        seen = levels[count > 0]
        return float(mean), float(scale) or 1.0, float(seen[0]), float(seen[-1])


def levels(column: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """The different values of a column (N,), sorted, as float64, and how often each occurs; a
    missing number counts as infinity. None if there are more than `most`."""
    if column.dtype == torch.int64 and len(column):
        low, high = (int(end) for end in column.aminmax())
        if high - low < FEW_CODES:  # codes of names
            every = torch.zeros(high - low + 1, dtype=torch.long)
            for part in column.split(PIECE):
                every += (part - low).bincount(minlength=len(every))
            found = every.nonzero()[:, 0]
            return None if len(found) > most else ((found + low).double(), every[found])
    values, counts = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.long)
    for part in column.split(PIECE):
        found, count = as_ranks(part).unique(return_counts=True)
        values, place = torch.cat([values, found]).unique(return_inverse=True)
        counts = torch.zeros(len(values), dtype=torch.long).index_add_(
            0, place, torch.cat([counts, count])
        )
        if len(values) > most:
            return None
    return values, counts


def as_ranks(column: Tensor) -> Tensor:
    """Codes as float64 whose order and equality is that of the cells; a missing number is the
    largest."""
    return column.double().nan_to_num(torch.inf)
