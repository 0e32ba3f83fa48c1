"""Tables: one field per column, each with its own kind of values.

Booleans and columns of only 0 and 1 are binary, other whole numbers are counts, other numbers are
real, dates are counted from the earliest, strings are categories (text if they are sentences). A
column of numbers with some text in it is refused, and so is a column of strings that hardly
repeat.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date as date_type
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import DataError, UsageError, nearest, shown
from ..codecs import date, scalar
from ..codecs.base import Codec, Locator
from ..codecs.date_format import find_format
from ..codecs.scalar import (
    EXACT,
    FLAGS,
    MISSING,
    Binary,
    Categorical,
    LenientNumber,
    Number,
    blurred,
    distinct,
    finite,
    is_large,
    listed,
    spelled,
)
from ..frames import is_frame
from ..options import Options
from ..packed import Picked
from . import arrow, delimited
from .base import JOIN_TABLES, Original, RawData, RowLocations, check_file, is_arrow
from .columns import Column, LazyColumns, StoredColumn, TextColumn

if TYPE_CHECKING:
    import pandas as pd


Cells = Any
"""A pandas Series, or what stands for one."""
NULLABLE = {"bool": "boolean"} | {
    f"{sign}int{bits}": f"{sign.upper()}Int{bits}"
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
"""The pandas types that can hold missing cells."""
TEXT_TYPES = ("object", "str", "string")
"""The types of a column of text."""
WRITTEN = {name: name for name in (*NULLABLE, "float32", "float64", *TEXT_TYPES)}
WRITTEN |= {nullable: name for name, nullable in NULLABLE.items()} | {"Float64": "float64"}
"""The types of columns that are written to a csv file without pandas, and how numpy calls them."""
MOMENT = "%Y-%m-%d %H:%M:%S"
"""Format of the times of a frame as text; times with a zone are written in UTC."""
YES = ("true", "yes", "y", "t", "on")
WRAPS = 2**63
"""Whole numbers from this on are categories, as they exceed int64."""
MOSTLY = 0.9
"""Share of cells that are numbers from which text among them is taken for a mistake."""


SIGNED_NUMBER = re.compile(
    r"[^\w\s.,+-]?\s?[-+]?\d{1,3}(?:[,.' ]?\d{3})*(?:[.,]\d+)?(?:\s?[^\w\s.,+-]|\s[^\W\d_]{1,3})?"
)
"""A number with a currency, a percent sign, a unit, or separators of thousands: $1,200, 12 kg."""
MOSTLY = 0.9
"""Share of the different cells of a column that are such numbers."""


class Unfit(DataError):
    """A column that cannot be read: `why`, which is listed with those of other columns."""

    def __init__(self, sentence: str, why: str, setting: str) -> None:
        super().__init__(sentence, setting)
        self.why = why

    @classmethod
    def drop(cls, name: str, why: str, more: str = "") -> Unfit:
        return cls(
            f"column {name!r} {why}; drop it with data.drop={name}{more}", why, f"drop={name}"
        )


def together(wrong: Mapping[str, Unfit]) -> DataError:
    """One error about all columns that cannot be read."""
    if len(wrong) == 1:
        return next(iter(wrong.values()))
    reasons = ", ".join(f"{name!r} {error.why}" for name, error in wrong.items())
    spare = [name for name, error in wrong.items() if error.settings == (f"drop={name}",)]
    drop = [f"drop={','.join(spare)}"] if spare else []
    text = ["text=missing"] if len(spare) < len(wrong) else []
    remedies = [f"drop them with data.{setting}" for setting in drop]
    remedies += [f"read text among numbers as missing with data.{setting}" for setting in text]
    return DataError(
        f"{len(wrong)} columns cannot be read as they are: {reasons}; {' and '.join(remedies)}",
        *drop,
        *text,
    )


def as_column(cells: np.ndarray) -> Cells:
    """Cells as a column of objects."""
    import pandas as pd

    return pd.Series(cells, dtype=object)


def is_frame_of_columns(what: Any) -> bool:
    return is_frame(what) and what.ndim == 2


@dataclass(frozen=True)
class TableFiles:
    """The files of a pattern such as big/*.parquet, whose rows are one table."""

    pattern: str
    paths: tuple[Path, ...]

    @property
    def name(self) -> str:
        return self.paths[0].resolve().parent.name


def read_file(path: Path, options: Options) -> RawData:
    check_file(path)
    return read_files([path], stem(path), options)


def read_files(
    paths: Sequence[Path], name: str, options: Options, folder: Path | None = None
) -> RawData:
    """The rows of files one after another as one table, whose columns are held in memory, or in
    files of a folder."""
    layouts = {} if is_arrow(paths[0]) else same_layouts(paths, options)
    known = layouts[paths[0]].columns if layouts else same_names(paths)
    columns: dict[str, Column] = {
        each: Column() if folder is None else StoredColumn(folder / f"{place}.cells")
        for place, each in enumerate(known)
    }
    notes: tuple[str, ...] = ()
    if layouts:
        found, notes = delimited.parse(list(layouts.items()), columns)
        lines = [delimited.listed(some) for some in found]
    else:
        counts = [arrow.read(path, columns, paths[0]) for path in paths]
        lines = [np.arange(1, count + 1, dtype=np.int32) for count in counts]
    places = RowLocations.join(
        [RowLocations.of(some, path.name) for some, path in zip(lines, paths, strict=True)]
    )
    values: Mapping[str, Any] = LazyColumns(columns)
    if folder is None:
        values = {each: columns.pop(each).series() for each in known}
    named = not layouts or layouts[paths[0]].named
    original = original_of(paths, name, options, known)
    return RawData(
        name, values, tuple(known), places, table=True, named=named, notes=notes, original=original
    )


def original_of(
    paths: Sequence[Path], name: str, options: Options, names: Sequence[str] = ()
) -> Original:
    """The rows of files as they are, which are read again when they are asked for, and refused if
    a file changed since: its rows would stand beside those of another."""
    states = [file_state(path) for path in paths]

    def require_unchanged() -> None:
        for path, state in zip(paths, states, strict=True):
            if file_state(path) != state:
                raise DataError(
                    f"expected {path.name} as it was when it was opened, found it changed or "
                    "gone; open it again"
                )

    def read() -> pd.DataFrame:
        import pandas as pd

        require_unchanged()
        return pd.DataFrame(read_files(paths, name, options).values, copy=False)

    def read_texts() -> delimited.TextRows:
        require_unchanged()
        return delimited.TextRows(list(same_layouts(paths, options).items()))

    if is_arrow(paths[0]):
        return Original(tuple(names or arrow.names(paths[0])), cache(read))
    known = names or delimited.find_layout(paths[0], options).columns
    return Original(tuple(known), cache(read), cache(read_texts))


def file_state(path: Path) -> tuple[int, int] | None:
    """Size and time of the last change of a file; None if it is gone."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def same_layouts(paths: Sequence[Path], options: Options) -> dict[Path, delimited.Layout]:
    """How each file writes its rows; those without names have the names of the first."""
    layouts = {path: delimited.find_layout(path, options) for path in paths}
    first = layouts[paths[0]]
    for path, layout in layouts.items():
        if not layout.named and layout.width == first.width:
            layouts[path] = replace(layout, columns=first.columns)
        refuse_other_names(layouts[path].columns, path, first.columns, paths[0])
    return layouts


def same_names(paths: Sequence[Path]) -> list[str]:
    first = arrow.names(paths[0])
    for path in paths[1:]:
        refuse_other_names(arrow.names(path), path, first, paths[0])
    return first


def refuse_other_names(
    found: Sequence[str], path: Path, expected: Sequence[str], first: Path
) -> None:
    if {*found} == {*expected}:
        return
    absent = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    what = f"no column {listed(absent)}" if absent else f"also a column {listed(extra)}"
    raise DataError(
        f"{path}: expected the columns of {first.name} ({listed(expected)}), found {what}; give "
        f"all files the same columns, or {JOIN_TABLES}"
    )


def stem(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem


def from_frame(rows: Any, name: str = "frame", target: Any = None) -> RawData:
    """Read anything that pandas can make a frame of; `target` is an extra column, the default
    target."""
    import pandas as pd

    if isinstance(rows, Mapping) and any(map(is_frame_of_columns, rows.values())):
        raise DataError(
            f"expected one table, found {len(rows)} ({listed(rows)}); give one of them, or "
            f"{JOIN_TABLES}"
        )
    try:
        frame = pd.DataFrame(rows)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"the columns do not make a table ({error}); make them equally long, or give one "
            "mapping or tuple for each row"
        ) from error
    keys = {str(key): int(key) if isinstance(key, Integral) else str(key) for key in frame.columns}
    if len(keys) < frame.shape[1]:
        raise DataError(
            f"the frame has two columns of one name among {listed(frame.columns)}; rename one"
        )
    values = {
        name: as_moments(frame.iloc[:, place].reset_index(drop=True))
        for place, name in enumerate(keys)
    }
    places = RowLocations.count(len(frame))
    plain = frame.copy(deep=False)  # which later changes of the frame do not reach
    plain.index = pd.RangeIndex(len(frame))
    original = Original(tuple(values), lambda: plain)
    raw = RawData(name, values, tuple(values), places, table=True, keys=keys, original=original)
    return raw if target is None else with_target(raw, target)


def as_moments(column: Cells) -> Cells:
    """A column of date or time objects, as databases give them, as one of times."""
    import pandas as pd

    first = column.first_valid_index() if column.dtype == object else None
    if first is None or not isinstance(column[first], date_type):
        return column
    found: Cells = pd.to_datetime(column, errors="coerce")
    return column if (found.isna() & column.notna()).any() else found


def with_target(raw: RawData, target: Any) -> RawData:
    """The table with an extra column, the default target."""
    import pandas as pd

    several = isinstance(target, Iterable) and not isinstance(target, str | bytes)
    if not several or getattr(target, "ndim", 1) == 0:
        raise DataError(
            f"expected a target for each of the {len(raw)} rows, found {shown(target)}; pass one "
            "value per row"
        )
    column: Cells = target if is_frame(target) else pd.Series(list(target))
    column = column.reset_index(drop=True)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column.iloc[:, 0]
    name = "y" if column.ndim == 2 or column.name is None else str(column.name)
    if column.ndim == 2 or name in raw.values or len(column) != len(raw):
        raise DataError(
            f"y has the shape {column.shape} and the name {name!r} beside {len(raw)} "
            "rows of x; give one column of as many rows, with a different name"
        )
    labels = frozenset({name} if is_names(column.to_numpy()) else ())
    return replace(raw, values=dict(raw.values) | {name: column}, target=name, labels=labels)


def is_names(values: np.ndarray) -> bool:
    """Whether a target is categorical: not floats or whole numbers that hardly repeat."""
    if values.ndim != 1 or values.dtype.kind == "f":
        return False
    distinct = len(np.unique(values)) if values.dtype.kind in "iu" else 0
    return distinct <= 100 or 2 * distinct <= len(values)


def without(raw: RawData, names: Sequence[str]) -> RawData:
    """The data without some fields."""
    for name in names:
        if name not in raw.values:
            raise UsageError(
                f"data.drop={name}: there is no such column{nearest(name, raw.values)}"
            )
    values = Picked(raw.values, [name for name in raw.values if name not in names])
    main = tuple(name for name in raw.main if name not in names)
    if not main:
        raise UsageError("data.drop leaves no column; keep at least one")
    return replace(
        raw, values=values, main=main, target=None if raw.target in names else raw.target
    )


def cells(column: Cells, at: Locator) -> Any:
    """A column as numpy: booleans, numbers with NaN, or stripped values with None."""
    import pandas as pd

    if isinstance(column, TextColumn):
        return column.coded()
    kind, full = column.dtype, not column.isna().any()
    if isinstance(kind, pd.CategoricalDtype):
        return column.astype(object).to_numpy(object, na_value=None)
    if pd.api.types.is_bool_dtype(kind):
        return column.to_numpy(bool) if full else column.to_numpy(object, na_value=None)
    if pd.api.types.is_numeric_dtype(kind):
        if pd.api.types.is_integer_dtype(kind) and full:
            whole = column.to_numpy()
            fits = whole.dtype.kind != "u" or whole.max(initial=0) < WRAPS
            return whole.astype(np.int64, copy=False) if fits else whole.astype(object)
        if pd.api.types.is_integer_dtype(kind) and is_large(column.dropna().to_numpy()):
            return column.to_numpy(object, na_value=None)
        if kind == np.float64:
            return column.to_numpy()
        return column.to_numpy(np.float64, na_value=np.nan)
    if kind.kind == "M":
        utc = column.dt.tz_convert("UTC") if isinstance(kind, pd.DatetimeTZDtype) else column
        return utc.dt.strftime(MOMENT).to_numpy(object, na_value=None)
    objects = column.to_numpy(object)
    for row, cell in enumerate(objects if pd.api.types.is_object_dtype(kind) else ()):
        if not isinstance(cell, Hashable):
            trimmed(cell, at(row))
    found, place = distinct(objects)
    tidy = [trimmed(cell, at(int(np.argmax(place == i)))) for i, cell in enumerate(found)]
    return np.array([*tidy, None], object)[place]


def trimmed(cell: Any, where: str) -> Any:
    if isinstance(cell, str):
        return cell.strip() or None
    if isinstance(cell, bool | np.bool_ | int | float | np.number):
        return cell
    raise DataError(
        f"{where}: a {type(cell).__name__} is neither a number nor text; convert "
        "the column, or drop it with data.drop"
    )


def fit(
    column: Cells, found: np.ndarray, name: str, label: bool, options: Options, at: Locator
) -> Codec:
    """The codec that fits the cells `found` in a column."""
    dtype = str(column.dtype)
    if found.dtype.kind in "biuf" and not label and dtype != "category":
        empty = np.isnan(found) if found.dtype.kind == "f" else np.zeros(1, bool)
        missing = bool(empty.any())
        values = found[~empty] if missing else found
    else:
        values, place = distinct(found)
        missing = bool((place < 0).any())
    if not len(values):
        raise Unfit.drop(name, "has no values")
    if label or dtype == "category":
        return fit_names(column, found, name, missing and options.models_empty)
    codec = fit_cells(column, found, values, name, dtype, missing, options, at)
    if isinstance(codec, Binary) and missing and options.models_empty:
        return fit_names(column, found, name, blank=True)  # the third value is the empty cell
    return codec


def fit_cells(
    column: Cells,
    found: np.ndarray,
    values: np.ndarray,
    name: str,
    dtype: str,
    missing: bool,
    options: Options,
    at: Locator,
) -> Codec:
    """The codec that the `values` of a column that is not known to be names ask for: the different
    ones of text, all numbers."""
    if found.dtype.kind != "O":
        return fit_number(found, values, name, dtype, missing, at)
    if all(type(value) in (int, float) and abs(value) <= scalar.EXACT_FLOAT64 for value in values):
        whole = all(type(value) is int for value in values)
        values = values.astype(np.int64 if whole else np.float64)
        kind = "int64" if whole and not missing else "float64"  # of Python objects
        return fit_number(found, values, name, kind, missing, at)
    if all(type(value) is int and abs(value) < WRAPS for value in values):
        return fit_number(found, values.astype(np.int64), name, dtype, missing, at)
    if all(isinstance(value, bool | np.bool_) for value in values):
        return Binary(values=("False", "True"), dtype="bool")
    if codec := flag(values, dtype):
        return codec
    if form := find_format(list(values)):
        return date.fit(values, form, dtype)
    return fit_text(column, found, name, options, at)


def fit_number(
    found: np.ndarray, values: np.ndarray, name: str, dtype: str, missing: bool, at: Locator
) -> Codec:
    """The codec of numbers: binary, whole or real, with an offset if needed."""
    if values.dtype.kind == "b":
        return Binary(values=("False", "True"), dtype=dtype)
    if scalar.every(values, lambda some: (some == 0) | (some == 1)):
        return Binary(dtype=dtype)
    if is_large(values):
        codec = scalar.fit_large(values, dtype)
        if codec is None:
            raise Unfit.drop(
                name,
                f"holds whole numbers from {values.min()} to {values.max()}, which beyond 2^53 "
                "are exact only within a range of 2^24",
                f", or read it as categorical with data.names={name}",
            )
        return codec
    whole = max(values.max(), -values.min()) <= EXACT and scalar.every(
        values, lambda some: some == np.rint(some)
    )
    # a column of whole numbers with missing cells is written as floats
    if whole and ("int" in dtype.lower() or (missing and dtype.lower().startswith("float"))):
        return Number(kind="counts", dtype=dtype)
    for start, some in scalar.pieces(found):
        finite(some.astype(np.float64), lambda row: at(start + row))  # noqa: B023
    if blurred(found) is not None:
        return scalar.fit(values, dtype)
    return Number(kind="real", dtype=dtype, decimals=scalar.decimals_of(values))


def fit_text(column: Cells, found: np.ndarray, name: str, options: Options, at: Locator) -> Codec:
    """The codec of text: numbers written as text, or categories; an error for text among
    numbers."""
    values, place = distinct(found)
    read = np.array([number(value) for value in values] + [np.nan])
    cells, seen = read[place], place >= 0
    strange = np.flatnonzero(seen & np.isnan(cells))
    if not len(strange):
        whole = all(str(value).lstrip("+-").isdigit() for value in values)
        if whole and any(abs(int(value)) >= WRAPS for value in values):
            return fit_names(column, found, name, not seen.all() and options.models_empty)
        if whole and is_large(exact := np.array([int(value) for value in values])):
            return fit_number(cells, exact, name, "int64", False, at)
        return fit_number(cells, read[:-1], name, "int64" if whole else "float64", False, at)
    few = len(strange) <= (1 - MOSTLY) * seen.sum()
    if options.text == "missing" and len(strange) < seen.sum() / 2:
        plain = fit_number(cells, read[~np.isnan(read)], name, "Float64", True, at)
        return LenientNumber(
            kind=plain.kind if isinstance(plain, Number) else "counts", dtype="Float64"
        )
    if options.text != "label" and few:
        row, some = int(strange[0]), listed(dict.fromkeys(map(repr, found[strange])), 3)
        raise Unfit(
            f"{at(row)}: expected a number, found {found[row]!r} ({len(strange)} of "
            f"{int(seen.sum())} cells are text: {some}); fix the cells, or set data.text=missing "
            "to read them as missing, or data.text=label to read such columns as categorical",
            f"has text ({some}) in {len(strange)} of {int(seen.sum())} cells where numbers belong",
            "text=missing",
        )
    return fit_names(column, found, name, not seen.all() and options.models_empty)


def number(value: Any) -> float:
    """The number that a value stands for, else NaN."""
    try:
        return float(value)
    except ValueError:
        return np.nan


def flag(values: np.ndarray, dtype: str) -> Binary | None:
    """The codec of two strings that mean no and yes, else None."""
    words = {str(value) for value in values}
    if len(words) != 2 or {word.lower() for word in words} not in FLAGS:
        return None
    no, yes = sorted(words, key=lambda word: word.lower() in YES)
    return Binary(values=(no, yes), dtype=dtype)


def fit_names(column: Cells, found: np.ndarray, name: str, blank: bool) -> Categorical:
    if str(column.dtype) == "category":
        kind = column.dtype
        names = (*map(spelled, kind.categories), *((MISSING,) if blank else ()))
        return Categorical(
            names=names,
            dtype=str(kind.categories.dtype),
            category="ordered" if kind.ordered else "unordered",
        )
    codec = Categorical.fit(found, str(column.dtype), blank)
    is_full = bool((distinct(found)[1] >= 0).all())
    if len(codec.names) > max(100, len(found) / 2):
        odd = [each for each in codec.names if np.isnan(number(each))]
        signed = [each for each in odd if SIGNED_NUMBER.fullmatch(each)]
        numbers = len(codec.names) - len(odd)
        if signed and numbers + len(signed) >= MOSTLY * len(codec.names):
            raise Unfit.drop(
                name,
                f"holds numbers such as {signed[0]!r}, which are text for their signs, units or "
                "separators (write digits and a decimal point alone)",
            )
        if odd and numbers > len(odd):
            why = f"has text ({listed([repr(each) for each in odd], 3)}) where numbers belong"
            raise Unfit(
                f"column {name!r} {why}; fix the cells, set data.text=missing to read them as "
                f"missing, or drop the column with data.drop={name}",
                why,
                "text=missing",
            )
        raise Unfit.drop(
            name,
            f"has {len(codec.names)} different values in {len(found)} rows, like an identifier",
            f", or read it as text with data.sentences={name}" if is_full else "",
        )
    return codec


def assemble(columns: Sequence[tuple[str | int, Codec, np.ndarray]]) -> pd.DataFrame:
    """A frame with the names, order and types of the data."""
    import pandas as pd

    return pd.DataFrame({key: series(codec, values) for key, codec, values in columns})


def series(codec: Codec, values: np.ndarray) -> Cells:
    import pandas as pd

    if isinstance(codec, Categorical) and codec.category:
        kind = pd.CategoricalDtype(codec.typed.tolist(), codec.category == "ordered")
        return pd.Series(values, dtype=kind)
    holes = values.dtype.kind == "f" and np.isnan(values).any()
    column: Cells = pd.Series(values)
    dtype = NULLABLE.get(codec.dtype, codec.dtype) if holes else codec.dtype
    try:
        if dtype.startswith("datetime64[") and "," in dtype:  # written in UTC
            moments: Cells = pd.to_datetime(column, utc=True)
            return moments.astype(dtype)
        return column.astype(dtype)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"expected a column of the type {shown(dtype)}, found values that are not "
            f"({error}); fit the run again"
        ) from error


def written_cells(values: np.ndarray, codec: Codec | None = None) -> list[str] | None:
    """The cells of a column as `series` and pandas write them to a csv file, without importing
    pandas; None for types that only pandas writes."""
    dtype = WRITTEN.get(str(values.dtype) if codec is None else codec.dtype)
    if getattr(codec, "category", "") or dtype is None:
        return None
    if dtype in TEXT_TYPES:
        plain = all(cell is None or isinstance(cell, str) for cell in values)
        return ["" if cell is None else cell for cell in values] if plain else None
    if values.dtype.kind not in "biuf":
        return None
    empty = np.isnan(values)
    if dtype not in NULLABLE:
        return np.where(empty, "", values.astype(dtype).astype(str)).tolist()
    whole = np.where(empty, 0, values)
    if (whole != np.rint(whole)).any():
        return None
    return np.where(empty, "", whole.astype(dtype).astype(str)).tolist()
