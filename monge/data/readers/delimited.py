"""Text files of rows and cells, cut by commas, tabs, semicolons or blanks, named or not.

A file is read a block of whole rows at a time. In each block the rows are counted, every row of
another width is found, and pandas parses the cells; only the parsed columns stay in memory.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import sys
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import DataError
from ..options import Options
from .columns import Column

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
EXACT_FLOATS = (3, 1)
"""From this version on pandas parses a number as the nearest float without being asked to."""
NEWLINE, QUOTE, SPACE = b'\n" '
BLOCK, LARGEST, SHARE = 2**19, 2**22, 5
"""Bytes that are read at a time after the opening: at first, at most, and 1/SHARE of what was read
before. Parsing takes several times the memory of its text."""
AHEAD = 2
"""Blocks that are parsed ahead of their use."""
PER_COLUMN = 2**12
"""Bytes that are read at a time for each column at least; every column of a block costs time."""
OPENING = 2**16
"""Bytes that are read first: in which the separator and the names are looked for."""


@dataclass(frozen=True)
class DelimitedTable:
    """A file's cells, the line each row begins on, and whether its columns have names."""

    frame: pd.DataFrame
    lines: np.ndarray  # (N,) from 1
    named: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """How a file writes its rows."""

    mark: str  # between cells, after `clean`
    blanks: bool  # stand between cells
    full_stops: bool  # end every line
    columns: tuple[str, ...]
    named: bool
    decimal: str
    unsure: bool = False  # whether the first line, read as data, may name the columns

    @property
    def width(self) -> int:
        return len(self.columns)

    def clean(self, content: bytes) -> bytes:
        """Whole lines as rows whose cells are cut by `mark` alone."""
        if self.full_stops:
            content = re.sub(rb"\.$", b"", content, flags=re.M)
        return tabbed(content) if self.blanks else content


@dataclass(frozen=True)
class Block:
    """Some rows of a file, each of the same number of cells and none blank."""

    content: bytes
    lines: range | np.ndarray  # (B,) from 1, that each row begins on


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
    import pandas as pd

    layout = find_layout(path, options)
    columns = {name: Column() for name in layout.columns}
    (lines,), notes = parse([(path, layout)], columns)
    frame = pd.DataFrame({name: columns.pop(name).series() for name in layout.columns}, copy=False)
    return DelimitedTable(frame, listed(lines), layout.named, notes)


class TextFile(AbstractContextManager["TextFile"]):
    """The UTF-8 text of a file, some lines at a time, unpacked where its name ends in .gz."""

    def __init__(self, path: Path) -> None:
        self.path, self.taken = path, 0  # bytes so far
        self.rest = b""  # read after the last end of a line
        try:
            opened: Any = gzip.open if path.suffix == ".gz" else open
            self.file = opened(path, "rb")
            self.rest = self.file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        except (OSError, EOFError, zlib.error) as error:
            raise self.unreadable(error) from error

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def unreadable(self, error: Exception) -> DataError:
        return DataError(f"{self.path} cannot be read ({error}); check the file")

    def read(self, size: int) -> bytes:
        """The next lines, of about as many bytes, each of which ends in \\n; none at the end."""
        parts, end = [self.rest], 0
        try:
            while not end and (part := self.file.read(size)):
                # \r alone may end lines, the last of a part only if no \n follows
                end = part.rfind(b"\n") + 1 or part.rfind(b"\r", 0, -1) + 1
                if b"\0" in part:  # refused by the caller; a line of it may be the whole file
                    end = len(part)
                parts.append(part)
        except (OSError, EOFError, zlib.error) as error:
            raise self.unreadable(error) from error
        self.rest = parts[-1][end:] if end else b""
        if end:
            parts[-1] = parts[-1][:end]
        content = b"".join(parts)
        self.check(content)
        self.taken += len(content)
        if b"\r" in content:
            content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return content if not content or content.endswith(b"\n") else content + b"\n"

    def check(self, content: bytes) -> None:
        if content.isascii():
            return
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path} is not UTF-8 text (byte {self.taken + error.start}); save it as "
                "UTF-8, or check that it is a table"
            ) from error


