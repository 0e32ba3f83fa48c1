"""Codecs of single values: numbers, binary values and categories.

A codec is fitted once and stored with a run. It reads other data in the same way, or reports the
cell that does not fit. Among stored rows a missing number is NaN and a missing category is -1.

Numbers that are large compared with their spread, such as seconds since 1970, are stored minus an
offset, as float32 has too few digits for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ...core.errors import DataError, UsageError, shown
from ...core.space import Space
from ..packed import statistics
from .base import Codec, Locator

MISSING = "(missing)"
"""The name of missing values if they are a category."""
FLAGS = ({"false", "true"}, {"no", "yes"}, {"n", "y"}, {"f", "t"}, {"off", "on"})
EXACT = 2**24
"""Whole numbers up to this are exact in float32."""
ROUNDING = 2.0**-24
"""The largest relative change of a number that is rounded to float32."""
EXACT_FLOAT64 = 2**53
"""Whole numbers up to this are exact in float64."""
MAX_DECIMALS = 6
"""Most decimals of a column whose samples are rounded like its numbers."""
PIECE = 2**20
"""Rows of a long column that are processed at once."""
FIRST = 2**12
"""Rows that are looked at before all."""


class Number(Codec):
    """A real or whole number."""

    tag = "codec/number"
    kind: Literal["real", "counts"]
    """Whether fractions occur."""
    decimals: int | None = None
    """Decimals that the numbers have at most, to which samples are rounded; None for no limit."""
    lenient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if numpy_dtype(self.dtype).kind not in "iuf":
            raise UsageError(f"expected a type of numbers, found dtype={shown(self.dtype)}")

    def encode(self, values: np.ndarray, at: Locator) -> np.ndarray:
        found = finite(numbers(values, at, self.lenient), at)
        if self.kind == "counts":
            refuse(found != np.rint(found), found, at, "has a fraction where whole numbers belong")
        return found.astype(np.float32)

    def decode(self, x: np.ndarray) -> np.ndarray:
        dtype = numpy_dtype(self.dtype)
        if dtype.kind == "f":
            whole = np.rint(x) if self.kind == "counts" else x
            if dtype.itemsize <= 4:
                return whole.astype(dtype)
            found = shortest(whole)
            return found if self.decimals is None else np.round(found, self.decimals)
        return whole_numbers(x, dtype)

    def measure(self, x: np.ndarray, name: str) -> Space:
        return Space(kind=self.kind, name=name, **statistics(x, 1))


class LenientNumber(Number):
    """A number; text is read as a missing cell."""

    tag = "codec/lenient_number"
    lenient = True


class Binary(Codec):
    """One of two values; the second is encoded as 1."""

    tag = "codec/binary"
    values: tuple[str, str] = ("0", "1")
    """The two values as text."""

    @property
    def is_text(self) -> bool:
        """Whether the two values are text rather than numbers or booleans."""
        return numpy_dtype(self.dtype).kind == "O"

    def encode(self, values: np.ndarray, at: Locator) -> np.ndarray:
        if self.is_text:
            codes = look_up(values, self.values, at).astype(np.float32)
            return np.where(codes < 0, np.nan, codes).astype(np.float32)
        found = numbers(truths(values), at)
        strange = ~np.isnan(found) & (found != 0) & (found != 1)
        refuse(strange, found, at, f"is neither {' nor '.join(self.values)}")
        return found.astype(np.float32)

    def decode(self, x: np.ndarray) -> np.ndarray:
        if self.is_text:
            return choose(np.array(self.values, object), codes_of(x))
        holes = np.isnan(x)
        return (
            np.where(holes, np.nan, x > 0.5)
            if holes.any()
            else (x > 0.5).astype(numpy_dtype(self.dtype))
        )

    def measure(self, x: np.ndarray, name: str) -> Space:
        return Space(kind="binary", name=name, **statistics(x, 1))


class Categorical(Codec):
    """One of several categories without order."""

    tag = "codec/categorical"
    names: tuple[str, ...]
    """The names as text; the code of a name is its place."""
    category: Literal["", "unordered", "ordered"] = ""
    """Whether they were a pandas categorical."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            _ = self.typed
        except (ValueError, TypeError, OverflowError):
            raise UsageError(
                f"expected names of dtype={shown(self.dtype)}, found {shown(self.names)}"
            ) from None

    @classmethod
    def fit(cls, values: np.ndarray, dtype: str, blank: bool = False) -> Categorical:
        """Fit the sorted distinct values; `blank` adds a category for missing values."""
        found = sort({spelled(value) for value in distinct(values)[0]})
        return cls(names=(*found, *((MISSING,) if blank else ())), dtype=dtype)

    @property
    def typed(self) -> np.ndarray:
        """The categories in the type of the data."""
        dtype = numpy_dtype(self.dtype)
        names = [name for name in self.names if name != MISSING]
        # booleans beside empty cells are read as 0 and 1
        return np.isin(names, ("True", "1")) if dtype.kind == "b" else np.array(names, dtype)

    def encode(self, values: np.ndarray, at: Locator) -> np.ndarray:
        return look_up(values, self.names, at)

    def decode(self, x: np.ndarray) -> np.ndarray:
        codes = codes_of(x)
        if MISSING in self.names:
            codes = np.where(codes == self.names.index(MISSING), -1, codes)
        return choose(self.typed, codes)

    def measure(self, x: np.ndarray, name: str) -> Space:
        size = len(self.names)
        return Space(
            kind="label",
            size=size,
            name=name,
            rows=len(x),
            high=(float(size - 1),),
            missing=bool((x < 0).any()),
            optional=MISSING in self.names,
        )


