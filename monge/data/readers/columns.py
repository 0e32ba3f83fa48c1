"""The columns of a table while it is read block after block, in memory or in files.

A column has the type that pandas finds in all of its cells at once, whatever the blocks are. In
files numbers take 8 bytes each and text 4, the place of a cell among the different ones, so that
a table of any length is read with the memory of one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs.scalar import CodedCells, pieces

PLAIN = {"Int64": "int64", "UInt64": "uint64", "Float64": "float64", "boolean": "bool"}
"""What holds numbers none of which is missing."""
FILLERS = {"int64": 0, "uint64": 0, "float64": np.nan, "bool": False}
"""What stands for a number that is missing."""
EXACT = 2**53
"""Whole numbers up to here are the same as floats."""


class Column:
    """The cells of a column, block after block, of the type that pandas finds in all at once."""

    def __init__(self) -> None:
        self.count = 0
        self.kind: str | None = None  # of the cells; None as long as all are missing
        self.mixed = False  # whether blocks differ in type; no cells are held then
        self.is_full = True  # whether no cell is missing
        self.values = np.zeros(0)  # (count or more,)
        self.missing = np.zeros(0, bool)  # (count or more,), of no use if the column is full

    def add(self, cells: Any, likely: int) -> None:
        """The cells of one more block; `likely` is how many there are in all."""
        if self.mixed:
            return
        start, self.count = self.count, self.count + len(cells)
        kind = PLAIN.get(str(cells.dtype), "object")
        missing = kind in FILLERS and cells.isna()  # text holds pd.NA
        if np.any(missing) or not self.is_full:
            self.is_full = False
            self.mark(missing, start, likely)
        if not np.all(missing):  # no type is known of missing cells
            filler = {"na_value": FILLERS[kind]} if np.any(missing) else {}
            if kind == "object":
                self.hold(kind, self.text(cells), start, likely)
            else:
                self.hold(kind, cells.to_numpy(kind, **filler), start, likely)
        if self.kind == "uint64" and not self.is_full:
            self.mixed = True  # pandas reads numbers from 2^63 on as text if a cell is missing
        if self.mixed:
            self.clear()

    def text(self, cells: Any) -> Any:
        """Cells of text in the form that `put` takes."""
        return cells if isinstance(cells, CodedCells) else cells.to_numpy("object")

    def hold(self, kind: str, values: Any, start: int, likely: int) -> None:
        if self.kind is None:
            self.kind = kind
        elif {kind, self.kind} == {"int64", "float64"}:
            here = (values.min(initial=0), values.max(initial=0))
            low, high = here if kind == "int64" else self.extent(start)
            # beyond, what pandas parses as a float may differ from the nearest one
            self.mixed = low < -EXACT or high > EXACT
            if self.kind == "int64" and not self.mixed:
                self.kind = kind
                self.widen(start)
        elif kind != self.kind:
            self.mixed = True
        if not self.mixed:
            self.put(values, start, likely)

    def replace(self, cells: Any) -> None:
        """Hold these cells instead."""
        self.clear()
        self.count, self.kind, self.mixed, self.is_full = 0, None, False, True
        self.add(cells, len(cells))

    def clear(self) -> None:
        self.values, self.missing = np.zeros(0), np.zeros(0, bool)

    def mark(self, missing: Any, start: int, likely: int) -> None:
        self.missing = grown(self.missing, start, self.count, likely)
        self.missing[start : self.count] = missing

    def put(self, values: Any, start: int, likely: int) -> None:
        if self.values.dtype != (kind := np.dtype(self.kind)):
            self.values = np.zeros(0, kind)
        self.values = grown(self.values, start, self.count, likely)
        self.values[start : self.count] = [*values] if isinstance(values, CodedCells) else values

    def extent(self, start: int) -> tuple[Any, Any]:
        """The smallest and the largest whole number so far."""
        return self.values[:start].min(initial=0), self.values[:start].max(initial=0)

    def widen(self, start: int) -> None:
        """Whole numbers become floats."""
        self.values = self.values[:start].astype(np.float64)

    def series(self) -> Any:
        import pandas as pd

        if self.kind is None:
            return pd.Series(np.full(self.count, None), dtype="Int64")
        values = grown(self.values, self.count, self.count, self.count)[: self.count]
        missing = None if self.is_full else self.missing[: self.count]
        if self.kind == "object":
            if missing is not None:
                values[missing] = pd.NA
            # `isna` takes three times as long
            full = pd.api.types.infer_dtype(values, skipna=False) == "string"
            return pd.Series(values, dtype="str" if full else "string", copy=False)
        return numbers(self.kind, values, missing)


def numbers(kind: str, values: np.ndarray, missing: np.ndarray | None) -> Any:
    """A column of numbers of pandas."""
    import pandas as pd

    if missing is None:
        return pd.Series(values, copy=False)
    masked = {"float64": pd.arrays.FloatingArray, "bool": pd.arrays.BooleanArray}
    return pd.Series(masked.get(kind, pd.arrays.IntegerArray)(values, missing))


def grown(values: np.ndarray, start: int, stop: int, likely: int) -> np.ndarray:
    """An array of `start` values with room for those up to `stop`, and for the likely number of
    them unless that is far more; memory that is not written to is not taken."""
    if stop <= len(values):
        return values
    longer = np.zeros(min(max(likely + likely // 16, 2 * start, stop), 8 * stop), values.dtype)
    longer[: min(start, len(values))] = values[:start]
    return longer


class StoredColumn(Column):
    """A column whose cells are in a file, and which of them are missing in another."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.marks = path, path.with_suffix(".missing")
        self.low, self.high = 0, 0  # of the whole numbers so far
        self.names: dict[str, int] = {}  # the different cells of text, with their numbers from 1
        self.clear()

    @property
    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {
            "count": self.count,
            "kind": self.kind,
            "is_full": self.is_full,
            "names": list(self.names),
        }

    @classmethod
    def restored(cls, path: Path, state: Mapping[str, Any]) -> StoredColumn:
        """The column whose cells another process has written."""
        column = cls.__new__(cls)
        Column.__init__(column)
        column.path, column.marks = path, path.with_suffix(".missing")
        column.count, column.kind, column.is_full = state["count"], state["kind"], state["is_full"]
        column.names = {name: place for place, name in enumerate(state["names"], 1)}
        return column

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.marks.unlink(missing_ok=True)
        self.names = {}

    def mark(self, missing: Any, start: int, likely: int) -> None:
        append(self.marks, np.broadcast_to(missing, (self.count - start,)), start)

    def put(self, values: Any, start: int, likely: int) -> None:
        if self.kind == "object":
            values = self.code(values)
        elif self.kind == "int64":
            self.low = min(self.low, int(values.min(initial=0)))
            self.high = max(self.high, int(values.max(initial=0)))
        append(self.path, values.astype(self.kind) if self.kind != "object" else values, start)

    def text(self, cells: Any) -> Any:
        """Cells of pandas that Arrow holds are numbered there, without an object for each."""
        if isinstance(cells, CodedCells) or getattr(cells.dtype, "storage", "") != "pyarrow":
            return super().text(cells)
        import pyarrow as pa

        return coded_text(pa.array(cells))

    def code(self, cells: Any) -> np.ndarray:
        """The numbers of cells of text from 1, 0 for an empty one, and new ones for new cells."""
        import pandas as pd

        if isinstance(cells, CodedCells):
            place, found = cells.place, cells.values
        else:
            place, found = pd.factorize(cells)
        names = self.names
        known = [names.setdefault(name, len(names) + 1) for name in found]
        return np.array([*known, 0], np.int32)[place]  # index -1 is the last

    def extent(self, start: int) -> tuple[int, int]:
        return self.low, self.high

    def widen(self, start: int) -> None:
        fresh = self.path.with_suffix(".wider")
        for _, some in pieces(mapped(self.path, np.dtype(np.int64))):
            append(fresh, some.astype(np.float64), None)
        if fresh.exists():
            fresh.replace(self.path)

    def series(self) -> Any:
        """A column of pandas whose cells stay in the file, or one of text that takes its place."""
        import pandas as pd

        if self.kind is None:
            return pd.Series(np.full(self.count, None), dtype="Int64")
        kind = np.dtype(np.int32 if self.kind == "object" else self.kind)
        fill(self.path, self.count * kind.itemsize)
        values = mapped(self.path, kind)
        if self.kind == "object":
            return TextColumn(values, list(self.names))
        missing = None
        if not self.is_full:
            fill(self.marks, self.count)
            missing = mapped(self.marks, np.dtype(bool))
        return numbers(self.kind, values, missing)


