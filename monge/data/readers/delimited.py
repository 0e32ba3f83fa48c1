"""Text files of rows and cells, cut by commas, tabs, semicolons or blanks, named or not.

The bytes of a file are looked over once in numpy, which finds the lines, the rows and every row of
another width, and are then parsed once by pandas.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import DataError
from ..options import Options

if TYPE_CHECKING:
    import pandas as pd


NOTHING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "<NA>", "#N/A")
"""How an empty cell is written; None is a name people use."""
COMMA = re.compile(r"(?<=\d),(?=\d)")
"""A decimal comma, where cells are cut by semicolons."""
MOSTLY = 0.9
"""Share of the cells that are numbers from which a column has decimal commas."""
BLANKS = re.compile(rb'((?:^|(?<=[ \t]))"[^"\n]*")|[ \t\v\f]+', re.M)
"""A quoted cell, or what stands between cells that are cut by blanks."""
SNIFFED = 50
"""Lines that decide what separates cells, and whether the first of them is names."""
NEWLINE, QUOTE, SPACE = b'\n" '
BLOCK = 2**20
"""Bytes that are looked over at a time."""
CELLS = 2**18
"""Cells that are parsed at a time; the memory of the parser grows with them."""
PLAIN = {
    "Int64": "int64",
    "UInt64": "uint64",
    "Float64": "float64",
    "boolean": "bool",
    "string": "str",
}
"""What holds a column in which nothing is missing."""


@dataclass(frozen=True)
class DelimitedTable:
    """A file's cells, the line each row begins on, and whether its columns have names."""

    frame: pd.DataFrame
    lines: np.ndarray  # (N,) from 1
    named: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RowSpans:
    """Where rows are: the byte each begins at and the one after its last, its line, its cells."""

    start: np.ndarray  # (N,)
    end: np.ndarray  # (N,)
    line: np.ndarray  # (N,) from 1
    cells: np.ndarray  # (N,)

    def take(self, rows: np.ndarray | slice) -> RowSpans:
        return RowSpans(self.start[rows], self.end[rows], self.line[rows], self.cells[rows])


def read(path: Path, options: Options) -> DelimitedTable:
    content, notes = without_full_stops(load(path), path)
    mark = separator(head(content), path)
    if mark is None:
        content, mark = tabbed(content), "\t"
    rows = check(filled(find_rows(content, mark, path), content), mark, path)
    sample = cut(head(content), mark, skipinitialspace=True)
    first = cells_of(content[rows.start[0] : rows.end[0]], mark)
    named = options.header == "yes" or (
        options.header == "auto" and is_header(first, sample[1:], mark)
    )
    columns = column_names(first, path) if named else [f"c{i + 1}" for i in range(len(first))]
    if named and len(rows.line) == 1:
        raise DataError(
            f"{path}: expected rows below the line of column names, found none; add "
            "rows, or set data.header=no if the first line is data"
        )
    rows = rows.take(slice(int(named), None))
    content, start = joined(content, rows)
    lines = rows.line
    del rows  # 24 bytes per row that parsing does not need
    frame, commas = parse(content, start, len(lines), mark, columns, path)
    if commas:
        notes += (f"commas between digits of {path.name} are read as decimal points",)
    return DelimitedTable(frame, lines, named, notes)


