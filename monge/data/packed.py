"""How the rows of a field are stored, and the statistics of them.

A field of one value per row is an array of numpy, from which a description is made without torch.
One of vectors or images is a tensor, one whose rows differ in length is `Ragged`. All are tensors
in batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Union

import numpy as np

from ..core.deferred import torch

if TYPE_CHECKING:
    from torch import Tensor

LOWEST = {"uint8": 0, "int16": -(2**15)}
"""The types whose values are counted, with the smallest value of each."""
PIECE = 2**20
"""Numbers processed at once."""
FEW_CODES = 2**16
"""Codes of names up to which each is counted in a place of its own."""


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length, concatenated in one tensor and padded only in batches: row i is
    flat[start[i] : start[i] + length[i]]; a stored v stands for v + base."""

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

    def __getitem__(self, rows: Tensor | np.ndarray) -> Ragged:
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
        self, rows: Tensor, dtype: torch.dtype | None = None, shift: Tensor | int = 0
    ) -> tuple[Tensor, Tensor]:
        """The values of some rows, (B, T, *step) with zeros after the end, and their lengths; T is
        the longest of these. Rows start `shift` (B,) steps later and end as much later."""
        start, length = self.start[rows] + shift, self.length[rows]
        step = torch.arange(int(length.max()) if len(length) else 0)
        exists = step < length[:, None]  # (B, T)
        place = (start[:, None] + step).where(exists, 0)
        x = self.flat[place].to(dtype or torch.float32) + self.base  # (B, T, *step)
        exists = exists.reshape(*exists.shape, *(1,) * (x.ndim - 2))
        return x.masked_fill_(~exists, 0), length

    def change(self, flat: Tensor, base: int = 0) -> Ragged:
        """The same rows with other values of the steps."""
        return Ragged(flat, self.start, self.length, base)


PackedTensor = Union["Tensor", Ragged]
"""The rows of a field as tensors, of which batches are made."""
FieldRows = Union[np.ndarray, "Tensor", Ragged]
"""The rows of a field as they are stored."""


def as_tensor(rows: FieldRows) -> PackedTensor:
    """Stored rows as tensors; an array is not copied."""
    return torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows


