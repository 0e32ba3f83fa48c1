"""Fields whose rows are sequences, possibly of different lengths."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from ...core.config import Range
from ...core.deferred import torch
from ...core.errors import DataError
from ...core.space import Space
from ..packed import Ragged, statistics
from .base import Codec, Locator
from .scalar import EXACT, finite, refuse, whole_numbers

if TYPE_CHECKING:
    from torch import Tensor


class SequenceCodec(Codec, abc.ABC):
    """Rows (T, *step); the statistics are those of the existing steps, without padding."""

    kind: Literal["real", "binary", "levels", "counts", "tokens"]
    """Kind of the numbers."""
    size: int = 0
    """Number of levels."""
    step: tuple[int, ...] = ()
    """The shape of one step."""
    longest: Annotated[int, Range(1)]
    """Steps of the longest row."""
    varies: bool
    """Whether some row is shorter."""

    @abc.abstractmethod
    def encode(self, values: np.ndarray, at: Locator) -> Ragged:
        """Concatenate an object array of rows."""

    @abc.abstractmethod
    def describe(self, rows: Ragged) -> str:
        """A short description of the rows."""

    def measure(self, x: Ragged, name: str) -> Space:
        steps = x.steps
        groups = self.step[0] if len(self.step) == 1 else 1
        found = statistics(steps, groups)
        for end in ("mean", "low", "high"):
            found[end] = tuple(value + x.base for value in found[end])
        found["rows"] = len(x)
        return Space(
            kind=self.kind,
            shape=(self.longest, *self.step),
            size=self.size,
            name=name,
            varies=self.varies,
            **found,
        )

    def adopt(self, other: Codec, x: Any, name: str) -> Ragged:
        """Rows encoded by `other`, converted to this codec; DataError if they do not fit."""
        if (
            not isinstance(other, SequenceCodec)
            or not isinstance(x, Ragged)
            or other.step != self.step
        ):
            raise DataError(
                f"{name} does not have steps of shape {self.step} as the run has; give "
                "rows of such steps"
            )
        longest, shortest = int(x.length.max()), int(x.length.min())
        if longest > self.longest:
            raise DataError(
                f"{name} has a row of {longest} steps where the run has at most "
                f"{self.longest}; write the name of the data with +cut{self.longest}"
            )
        if not self.varies and shortest < self.longest:
            raise DataError(
                f"{name} has a row of {shortest} steps where every row of the run has "
                f"{self.longest}; remove it"
            )
        return x


class Steps(SequenceCodec):
    """Sequences of numbers, from arrays."""

    tag = "codec/sequence"
    flags: tuple[int, ...] = ()
    """Channels of real steps that are 0 or 1 in all rows, beside others that are not."""

    @classmethod
    def fit(cls, values: np.ndarray, at: Locator) -> Steps:
        """Fit the codec to the types of the rows."""
        for row, steps in enumerate(values):
            if not len(steps):
                raise DataError(f"{at(row)} has no steps; remove it")
        dtype = np.result_type(*{steps.dtype for steps in values})
        ends = [(steps.min(), steps.max()) for steps in values]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        kind: Any = "counts" if max(abs(low), abs(high)) <= EXACT else "real"
        if dtype.kind == "f":
            kind = "real"
        elif low >= 0 and high <= 1:
            kind = "binary"
        elif dtype == np.uint8:
            kind = "levels"
        longest, varies = lengths(values)
        return cls(
            kind=kind,
            size=256 if kind == "levels" else 0,
            step=values[0].shape[1:],
            longest=longest,
            varies=varies,
            dtype=str(dtype),
            flags=find_flags(values) if kind == "real" else (),
        )

    def measure(self, x: Ragged, name: str) -> Space:
        return replace(super().measure(x, name), flags=self.flags)

    def encode(self, values: np.ndarray, at: Locator) -> Ragged:
        owner = np.repeat(np.arange(len(values)), [len(row) for row in values])
        steps = finite(np.concatenate(list(values)).astype(np.float64), lambda i: at(owner[i]))
        rows = Ragged.join([torch.from_numpy(row.astype(np.float32)) for row in values])
        return self.keep(rows, steps, lambda i: at(owner[i]))

    def keep(self, x: Ragged, steps: np.ndarray, at: Locator) -> Ragged:
        """Steps in the smallest type of their kind."""
        if self.kind == "real":
            for channel in self.flags:
                flag = steps[:, channel]
                refuse((flag != 0) & (flag != 1), flag, at, "is not 0 or 1")
            return x
        refuse(steps != np.rint(steps), steps, at, "has a fraction where whole numbers belong")
        if self.kind == "counts":
            return x
        top = max(self.size - 1, 1)
        refuse((steps < 0) | (steps > top), steps, at, f"is not a whole number from 0 to {top}")
        return x.change(x.flat.byte())

    def adopt(self, other: Codec, x: Any, name: str) -> Ragged:
        rows = super().adopt(other, x, name)
        whole = rows.change(rows.flat.float())
        return self.keep(whole, whole.flat.double().numpy(), lambda _: name)

    def decode(self, x: np.ndarray) -> np.ndarray:
        dtype = np.dtype(self.dtype)
        if self.kind == "binary":
            return (x > 0.5).astype(dtype)
        if dtype.kind not in "iu":
            x = x.astype(dtype)
            x[..., list(self.flags)] = x[..., list(self.flags)] > 0.5
            return x
        return whole_numbers(np.clip(x, 0, self.size - 1) if self.size else x, dtype)

    def describe(self, rows: Ragged) -> str:
        return f"{spread(rows.length)} steps"


def find_flags(rows: Iterable[np.ndarray]) -> tuple[int, ...]:
    """The channels of rows (T, C) that are 0 or 1 and take both values; none if all are."""
    steps = np.concatenate(list(rows))
    if steps.ndim != 2:
        return ()
    binary = [bool(((c == 0) | (c == 1)).all() and c.min() < c.max()) for c in steps.T]
    return () if all(binary) else tuple(i for i, flag in enumerate(binary) if flag)


def lengths(rows: Iterable[Any]) -> tuple[int, bool]:
    """The length of the longest row, and whether some row is shorter."""
    found = {len(row) for row in rows}
    return max(found), len(found) > 1


def spread(length: Tensor, unit: float = 1) -> str:
    """The range of lengths as text, divided by `unit`."""
    low, high = (
        f"{float(end) / unit:.3g}" if unit != 1 else str(int(end)) for end in length.aminmax()
    )
    return low if low == high else f"{low} to {high}"


def uneven(rows: Iterable[Any]) -> np.ndarray | None:
    """Rows that differ only in length, as an object array of arrays; None for others."""
    arrays = [row if isinstance(row, np.ndarray) else np.asarray(row) for row in rows]
    if not arrays or any(a.ndim == 0 or a.dtype.kind not in "biuf" for a in arrays):
        return None
    if len({a.shape[1:] for a in arrays}) > 1 or len({len(a) for a in arrays}) == 1:
        return None
    return pack(arrays)


def pack(arrays: Collection[np.ndarray]) -> np.ndarray:
    """An object array whose entries are these rows, whatever their shapes."""
    found = np.empty(len(arrays), object)
    for row, steps in enumerate(arrays):
        found[row] = steps
    return found


def is_uneven(values: np.ndarray) -> bool:
    """Whether an object array holds sequences rather than single values."""
    return (
        values.dtype.kind == "O"
        and values.ndim == 1
        and len(values) > 0
        and isinstance(values[0], np.ndarray)
    )
