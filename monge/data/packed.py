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
PIECE = 2**22
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


def missing_counts(rows: PackedTensor) -> Tensor | None:
    """Number of missing cells of each row, (N,); None for a type without missing values."""
    mask = is_missing(rows.flat if isinstance(rows, Ragged) else rows)
    if mask is None:
        return None
    if isinstance(rows, Tensor):
        return mask.reshape(len(mask), -1).sum(1)
    each = mask.reshape(len(mask), -1).sum(1)
    total = torch.cat([torch.zeros(1, dtype=torch.long), each.cumsum(0)])
    return total[rows.start + rows.length] - total[rows.start]


def has_missing(rows: PackedTensor) -> bool:
    """Whether a cell of any row is missing."""
    if isinstance(rows, Ragged):
        found = missing_counts(rows)
        return found is not None and bool(found.any())
    parts = rows.split(PIECE) if len(rows) else ()
    return any(mask is not None and bool(mask.any()) for mask in map(is_missing, parts))


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


def statistics(x: Tensor, groups: int) -> Statistics:
    """Statistics of rows x (N, groups * anything); NaN counts as missing."""
    parts = [group.flatten() for group in x.reshape(len(x), groups, -1).unbind(1)]
    found = [of_levels(part) if x.dtype in LOWEST else of_numbers(part) for part in parts]
    mean, scale, low, high = (tuple(column) for column in zip(*found, strict=True))
    return Statistics(
        mean=mean,
        scale=scale,
        low=low,
        high=high,
        rows=len(x),
        missing=x.is_floating_point() and bool(x.isnan().any()),
    )


def of_numbers(x: Tensor) -> tuple[float, ...]:
    """mean, scale, low, high; those of zeros if all are missing. Of a long column the moments of
    its pieces are joined (Chan, Golub and LeVeque 1979)."""
    count, mean, variance, low, high = 0, 0.0, 0.0, math.inf, -math.inf
    for part in x.split(PIECE):
        seen = part[~part.isnan()].double()
        if not len(seen):
            continue
        share, (least, most) = len(seen) / (count + len(seen)), seen.aminmax()
        apart, within = float(seen.mean()) - mean, float(seen.var(correction=0))
        variance += share * (within - variance) + share * (1 - share) * apart**2
        mean += share * apart
        count, low, high = count + len(seen), min(low, float(least)), max(high, float(most))
    if not count:
        return 0.0, 1.0, 0.0, 0.0
    return mean, variance**0.5 if low < high else 1.0, low, high


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


def of_levels(x: Tensor) -> tuple[float, ...]:
    """The same for integers of 8 or 16 bits, from the counts of the values."""
    low, size = LOWEST[x.dtype], 256 if x.dtype == torch.uint8 else 65536
    parts = x.split(PIECE) if len(x) else [x]
    count = torch.stack([torch.bincount(part.int() - low, minlength=size) for part in parts])
    count = count.sum(0).double()
    levels = torch.arange(size).double() + low
    mean = (count @ levels) / count.sum()
    scale = ((count @ (levels - mean) ** 2) / count.sum()).sqrt()
    seen = levels[count > 0]
    return float(mean), float(scale) or 1.0, float(seen[0]), float(seen[-1])