def load(path: Path) -> bytes:
    """The UTF-8 text of a file with lines that end in \\n, unpacked where its name ends in .gz."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); check the file") from error
    content = content.removeprefix(codecs.BOM_UTF8)
    if not content.isascii():
        check_text(content, path)
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if (place := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise DataError(
            f"{path}, line {line}: expected text, found a NUL byte; save the file as "
            "UTF-8 text, or check that it is a table"
        )
    if not content or content.isspace():
        raise DataError(f"{path} is empty; give it rows")
    return content


def check_text(content: bytes, path: Path) -> None:
    """A DataError where bytes are not UTF-8, decoded a block at a time to hold none of them."""
    place, whole = 0, memoryview(content)
    try:
        while place < len(content):
            final = place + BLOCK >= len(content)
            place += codecs.utf_8_decode(whole[place : place + BLOCK], "strict", final)[1]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {place + error.start}); save it as "
            "UTF-8, or check that it is a table"
        ) from error


def head(content: bytes, start: int = 0) -> list[str]:
    """The first lines from a byte on that are not blank."""
    file = io.BytesIO(content)
    file.seek(start)
    return list(islice((line.decode().rstrip("\n") for line in file if line.strip()), SNIFFED))


def without_full_stops(content: bytes, path: Path) -> tuple[bytes, tuple[str, ...]]:
    """A full stop that ends every line is no part of its last cell."""
    some = head(content)[1:]
    if not some or "," not in some[0] or not all(line.endswith(".") for line in some):
        return content, ()
    full = [line for line in content.split(b"\n") if line.strip()][1:]
    if not all(line.endswith(b".") for line in full):
        return content, ()
    return re.sub(rb"\.$", b"", content, flags=re.M), (
        f"every line of {path.name} ends with a full stop, which is not read as data",
    )


def separator(some: Sequence[str], path: Path) -> str | None:
    """The mark that cuts most lines into equally many cells, more than one; None for blanks."""
    name = path.name.removesuffix(".gz").lower()
    if name.endswith(".tsv"):
        return "\t"
    best = max(("\t", ";", ","), key=lambda mark: agreement(some, mark))
    if agreement(some, best):
        return best
    spaced = name.endswith((".txt", ".data")) and any(len(line.split()) > 1 for line in some)
    return None if spaced else ","


def agreement(lines: Sequence[str], mark: str) -> float:
    """The part of the lines that have the commonest number of cells, if that is above one."""
    widths = Counter(map(len, cut(lines, mark)))
    cells, agreeing = widths.most_common()[0]
    return agreeing / len(lines) if cells > 1 else 0.0


def cut(lines: Iterable[str], mark: str, **options: Any) -> list[list[str]]:
    """The cells of each line, however long: `csv` by default refuses cells over 131 072
    characters."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        return list(csv.reader(lines, delimiter=mark, **options))
    finally:
        csv.field_size_limit(limit)


def tabbed(content: bytes) -> bytes:
    """Cells that were cut by blanks cut by tabs, quoted ones as they are."""
    if b'"' in content:
        content = BLANKS.sub(lambda found: found[1] or b"\t", content)
        return re.sub(rb"^\t|\t$", b"", content, flags=re.M)
    return b"\n".join(b"\t".join(line.split()) for line in content.split(b"\n"))


def find_rows(content: bytes, mark: str, path: Path) -> RowSpans:
    """Every row, blank lines included; a quoted cell may hold marks and ends of lines."""
    whole = np.frombuffer(content, np.uint8)
    quotes = Quotes(whole, ord(mark)) if b'"' in content else None
    end, line, cells = [], [], []
    lines = marks = 0  # so far
    for start in range(0, len(whole), BLOCK):
        block = whole[start : start + BLOCK]
        known = (block == NEWLINE) | (block == ord(mark))
        places = np.flatnonzero(known if quotes is None else known | (block == QUOTE))
        kinds = block[places]
        every = np.flatnonzero(kinds == NEWLINE)
        inner = np.zeros(len(every), bool)
        if quotes is not None:
            hidden = quotes.hidden(places + start, kinds)
            inner, outer = hidden[every], ~hidden & (kinds != QUOTE)
            places, kinds = places[outer], kinds[outer]
        breaks = np.flatnonzero(kinds == NEWLINE)
        end.append(places[breaks] + start)
        line.append(np.flatnonzero(~inner) + lines)
        cells.append(breaks - np.arange(len(breaks)) + marks)
        lines, marks = lines + len(every), marks + len(kinds) - len(breaks)
    if quotes is not None and quotes.open:
        place = content.count(b"\n", 0, quotes.last) + 1
        raise DataError(
            f"{path}, line {place}: expected a closing quote for the cell that begins "
            "with one, found the end of the file; close it, or double a quote that "
            "is part of the cell"
        )
    if not content.endswith(b"\n"):
        for found, last in ((end, len(whole)), (line, lines), (cells, marks)):
            found.append(np.array([last]))
    ends, after, cut = (np.concatenate(found) for found in (end, line, cells))
    return RowSpans(
        np.append(0, ends[:-1] + 1),
        ends,
        np.append(0, after[:-1] + 1) + 1,
        np.diff(cut, prepend=0) + 1,
    )