def known_names(codec: Codec) -> tuple[str, ...] | None:
    """The names that a codec reads; None if it reads something else."""
    if isinstance(codec, Binary) and codec.is_text:
        return codec.values
    return codec.names if isinstance(codec, Categorical) else None


def refuse(wrong: np.ndarray, values: np.ndarray, at: Locator, why: str) -> None:
    """DataError for the first row where `wrong` is true; NaN is never wrong."""
    if not wrong.any() or not (wrong := wrong & ~np.isnan(values)).any():
        return
    place = tuple(np.argwhere(wrong)[0])
    raise DataError(f"{at(place[0])}: {values[place]:.12g} {why}; fix the cell or remove the row")


def finite(values: np.ndarray, at: Locator) -> np.ndarray:
    """`values`, after checking that all are finite in float32."""
    most = np.finfo(np.float32).max
    if values.dtype.kind == "f" and values.size:
        low, high = np.fmin.reduce(values, None), np.fmax.reduce(values, None)  # NaN if all are
        if -most <= low and high <= most:
            return values
    refuse(np.isinf(values), values, at, "is not finite")
    refuse(np.abs(values) > most, values, at, "is too large for float32")
    return values


def blurred(column: np.ndarray) -> int | None:
    """The first of the numbers (N,) that float32 changes by more than 1e-3 of their spread."""
    spread = Spread()
    for _, part in pieces(column):
        cells = numbers(part, str)  # cells that are Python objects may be None
        empty = np.isnan(cells)
        spread = spread.joined(Spread.of(cells[~empty] if empty.any() else cells))
    limit = 1e-3 * spread.deviation
    if spread.low >= spread.high or max(-spread.low, spread.high) * ROUNDING <= limit:
        return None
    for start, part in pieces(column):
        cells = numbers(part, str)
        wrong = np.abs(cells - cells.astype(np.float32)) > limit
        if wrong.any():
            return start + int(np.argmax(wrong))
    return None


@dataclass(frozen=True)
class Spread:
    """Count, mean, sum of squared distances from it, smallest and largest of some numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = np.inf
    high: float = -np.inf

    @classmethod
    def of(cls, x: np.ndarray) -> Spread:
        if not len(x):
            return cls()
        mean = float(x.mean())
        apart = x - mean
        squares = float(np.square(apart, out=apart).sum())
        return cls(len(x), mean, squares, float(x.min()), float(x.max()))

    def joined(self, other: Spread) -> Spread:
        """Of the numbers of both (Chan, Golub and LeVeque 1979)."""
        if not self.count or not other.count:
            return self if self.count else other
        count, apart = self.count + other.count, other.mean - self.mean
        return Spread(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    @property
    def deviation(self) -> float:
        return (self.squares / max(self.count, 1)) ** 0.5


def pieces(values: Any) -> Iterator[tuple[int, Any]]:
    """The rows of a long column some at a time, each time with the number of the first."""
    for start in range(0, len(values), PIECE):
        yield start, values[start : start + PIECE]


def every(values: np.ndarray, holds: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether all values have a property, found for some at a time, for few of them first."""
    first, rest = values[:FIRST], values[FIRST:]
    return bool(holds(first).all()) and all(bool(holds(part).all()) for _, part in pieces(rest))


def exact_enough(blocks: Callable[[], Iterator[tuple[int, np.ndarray]]], at: Locator) -> None:
    """DataError if float32 would change an entry too much; `blocks` yields the rows of an array
    (N, ...) some at a time, with the number of the first."""
    spread: Spreads | None = None
    for start, block in blocks():
        cells = finite(block.astype(np.float64, copy=False), lambda row: at(start + row))  # noqa: B023
        here = Spreads.of(cells.reshape(len(cells), -1))
        spread = here if spread is None else spread.joined(here)
    if spread is None:
        return
    limit = 1e-3 * spread.deviation
    most = np.maximum(-spread.low, spread.high)
    doubtful = np.flatnonzero((spread.low < spread.high) & (most * ROUNDING > limit))
    for start, block in blocks() if len(doubtful) else ():
        cells = block.reshape(len(block), -1)[:, doubtful].astype(np.float64)
        wrong = np.argwhere(np.abs(cells - cells.astype(np.float32)) > limit[doubtful])
        if len(wrong):
            row, column = wrong[0]
            raise DataError(
                f"{at(start + int(row))}: {cells[row, column]:.17g} needs more digits than "
                "float32 has for the spread of its column; subtract an offset from the column"
            )