def coded_text(text: Any) -> CodedCells:
    """A column of text of Arrow as the places of its cells among the different ones."""
    import pyarrow as pa

    if isinstance(text, pa.ChunkedArray):
        text = text.combine_chunks()
    coded = text.dictionary_encode()
    place = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return CodedCells(np.array([*coded.dictionary.to_pylist(), None], object)[:-1], place)


def append(path: Path, values: np.ndarray, start: int | None) -> None:
    """Write values to the end of a file, or from number `start` on; what is between is zero."""
    with path.open("ab") as file:
        if start is not None:
            file.truncate(start * values.itemsize)
            file.seek(0, 2)
        file.write(np.ascontiguousarray(values).data)


def fill(path: Path, size: int) -> None:
    """Zeros up to `size` bytes."""
    if not path.exists() or path.stat().st_size < size:
        with path.open("ab") as file:
            file.truncate(size)


def mapped(path: Path, kind: np.dtype) -> np.ndarray:
    """The numbers in a file, read when they are used."""
    if not path.stat().st_size:
        return np.zeros(0, kind)
    return np.memmap(path, kind, "r").view(np.ndarray)


class TextColumn:
    """A column of text in a file, for those who ask about it what they ask of one of pandas; what
    is not answered here is asked of a column of pandas, which is made for the purpose."""

    def __init__(self, codes: np.ndarray, names: list[str]) -> None:
        import pandas as pd

        self.codes, self.names = codes, names  # (N,), from 1, 0 for an empty cell
        self.is_full = all(bool(some.all()) for _, some in pieces(codes))
        self.dtype = pd.StringDtype(na_value=np.nan if self.is_full else pd.NA)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def is_unique(self) -> bool:
        return len(self.names) == len(self.codes)

    def nunique(self) -> int:
        return len(self.names)

    ndim = 1

    @property
    def iloc(self) -> CodedCells:
        """The cells by number."""
        return CodedCells(np.array([None, *self.names], object), self.codes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.to_numpy(object)

    def isna(self) -> np.ndarray:
        return self.codes == 0

    def coded(self) -> CodedCells:
        """The cells, stripped, as places among the different ones."""
        stripped = [name.strip() for name in self.names]
        place = {name: number for number, name in enumerate(dict.fromkeys(filter(None, stripped)))}
        known = np.array([-1, *(place.get(name, -1) for name in stripped)], np.int32)
        return CodedCells(np.array([*place, None], object)[:-1], known[self.codes])

    def __getattr__(self, name: str) -> Any:
        import pandas as pd

        cells = np.array([pd.NA, *self.names], object)[self.codes]
        return getattr(pd.Series(cells, dtype=self.dtype), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__getattr__("tolist")())


class LazyColumns(Mapping[str, Any]):
    """Columns that are opened anew whenever they are asked for, so that what was read of one does
    not stay in memory."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Any:
        return self.columns[name].series()

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)