class Quotes:
    """Which quotes open and close cells, found from the beginning of a file on.

    A quote opens a cell where it is the first of it, and closes the one that is open; right after
    that it opens the same cell again, which is how a quote within a cell is written. Any other is
    a character like others, as for `csv` and pandas.
    """

    def __init__(self, whole: np.ndarray, mark: int) -> None:
        self.whole, self.mark = whole, mark
        self.open, self.last = False, -2  # whether a cell is, and the quote that did it

    def hidden(self, places: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Whether each place of a block, quotes among them, is within a quoted cell (B,)."""
        before, flips = self.open, kinds == QUOTE
        every = places[flips]
        active = self.active(every)
        if len(active) < len(every):
            flips[flips] = np.isin(every, active)
        return (np.cumsum(flips, dtype=np.uint8) + np.uint8(before)) & 1 == 1

    def active(self, places: np.ndarray) -> np.ndarray:
        """Those of the quotes at `places` that open and close cells."""
        if not len(places):
            return places
        again = np.diff(places, prepend=self.last) == 1
        opens = slice(int(self.open), None, 2)
        if not self.first_of_cell(places[opens][~again[opens]]).all():
            places = self.one_by_one(places, self.first_of_cell(places))
        self.open = self.open ^ (len(places) % 2 == 1)
        self.last = int(places[-1]) if len(places) else self.last
        return places

    def first_of_cell(self, places: np.ndarray) -> np.ndarray:
        """Whether only spaces stand between each quote and the mark or line end before it."""
        before = places - 1
        while len(step := np.flatnonzero((before >= 0) & (self.whole[before] == SPACE))):
            before[step] -= 1
        byte = self.whole[before]
        return (before < 0) | (byte == self.mark) | (byte == NEWLINE)

    def one_by_one(self, places: np.ndarray, first: np.ndarray) -> np.ndarray:
        found, is_open, last = [], self.open, self.last
        for place, begins in zip(places.tolist(), first.tolist(), strict=True):
            if is_open or begins or place == last + 1:
                found.append(place)
                is_open, last = not is_open, place
        return np.array(found, np.int64)


def filled(rows: RowSpans, content: bytes) -> RowSpans:
    """The rows that are not blank lines."""
    whole = np.frombuffer(content, np.uint8)
    last = np.maximum(rows.end - 1, rows.start).clip(max=len(whole) - 1)
    first = rows.start.clip(max=len(whole) - 1)
    maybe = np.flatnonzero((whole[first] <= SPACE) & (whole[last] <= SPACE))
    blank = [row for row in maybe.tolist() if not content[rows.start[row] : rows.end[row]].strip()]
    return rows.take(np.delete(np.arange(len(rows.line)), blank)) if blank else rows


def check(rows: RowSpans, mark: str, path: Path) -> RowSpans:
    """`rows`, all of which have as many cells as the first."""
    wrong = np.flatnonzero(rows.cells != rows.cells[0])
    if len(wrong):
        row = wrong[0]
        quote = "" if mark == "\t" else f" or quote cells containing {mark!r}"
        raise DataError(
            f"{path}, line {rows.line[row]}: expected {rows.cells[0]} cells, found "
            f"{rows.cells[row]}; fix the line{quote}"
        )
    return rows


def cells_of(row: bytes, mark: str) -> list[str]:
    text = io.StringIO(row.decode(), newline="")
    return cut(text, mark, skipinitialspace=True)[0]


def is_header(cells: Sequence[str], below: Sequence[Sequence[str]], mark: str) -> bool:
    """No cell is a number; where two are equal, there are rows below, and none has a cell of the
    first in its place: such cells are values, as in a table of letters."""
    if any(is_number(COMMA.sub(".", cell) if mark == ";" else cell) for cell in cells):
        return False
    again = any(
        cell.strip() == other.strip()
        for row in below
        for cell, other in zip(cells, row, strict=False)
    )
    return len(set(cells)) == len(cells) or (bool(below) and not again)


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def column_names(cells: Sequence[str], path: Path) -> list[str]:
    names = [cell.strip() or f"c{place + 1}" for place, cell in enumerate(cells)]
    seen: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if seen.setdefault(name, place) < place:
            raise DataError(
                f"{path}: expected column names that differ, found {name!r} at "
                f"positions {seen[name]} and {place}; rename one, or set "
                "data.header=no if the first line is data"
            )
    return names


def joined(content: bytes, rows: RowSpans) -> tuple[bytes, int]:
    """Content without blank lines between the rows, which pandas takes for rows, and the byte
    at which the first row begins."""
    gaps = np.flatnonzero(rows.start[1:] != rows.end[:-1] + 1)
    if not len(gaps):
        return content, int(rows.start[0])
    spans = zip(rows.start[[0, *gaps + 1]], rows.end[[*gaps, -1]], strict=True)
    return b"".join(content[begin : end + 1] for begin, end in spans), 0


def parse(
    content: bytes, start: int, count: int, mark: str, columns: list[str], path: Path
) -> tuple[pd.DataFrame, bool]:
    """The cells of the `count` rows from a byte on, and whether a column has decimal commas."""
    import pandas as pd

    decimal = "," if mark == ";" and COMMA.search("\n".join(head(content, start))) else "."
    options = {
        "sep": mark,
        "header": None,
        "names": columns,
        "index_col": False,
        "decimal": decimal,
        "skipinitialspace": has_leading_spaces(content, mark),
        "skip_blank_lines": False,
        "keep_default_na": False,
        "na_values": list(NOTHING),
        "dtype_backend": "numpy_nullable",
        "low_memory": False,
        "nrows": count,
    }
    try:
        found = typed(content, start, options)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}); fix the file") from error
    commas = decimal == "," and any(str(column.dtype) == "Float64" for column in found.values())
    for name in columns if mark == ";" else ():
        swapped = with_points(found[name])
        commas |= swapped is not None
        found[name] = found[name] if swapped is None else swapped
    return pd.DataFrame({name: plain(found.pop(name)) for name in columns}, copy=False), commas


def has_leading_spaces(content: bytes, mark: str) -> bool:
    """Whether a space begins a cell; parsing takes a third less time where spaces are not
    skipped."""
    if b" " not in content:
        return False
    if content.startswith(b" "):
        return True
    whole = np.frombuffer(content, np.uint8)
    for start in range(0, len(whole) - 1, BLOCK):
        after = whole[start + 1 : start + 1 + BLOCK]
        before = whole[start : start + len(after)]
        if ((after == SPACE) & ((before == ord(mark)) | (before == NEWLINE))).any():
            return True
    return False


def typed(content: bytes, start: int, options: dict[str, Any]) -> dict[str, Any]:
    """Every column, of the type that all of its cells have: parsed some rows at a time, and at
    once where those differ in type."""
    import pandas as pd

    def opened(**more: Any) -> Any:
        file = io.BytesIO(content)
        file.seek(start)
        return pd.read_csv(file, **options, **more)

    with opened(chunksize=max(CELLS // len(options["names"]), 1)) as reader:
        parts = [dict(part.items()) for part in reader]
    found, differ = {}, []
    for name in options["names"]:
        pieces = [part.pop(name) for part in parts]
        kinds = {str(piece.dtype) for piece in pieces}
        if len(kinds) == 1 or kinds == {"Int64", "Float64"}:
            found[name] = pd.concat(pieces, ignore_index=True) if len(pieces) > 1 else pieces[0]
        else:
            differ.append(name)
    return found | (dict(opened(usecols=differ).items()) if differ else {})


def plain(column: Any) -> Any:
    """A column in which nothing is missing as the type that has no room for it."""
    kind = PLAIN.get(str(column.dtype))
    return column if kind is None or has_missing(column) else column.astype(kind)


def has_missing(column: Any) -> bool:
    """Whether a cell is missing; `isna` takes three times as long for text."""
    import pandas as pd

    if str(column.dtype) != "string":
        return bool(column.isna().any())
    return pd.api.types.infer_dtype(column.to_numpy(object), skipna=False) != "string"


def with_points(column: Any) -> Any:
    """A column of text that is numbers, most with decimal commas; None for any other."""
    import pandas as pd

    if str(column.dtype) != "string":
        return None
    cells = column.str.strip()
    swapped = cells.str.replace(COMMA, ".", regex=True)
    numbers = pd.to_numeric(swapped, errors="coerce")
    if (swapped == cells).all() or numbers.notna().sum() < MOSTLY * column.notna().sum():
        return None
    return numbers.convert_dtypes() if numbers.notna().equals(column.notna()) else swapped