@dataclass(frozen=True)
class Spreads:
    """The same of each column of a block (N, D), as arrays (D,); NaN is left out."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Spreads:
        seen = ~np.isnan(x)
        count = seen.sum(0)
        mean = np.where(seen, x, 0).sum(0) / np.maximum(count, 1)
        squares = np.square(np.where(seen, x - mean, 0)).sum(0)
        low, high = np.where(seen, x, np.inf).min(0), np.where(seen, x, -np.inf).max(0)
        return cls(count, mean, squares, low, high)

    def joined(self, other: Spreads) -> Spreads:
        count, apart = self.count + other.count, other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        return Spreads(
            count,
            self.mean + apart * share,
            self.squares + other.squares + apart**2 * self.count * share,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @property
    def deviation(self) -> np.ndarray:
        return (self.squares / np.maximum(self.count, 1)) ** 0.5


def numbers(values: np.ndarray, at: Locator, lenient: bool = False) -> np.ndarray:
    """Values as float64; missing ones are NaN, and text too if `lenient`."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64, copy=False)
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if blank(value):
            continue
        try:
            found[row] = float(value)
        except (TypeError, ValueError):
            if lenient:
                continue
            raise DataError(
                f"{at(row)}: {value!r} is text where a number belongs; fix the cell "
                "or leave it empty"
            ) from None
    return found


def truths(values: np.ndarray) -> np.ndarray:
    """Booleans written as text as 1 and 0; other values unchanged."""
    if values.dtype.kind in "biuf":
        return values
    known = {"true": 1.0, "false": 0.0}
    return np.array([known.get(str(v).strip().lower(), v) for v in values], object)


class CodedCells:
    """A column of text as the places of its cells among the different ones: in place of an array
    of objects, which takes many times the memory."""

    dtype = np.dtype(object)

    def __init__(self, values: np.ndarray, place: np.ndarray) -> None:
        self.values, self.place = values, place  # (K,) objects; (N,), -1 for an empty cell

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            return CodedCells(self.values, self.place[rows])
        return np.append(self.values, [None])[self.place[rows]]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.append(self.values, [None])[self.place])