def find_layout(path: Path, options: Options) -> Layout:
    content, complete = opening(path, 2 * SNIFFED)
    stops = full_stops(head(content), path)
    layout = Layout(",", False, stops, (), False, ".")
    mark = separator(head(layout.clean(content)), path)
    layout = replace(layout, mark=mark or "\t", blanks=mark is None)
    mark = layout.mark
    content = layout.clean(content)
    rows, quote = find_rows(content, mark)
    if quote is not None and not complete and not len(rows.line):
        content = layout.clean(opening(path, sys.maxsize)[0])
        rows, quote = find_rows(content, mark)
    rows = filled(rows, content)
    if not len(rows.line):
        raise unclosed(content, quote, 1, path)
    first = cells_of(content[rows.start[0] : rows.end[0]], mark)
    sample = cut(head(content), mark, skipinitialspace=True)
    named = options.header == "yes" or (
        options.header == "auto" and is_header(first, sample[1:], mark)
    )
    columns = column_names(first, path) if named else [f"c{i + 1}" for i in range(len(first))]
    below = head(content[rows.end[0] :] if named else content)
    decimal = "," if mark == ";" and COMMA.search("\n".join(below)) else "."
    unsure = options.header == "auto" and not named and may_be_header(first, sample[1:])
    return replace(layout, columns=tuple(columns), named=named, decimal=decimal, unsure=unsure)


def opening(path: Path, count: int) -> tuple[bytes, bool]:
    """The beginning of a file with as many lines that are not blank, and whether it is all."""
    content = b""
    with TextFile(path) as file:
        while text := file.read(max(OPENING, len(content))):
            content += text
            check_no_nul(content, 1, path)
            if len(head(content, count)) == count:
                return content, False
    if not content or content.isspace():
        raise DataError(f"{path} is empty; give it rows")
    return content, True


def head(content: bytes, count: int = SNIFFED) -> list[str]:
    """The first lines that are not blank."""
    lines = (line for line in io.BytesIO(content) if line.strip())
    return [line.decode().rstrip("\n") for line in islice(lines, count)]


def full_stops(some: Sequence[str], path: Path) -> bool:
    """Whether a full stop that is no part of the last cell ends every line but the first."""
    below = some[1:]
    if not below or "," not in below[0] or not all(line.endswith(".") for line in below):
        return False
    with TextFile(path) as file:
        texts = iter(lambda: file.read(BLOCK), b"")
        lines = (line for text in texts for line in text.split(b"\n") if line.strip())
        return all(line.endswith(b".") for line in islice(lines, 1, None))


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


def find_blocks(path: Path, layout: Layout) -> Iterator[Block]:
    """The rows of a file below its names."""
    mark, width = layout.mark, layout.width
    line, skipped, held = 1, int(layout.named), b""  # held: a row that has not ended yet
    with TextFile(path) as file:
        while text := file.read(max(block_size(file.taken, width), len(held))):
            content, held = held + layout.clean(text), b""
            check_no_nul(content, line, path)
            if not skipped and (count := regular_rows(content, mark, width)):
                yield Block(content, range(line, line + count))
                line += count
                continue
            rows, quote = find_rows(content, mark)
            if quote is not None:
                end = int(rows.end[-1]) + 1 if len(rows.line) else 0
                content, held = content[:end], content[end:]
            rows = check(filled(rows, content), width, line, mark, path)
            rows, skipped = rows.take(slice(skipped, None)), max(skipped - len(rows.line), 0)
            if len(rows.line):
                yield Block(joined(content, rows), rows.line + line - 1)
            line += content.count(b"\n")
    if held:
        raise unclosed(held, find_rows(held, mark)[1], line, path)