class AsTensors(Mapping[str, PackedTensor]):
    """The fields of a dataset as tensors, made of what is stored when they are used."""

    def __init__(self, fields: Mapping[str, FieldRows]) -> None:
        self.fields = fields

    def __getitem__(self, name: str) -> PackedTensor:
        return as_tensor(self.fields[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


def dtype_name(x: Any) -> str:
    """The type of the numbers of an array or a tensor: float32, int64, ..."""
    return str(x.dtype).removeprefix("torch.")


def is_missing(x: Any) -> Any:
    """Which entries of an array or a tensor are missing; None for a type without missing
    values."""
    name = dtype_name(x)
    if "float" in name:
        return np.isnan(x) if isinstance(x, np.ndarray) else x.isnan()
    return x < 0 if name == "int64" else None


def marks_missing(x: Any) -> bool:
    """Whether entries of this type can be missing."""
    return "float" in dtype_name(x) or dtype_name(x) == "int64"


def missing_counts(rows: FieldRows) -> np.ndarray | None:
    """Number of missing cells of each row, (N,); None for a type without missing values."""
    if not marks_missing(rows.flat if isinstance(rows, Ragged) else rows):
        return None
    if not isinstance(rows, Ragged):
        return np.concatenate([count_missing(part) for part in some_rows(rows)])
    total = np.concatenate([[0], count_missing(rows.flat).cumsum()])
    start, length = rows.start.numpy(), rows.length.numpy()
    return total[start + length] - total[start]


def count_missing(x: Any) -> np.ndarray:
    mask = np.asarray(is_missing(x))
    return mask.reshape(len(mask), -1).sum(1)


def has_missing(rows: FieldRows) -> bool:
    """Whether a cell of any row is missing."""
    if isinstance(rows, Ragged):
        found = missing_counts(rows)
        return found is not None and bool(found.any())
    return marks_missing(rows) and any(bool(is_missing(part).any()) for part in some_rows(rows))


def some_rows(x: Any) -> Iterator[Any]:
    """The rows of an array or a tensor (N, *row), or of what stands for one, some at a time."""
    size = max(1, PIECE // max(math.prod(x.shape[1:]), 1))
    if not len(x):
        return iter([x[:0]])
    return pieces(x, size) if isinstance(x, np.ndarray) else iter(x.split(size))


def pieces(x: np.ndarray, size: int | None = None) -> Iterator[np.ndarray]:
    """The rows of an array some at a time."""
    size = size or PIECE
    return (x[start : start + size] for start in range(0, len(x), size))


class Chosen:
    """Some rows of a field (N, *row), which are taken only when they are used: what was read of a
    file does not stay in memory."""

    def __init__(self, fields: Mapping[str, Any], name: str, index: np.ndarray) -> None:
        self.fields, self.name, self.index = fields, name, torch.from_numpy(index)
        rows = fields[name]
        self.dtype, self.shape = rows.dtype, (len(index), *rows.shape[1:])

    def __len__(self) -> int:
        return len(self.index)

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


def single_columns(fields: Mapping[str, FieldRows]) -> Mapping[str, np.ndarray]:
    """The fields of one value per row."""
    return Picked(fields, [name for name, rows in fields.items() if isinstance(rows, np.ndarray)])


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
    """Statistics of rows x (N, groups * anything), an array, a tensor or what stands for one; NaN
    counts as missing."""
    kind = dtype_name(x)
    found: list[Any] = [
        LevelMoments(kind) if kind in LOWEST else NumberMoments() for _ in range(groups)
    ]
    missing = False
    for some in some_rows(x):
        rows = np.asarray(some)
        missing |= rows.dtype.kind == "f" and bool(np.isnan(rows).any())
        parts = rows.reshape(len(rows), groups, -1)
        for place, each in enumerate(found if len(rows) else ()):
            each.add(parts[:, place].ravel())
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

    def add(self, x: np.ndarray) -> None:
        empty = np.isnan(x)
        seen = (x[~empty] if empty.any() else x).astype(np.float64)
        if not len(seen):
            return
        share = len(seen) / (self.count + len(seen))
        apart, within = float(seen.mean()) - self.mean, float(seen.var())
        self.variance += share * (within - self.variance) + share * (1 - share) * apart**2
        self.mean += share * apart
        self.count += len(seen)
        self.low, self.high = min(self.low, float(seen.min())), max(self.high, float(seen.max()))

    @property
    def moments(self) -> tuple[float, ...]:
        if not self.count:
            return 0.0, 1.0, 0.0, 0.0
        scale = self.variance**0.5 if self.low < self.high else 1.0
        return self.mean, scale, self.low, self.high


class LevelMoments:
    """The same of integers of 8 or 16 bits, from the counts of the values."""

    def __init__(self, kind: str) -> None:
        self.lowest = LOWEST[kind]
        self.count = np.zeros(256 if kind == "uint8" else 65536, np.int64)

    def add(self, x: np.ndarray) -> None:
        self.count += np.bincount(x.astype(np.int32) - self.lowest, minlength=len(self.count))

    @property
    def moments(self) -> tuple[float, ...]:
        count = self.count.astype(np.float64)
        levels = np.arange(len(count)) + float(self.lowest)
        mean = (count @ levels) / count.sum()
        scale = np.sqrt((count @ (levels - mean) ** 2) / count.sum())
        seen = levels[count > 0]
        return float(mean), float(scale) or 1.0, float(seen[0]), float(seen[-1])


def levels(column: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The different values of a column (N,), sorted, as float64, and how often each occurs; a
    missing number counts as infinity. None if there are more than `most`."""
    if column.dtype == np.int64 and len(column):
        low, high = int(column.min()), int(column.max())
        if high - low < FEW_CODES:  # codes of names
            every = np.zeros(high - low + 1, np.int64)
            for part in pieces(column):
                every += np.bincount(part - low, minlength=len(every))
            found = np.flatnonzero(every)
            return None if len(found) > most else ((found + low).astype(float), every[found])
    values, counts = np.empty(0), np.empty(0, np.int64)
    for part in pieces(column):
        found, count = np.unique(as_ranks(part), return_counts=True)
        values, place = np.unique(np.concatenate([values, found]), return_inverse=True)
        both, counts = np.concatenate([counts, count]), np.zeros(len(values), np.int64)
        np.add.at(counts, place, both)
        if len(values) > most:
            return None
    return values, counts


def as_ranks(column: np.ndarray) -> np.ndarray:
    """Codes as float64 whose order and equality is that of the cells; a missing number is the
    largest."""
    ranks = column.astype(np.float64)
    return np.where(np.isnan(ranks), np.inf, ranks)