def distinct(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values, and the index of each row's value; -1 if it is missing."""
    if isinstance(values, CodedCells):
        return values.values, values.place
    if values.dtype.kind in "biuf":
        found, place = np.unique(values, return_inverse=True)
        seen = ~np.isnan(found)  # NaN sorts last
        return found[seen], np.where(place < seen.sum(), place, -1)
    import pandas as pd

    try:
        place, found = pd.factorize(values)
    except TypeError:  # lists and dicts have no hash
        odd = next((value for value in values if not isinstance(value, str | float)), values[0])
        raise DataError(
            f"expected numbers, text or dates as values, found {shown(odd)}; convert them to text"
        ) from None
    return np.asarray(found), place


def spelled(value: Any) -> str:
    """A value as the name of a category: stripped, a whole float without its point."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def blank(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, float | np.floating) and np.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def sort(names: set[str]) -> list[str]:
    """Sorted as numbers if all are numbers, otherwise as text."""
    letters = sorted(names)
    try:
        return sorted(letters, key=float)
    except ValueError:
        return letters


def look_up(values: np.ndarray, names: tuple[str, ...], at: Locator) -> np.ndarray:
    """The index of each value among the names, int64; -1 if it is missing."""
    found, place = distinct(values)
    code = {name: number for number, name in enumerate(names)}
    known = [code.get(spelled(value), -2) for value in found]
    codes = np.array([*known, code.get(MISSING, -1)], np.int64)[place]  # index -1 is the last
    strange = np.flatnonzero(codes == -2)
    if len(strange):
        raise DataError(
            f"{at(strange[0])}: {spelled(values[strange[0]])!r} is not among the "
            f"known categories ({listed(names)}); fix the cell or remove the row"
        )
    return codes


def listed(names: Iterable[Any], most: int = 8) -> str:
    """Names for a message; only the first few if there are many."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f", ... ({len(texts)})" if len(texts) > most else "")


def codes_of(x: np.ndarray) -> np.ndarray:
    """Codes, possibly floats, as integers; -1 for NaN."""
    return np.rint(np.where(np.isnan(x), -1, x)).astype(np.int64) if x.dtype.kind == "f" else x


def choose(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """values[codes]; None for code -1."""
    if (codes >= 0).all():
        return values[codes]
    padded = np.append(values.astype(object), [None])  # index -1 is the last
    return (
        padded[codes]
        if values.dtype.kind == "O"
        else np.where(codes < 0, np.nan, values[codes]).astype(np.float64)
    )


def numpy_dtype(name: str) -> np.dtype:
    """The numpy type of a stored name, including pandas' nullable types; object for text."""
    found = re.match(r"(u?int|float)\d+|bool", name.lower())
    return np.dtype(found.group() if found else object)


def shortest(x: np.ndarray) -> np.ndarray:
    """float64 with the fewest digits that round to the same float32: 0.1, not 0.10000000149."""
    return x.astype(np.float32).astype(str).astype(np.float64)


def whole_numbers(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The nearest whole numbers of this type; they stay floats if some are NaN."""
    limits = np.iinfo(dtype)
    top = np.nextafter(float(limits.max), 0) if limits.bits == 64 else float(limits.max)
    found = np.clip(np.rint(x.astype(np.float64)), float(limits.min), top)
    return found if np.isnan(found).any() else found.astype(dtype)


class Offset(Number):
    """A number minus an offset."""

    tag = "codec/offset_number"
    offset: int | float
    """The offset, which does not change log-likelihoods. If values exceed 2^53 it is whole and the
    arithmetic is exact."""

    def encode(self, values: np.ndarray, at: Locator) -> np.ndarray:
        if isinstance(self.offset, int):
            return super().encode(subtract(values, self.offset, at), at)
        return super().encode(finite(numbers(values, at), at) - self.offset, at)

    def decode(self, x: np.ndarray) -> np.ndarray:
        dtype = numpy_dtype(self.dtype)
        if isinstance(self.offset, int):
            return add(x, self.offset, dtype)
        close = np.rint(x).astype(np.float64) if self.kind == "counts" else shortest(x)
        moved = close + self.offset
        if dtype.kind != "f":
            return whole_numbers(moved, dtype)
        return (moved if self.decimals is None else np.round(moved, self.decimals)).astype(dtype)


def subtract(values: np.ndarray, offset: int, at: Locator) -> np.ndarray:
    """values - offset as float64, exact for whole numbers of any size; NaN if missing."""
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values.tolist()):
        if blank(value):
            continue
        try:
            found[row] = int(value) - offset
        except ValueError:
            raise DataError(
                f"{at(row)}: expected a whole number, found {value!r}; fix the cell or leave it "
                "empty"
            ) from None
    refuse(
        np.abs(found) > EXACT,
        found,
        at,
        f"from {offset} is farther than the {EXACT} that float32 holds exactly",
    )
    return found


def add(x: np.ndarray, offset: int, dtype: np.dtype) -> np.ndarray:
    """The whole numbers round(x) + offset that the type can hold, exact; None if x is NaN."""
    limits, seen = np.iinfo(dtype), ~np.isnan(x)
    moved = np.full(len(x), None, object)
    steps = np.rint(x[seen].astype(np.float64)).astype(np.int64).tolist()
    moved[seen] = [min(max(step + offset, limits.min), limits.max) for step in steps]
    return moved.astype(dtype) if seen.all() else moved


def decimals_of(values: np.ndarray) -> int | None:
    """The decimals that all numbers have at most; None for more than `MAX_DECIMALS`."""
    for decimals in range(MAX_DECIMALS + 1):
        if every(values, lambda some: np.round(some, decimals) == some):  # noqa: B023
            return decimals
    return None


def is_large(values: np.ndarray) -> bool:
    """Whether some whole number exceeds those that are exact in float64."""
    if values.dtype.kind not in "iu" or not len(values):
        return False
    return int(values.max()) > EXACT_FLOAT64 or int(values.min()) < -EXACT_FLOAT64


def fit_large(values: np.ndarray, dtype: str) -> Offset | None:
    """The codec of whole numbers beyond 2^53; None if their range is too wide for exact distances
    in float32."""
    low, high = int(values.min()), int(values.max())
    if high - low > EXACT:
        return None
    return Offset(kind="counts", dtype=dtype, offset=int(middle(values)))


def fit(values: np.ndarray, dtype: str) -> Offset:
    """The codec of the numbers of a column: whole numbers stay whole if they fit."""
    offset = float(middle(values))
    whole = "int" in dtype.lower() and max(values.max() - offset, offset - values.min()) <= EXACT
    kind: Literal["counts", "real"] = "counts" if whole else "real"
    decimals = None if whole else decimals_of(values)
    return Offset(kind=kind, dtype=dtype, offset=offset, decimals=decimals)


def middle(values: np.ndarray) -> Any:
    """The median of the different values."""
    known = np.unique(values)
    return known[len(known) // 2]