def block_size(taken: int, width: int) -> int:
    if not taken:
        return OPENING  # rows beside the names are found one by one, which takes longer
    return max(min(max(BLOCK, taken // SHARE), LARGEST), PER_COLUMN * width)


def check_no_nul(content: bytes, line: int, path: Path) -> None:
    if (place := content.find(b"\0")) >= 0:
        line += content.count(b"\n", 0, place)
        raise DataError(
            f"{path}, line {line}: expected text, found a NUL byte; save the file as "
            "UTF-8 text, or check that it is a table"
        )


def unclosed(content: bytes, quote: int | None, line: int, path: Path) -> DataError:
    line += content.count(b"\n", 0, quote)
    return DataError(
        f"{path}, line {line}: expected a closing quote for the cell that begins "
        "with one, found the end of the file; close it, or double a quote that "
        "is part of the cell"
    )


def regular_rows(content: bytes, mark: str, width: int) -> int:
    """The number of rows where each line is one of as many cells; none if that is not sure."""
    whole = np.frombuffer(content, np.uint8)
    if width == 1 or mark == "\t":  # a blank line may have as many cells as a row
        starts = whole[:-1] == NEWLINE
        if whole[0] <= SPACE or (starts & (whole[1:] <= SPACE)).any():
            return 0
    if QUOTE in content:
        quotes, newlines = whole == QUOTE, whole == NEWLINE
        inside = odd(quotes)
        before = newlines | quotes | (whole == ord(mark))
        # a quote that opens a cell elsewhere, and a line break within a cell
        if ((quotes & inside)[1:] > before[:-1]).any() or (newlines & inside).any():
            return 0
        content = (whole * ~inside).tobytes()
    kinds = content.translate(None, bytes(set(range(256)) - {NEWLINE, ord(mark)}))
    count = len(kinds) // width
    return count if kinds == (mark.encode() * (width - 1) + b"\n") * count else 0


def odd(marks: np.ndarray) -> np.ndarray:
    """Whether the number of marks up to each place is odd (N,), found for 64 places at a time."""
    words = np.zeros(-(-len(marks) // 64), "<u8")
    packed = np.packbits(marks, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    for step in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(step)
    words[1:] ^= np.uint64(0) - np.bitwise_xor.accumulate(words >> np.uint64(63))[:-1]
    return np.unpackbits(words.view(np.uint8), count=len(marks), bitorder="little").view(bool)


def find_rows(content: bytes, mark: str) -> tuple[RowSpans, int | None]:
    """Every row that ends in whole lines, blank ones included, and the quote of a cell that does
    not end; a quoted cell may hold marks and ends of lines."""
    whole = np.frombuffer(content, np.uint8)
    places = np.flatnonzero((whole == NEWLINE) | (whole == ord(mark)) | (whole == QUOTE))
    kinds = whole[places]
    flips = kinds == QUOTE
    quotes = active_quotes(whole, places[flips], ord(mark))
    flips[flips] = np.isin(places[flips], quotes)
    inside = np.cumsum(flips) % 2 == 1
    breaks = kinds == NEWLINE
    marks = np.cumsum((kinds == ord(mark)) & ~inside)
    outer = breaks & ~inside
    ends, lines, cells = places[outer], np.cumsum(breaks)[outer], marks[outer]
    rows = RowSpans(
        np.append(0, ends + 1)[:-1],
        ends,
        np.append(0, lines)[:-1] + 1,
        np.diff(cells, prepend=0) + 1,
    )
    return rows, int(quotes[-1]) if len(quotes) % 2 else None


def active_quotes(whole: np.ndarray, places: np.ndarray, mark: int) -> np.ndarray:
    """Those of the quotes at `places` that open and close cells, from the start of a row on.

    A quote opens a cell where it is the first of it, and closes the one that is open; right after
    that it opens the same cell again, which is how a quote within a cell is written. Any other is
    a character like others, as for `csv` and pandas.
    """
    again = np.diff(places, prepend=-2) == 1
    first = first_of_cell(whole, places, mark)
    if (first | again)[::2].all():
        return places
    found, is_open, last = [], False, -2
    for place, begins in zip(places.tolist(), first.tolist(), strict=True):
        if is_open or begins or place == last + 1:
            found.append(place)
            is_open, last = not is_open, place
    return np.array(found, np.int64)


def first_of_cell(whole: np.ndarray, places: np.ndarray, mark: int) -> np.ndarray:
    """Whether only spaces stand between each quote and the mark or line end before it."""
    before = places - 1
    while len(step := np.flatnonzero((before >= 0) & (whole[before] == SPACE))):
        before[step] -= 1
    byte = whole[before]
    return (before < 0) | (byte == mark) | (byte == NEWLINE)


def filled(rows: RowSpans, content: bytes) -> RowSpans:
    """The rows that are not blank lines."""
    whole = np.frombuffer(content, np.uint8)
    last = np.maximum(rows.end - 1, rows.start)
    maybe = np.flatnonzero((whole[rows.start] <= SPACE) & (whole[last] <= SPACE))
    blank = [row for row in maybe.tolist() if not content[rows.start[row] : rows.end[row]].strip()]
    return rows.take(np.delete(np.arange(len(rows.line)), blank)) if blank else rows


def check(rows: RowSpans, width: int, line: int, mark: str, path: Path) -> RowSpans:
    """`rows` of a block that begins on a line, all of which have as many cells."""
    wrong = np.flatnonzero(rows.cells != width)
    if len(wrong):
        row = wrong[0]
        quote = "" if mark == "\t" else f" or quote cells containing {mark!r}"
        raise DataError(
            f"{path}, line {rows.line[row] + line - 1}: expected {width} cells, found "
            f"{rows.cells[row]}; fix the line{quote}"
        )
    return rows


def cells_of(row: bytes, mark: str) -> list[str]:
    text = io.StringIO(row.decode(), newline="")
    return cut(text, mark, skipinitialspace=True)[0]


def is_header(cells: Sequence[str], below: Sequence[Sequence[str]], mark: str) -> bool:
    """No cell is a number, or the numbers are years that name columns; where two cells are equal,
    there are rows below, and none has a cell of the first in its place: such cells are values, as
    in a table of letters."""
    if any(is_number(COMMA.sub(".", cell) if mark == ";" else cell) for cell in cells):
        return may_be_header(cells, below) and are_years(cells, below, mark)
    again = any(
        cell.strip() == other.strip()
        for row in below
        for cell, other in zip(cells, row, strict=False)
    )
    return len(set(cells)) == len(cells) or (bool(below) and not again)


def may_be_header(cells: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether all cells differ, and those that are no numbers are words that do not stand below
    them."""
    text = [place for place, cell in enumerate(cells) if not is_number(cell)]
    columns = list(zip(*below, strict=False))[: len(cells)]
    words = all(any(map(str.isalpha, cells[place])) for place in text)
    again = any(cells[place] in columns[place] for place in text if place < len(columns))
    return bool(text and columns) and words and not again and len(set(cells)) == len(cells)


def are_years(cells: Sequence[str], below: Sequence[Sequence[str]], mark: str) -> bool:
    """Whether the numbers among the cells are two years or more in even steps, and not all numbers
    below them are years: country,2019,2020 names columns."""
    places = [place for place, cell in enumerate(cells) if is_number(cell)]
    years = [int(cells[place]) if is_year(cells[place]) else 0 for place in places]
    steps = {later - year for year, later in pairwise(years)}
    values = [row[place] for row in below for place in places if place < len(row)]
    values = [COMMA.sub(".", value) for value in values] if mark == ";" else values
    numbers = [value for value in values if is_number(value)]
    even = 0 not in years and len(steps) == 1 and 0 not in steps
    return even and bool(numbers) and not all(map(is_year, numbers))


def is_year(cell: str) -> bool:
    return len(cell.strip()) == 4 and cell.strip().isdigit() and "1500" <= cell.strip() <= "2200"


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


def joined(content: bytes, rows: RowSpans) -> bytes:
    """The text of rows without blank lines between them, which pandas takes for rows."""
    gaps = np.flatnonzero(rows.start[1:] != rows.end[:-1] + 1)
    spans = zip(rows.start[[0, *gaps + 1]], rows.end[[*gaps, -1]], strict=True)
    return b"".join(content[begin : end + 1] for begin, end in spans)


def parse(
    files: Sequence[tuple[Path, Layout]], columns: Mapping[str, Column]
) -> tuple[list[Lines], tuple[str, ...]]:
    """Read the rows of files one after another into columns; returns the lines on which the rows
    of each file begin, and notes."""
    size = sum(path.stat().st_size for path, _ in files)
    found: list[Lines] = []
    for path, layout in files:
        found.append([])
        for block, table in parsed_blocks(path, layout):
            found[-1].append(block.lines)
            likely = size * len(block.lines) // len(block.content)
            for name, piece in table.items():
                columns[str(name)].mixed |= is_unfiltered(piece.array)
                columns[str(name)].add(piece.array, likely)
        if not found[-1]:
            raise DataError(
                f"{path}: expected rows below the line of column names, found none; add "
                "rows, or set data.header=no if the first line is data"
            )
    mixed = [name for name, column in columns.items() if column.mixed]
    parse_whole(files, mixed, columns)
    swapped = False
    for column in columns.values() if any(layout.mark == ";" for _, layout in files) else ():
        if (points := with_points(column.series())) is not None:
            column.replace(points)
            swapped = True
    reals = any(column.kind == "float64" for column in columns.values())
    notes: tuple[str, ...] = ()
    for path, layout in files:
        if layout.full_stops:
            notes += (
                f"every line of {path.name} ends with a full stop, which is not read as data",
            )
        if layout.unsure:
            notes += (
                f"the first line of {path.name} is read as data, as it holds numbers; set "
                "data.header=yes if it names the columns",
            )
        if swapped or (reals and layout.decimal == ","):
            notes += (f"commas between digits of {path.name} are read as decimal points",)
    return found, notes


Lines = list[range | np.ndarray]
"""The lines that the rows of each block begin on."""


def parsed_blocks(path: Path, layout: Layout) -> Iterator[tuple[Block, pd.DataFrame]]:
    """The blocks of a file with their cells, the next ones parsed while one is used."""
    if path.stat().st_size < AHEAD * LARGEST:
        yield from (
            (block, parse_block(block, layout, path)) for block in find_blocks(path, layout)
        )
        return
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[tuple[Block, Future[pd.DataFrame]]] = deque()
        for block in find_blocks(path, layout):
            waiting.append((block, pool.submit(parse_block, block, layout, path)))
            if len(waiting) > AHEAD:
                first, table = waiting.popleft()
                yield first, table.result()
        yield from ((block, table.result()) for block, table in waiting)


def listed(lines: Lines) -> np.ndarray:
    """The lines of all blocks (N,), in few bytes; ranges of them take no memory before."""
    kind = np.int32 if lines[-1][-1] <= np.iinfo(np.int32).max else np.int64
    found, stop = np.empty(sum(map(len, lines)), kind), 0
    for some in lines:
        start, stop = stop, stop + len(some)
        found[start:stop] = np.arange(some.start, some.stop) if isinstance(some, range) else some
    return found


class TextRows:
    """The cells of files as text, some rows at a time; rows that follow those that were taken
    before are read on from there."""

    def __init__(self, files: Sequence[tuple[Path, Layout]]) -> None:
        self.files = list(files)
        self.restart()
        self.first = self.block

    def joined(self, others: Sequence[TextRows]) -> TextRows:
        """The rows of several, one after another."""
        return TextRows([file for each in (self, *others) for file in each.files])

    def restart(self) -> None:
        self.tables = self.each_block()
        self.start, self.block = 0, next(self.tables)

    def each_block(self) -> Iterator[pd.DataFrame]:
        names = list(self.files[0][1].columns)
        for path, layout in self.files:
            for block in find_blocks(path, layout):
                found = parse_block(block, layout, path, dtype=str, na_filter=False)
                yield found[names] if {*found} == {*names} else found.set_axis(names, axis=1)

    def take(self, rows: np.ndarray | None) -> pd.DataFrame:
        """The rows of these numbers, in their order; None for all."""
        import pandas as pd

        if rows is None:
            self.restart()
            return pd.concat([self.block, *self.tables], ignore_index=True)
        order = rows.argsort(kind="stable")
        wanted, found, place = rows[order], [], 0
        if len(wanted) and wanted[0] < self.start:
            self.restart()
        while True:
            end = int(np.searchsorted(wanted, self.start + len(self.block)))
            found.append(self.block.iloc[wanted[place:end] - self.start])
            if (place := end) == len(wanted):
                break
            self.start, self.block = self.start + len(self.block), next(self.tables)
        return pd.concat(found, ignore_index=True).iloc[order.argsort()].reset_index(drop=True)


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


def parse_block(block: Block, layout: Layout, path: Path, **more: Any) -> pd.DataFrame:
    import pandas as pd

    content = block.content
    options: dict[str, Any] = {
        "sep": layout.mark,
        "header": None,
        "names": list(layout.columns),
        "index_col": False,
        "decimal": layout.decimal,
        "skipinitialspace": has_leading_spaces(content, layout.mark),
        "skip_blank_lines": False,
        "keep_default_na": False,
        "na_values": list(NOTHING),
        "dtype_backend": "numpy_nullable",
        "low_memory": False,
        "float_precision": None if pandas_version() >= EXACT_FLOATS else "round_trip",
    }
    if content.startswith(codecs.BOM_UTF8):  # pandas removes one, which is part of a cell here
        content = codecs.BOM_UTF8 + content
    try:
        frame = pd.read_csv(io.BytesIO(content), **options | more)
        for name in frame.columns[frame.dtypes == "UInt64"]:
            if frame[name].isna().any():  # before 3.1 pandas takes 2^64 - 1 for a missing cell
                text = pd.read_csv(io.BytesIO(content), **options | {"dtype": str} | more)[name]
                frame[name] = pd.array([int(cell) for cell in text], "UInt64")
        return frame
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}); fix the file") from error


def pandas_version() -> tuple[int, ...]:
    import pandas as pd

    return tuple(int(part) for part in pd.__version__.split(".")[:2])


def is_unfiltered(cells: Any) -> bool:
    """Whether missing cells are text: pandas leaves them so beside numbers from 2^63 on."""
    if str(cells.dtype) != "string" or not isinstance(cells[0], str):
        return False
    maybe = cells[0] in NOTHING or is_number(cells[0])
    return maybe and not set(NOTHING).isdisjoint(cells)


def parse_whole(
    files: Sequence[tuple[Path, Layout]], names: Sequence[str], columns: Mapping[str, Column]
) -> None:
    """Read columns whose blocks differ in type, each parsed at once from the text of its cells."""
    texts = {name: io.BytesIO() for name in names}
    blocks = ((*file, block) for file in files if names for block in find_blocks(*file))
    for path, layout, block in blocks:
        part = parse_block(block, layout, path, usecols=names, dtype=str, na_filter=False)
        for name, text in texts.items():
            rows = io.StringIO()
            cells = ((cell,) for cell in part[name])
            csv.writer(rows, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(cells)
            text.write(rows.getvalue().encode())
    path, layout = files[0]
    for name in names:
        block = Block(texts.pop(name).getvalue(), range(0))
        cells = parse_block(block, replace(layout, columns=(name,)), path)[name].array
        columns[name].replace(cells)


def with_points(column: Any) -> Any:
    """The cells of a column of text that is numbers, most with decimal commas, with points; None
    for any other."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column.dtype):
        return None
    column = column.astype("string")
    cells = column.str.strip()
    swapped = cells.str.replace(COMMA, ".", regex=True)
    numbers = pd.to_numeric(swapped, errors="coerce")
    if (swapped == cells).all() or numbers.notna().sum() < MOSTLY * column.notna().sum():
        return None
    found = numbers.convert_dtypes() if numbers.notna().equals(column.notna()) else swapped
    return found.array
