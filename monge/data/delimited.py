"""Text files of rows and cells, cut by commas, tabs, semicolons or blanks, named or not."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.error import DataError
from .options import Options

if TYPE_CHECKING:
    import pandas as pd

NOTHING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "<NA>", "#N/A")
"""How an empty cell is written; None is a name people use."""
COMMA = re.compile(r"(?<=\d),(?=\d)")
"""A decimal comma, where cells are cut by semicolons."""
SNIFFED = 50
"""Lines that decide what separates cells."""


@dataclass(frozen=True)
class Sheet:
    """A file's cells, the line each row stands on, and whether its columns have names."""

    frame: pd.DataFrame
    lines: np.ndarray  # (N,) from 1
    named: bool
    notes: tuple[str, ...]


def read(path: Path, options: Options) -> Sheet:
    lines, notes = trim(load(path), path)
    mark = separator(lines, path)
    if mark is None:
        lines, mark = ["\t".join(line.split()) for line in lines], "\t"
    if mark == ";" and any(COMMA.search(line) for line in lines):
        lines = [COMMA.sub(".", line) for line in lines]
        notes += (f"commas between digits of {path.name} are read as decimal points",)
    records = count(lines, mark, path)
    first = next(csv.reader(lines[records[0] - 1:], delimiter=mark, skipinitialspace=True))
    named = options.header == "yes" or (options.header == "auto" and is_header(first))
    columns = column_names(first, path) if named else [f"c{i + 1}" for i in range(len(first))]
    if named and len(records) == 1:
        raise DataError(f"{path} has a line of names and no rows; add rows, or say data.header=no")
    body = lines[records[0]:] if named else lines
    return Sheet(parse(body, mark, columns, path), np.array(records[named:]), named, notes)


def load(path: Path) -> list[str]:
    """The lines of a text file, unpacked where its name ends in .gz."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8, or "
                        "check that it is a table") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); check the file") from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty; give it rows")
    return lines


def trim(lines: list[str], path: Path) -> tuple[list[str], tuple[str, ...]]:
    """Blank lines made empty; a full stop that ends every line is no part of its last cell."""
    lines = [line if line.strip() else "" for line in lines]
    full = [line for line in lines if line][1:]
    if not full or not all(line.endswith(".") for line in full) or "," not in full[0]:
        return lines, ()
    return [line.removesuffix(".") for line in lines], (
        f"every line of {path.name} ends with a full stop, which is not read as data",)


def separator(lines: Sequence[str], path: Path) -> str | None:
    """The mark that cuts most lines into equally many cells, more than one; None for blanks."""
    name = path.name.removesuffix(".gz").lower()
    if name.endswith(".tsv"):
        return "\t"
    some = [line for line in lines if line][:SNIFFED]
    best = max(("\t", ";", ","), key=lambda mark: agreement(some, mark))
    if agreement(some, best):
        return best
    spaced = name.endswith((".txt", ".data")) and any(len(line.split()) > 1 for line in some)
    return None if spaced else ","


def agreement(lines: Sequence[str], mark: str) -> float:
    """The part of the lines that have the commonest number of cells, if that is above one."""
    widths = Counter(len(row) for row in csv.reader(lines, delimiter=mark))
    cells, agreeing = widths.most_common()[0]
    return agreeing / len(lines) if cells > 1 else 0.0


def count(lines: Sequence[str], mark: str, path: Path) -> list[int]:
    """The line number of every row, all of which have as many cells as the first."""
    reader = csv.reader(lines, delimiter=mark, skipinitialspace=True)
    found, width = [], 0
    try:
        for row in reader:
            if not row:
                continue
            width = width or len(row)
            if len(row) != width:
                raise DataError(f"{path}, row {reader.line_num}: {len(row)} cells where the first "
                                f"row has {width}; mend the row" +
                                ("" if mark == "\t" else f", or quote a cell that holds {mark}"))
            found.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}, row {reader.line_num}: {error}; mend the row") from error
    return found


def is_header(cells: Sequence[str]) -> bool:
    """No cell is a number and no two are equal."""
    return not any(is_number(cell) for cell in cells) and len(set(cells)) == len(cells)


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def column_names(cells: Sequence[str], path: Path) -> list[str]:
    names = [cell.strip() or f"c{place + 1}" for place, cell in enumerate(cells)]
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns called {twice!r}; rename one, or say "
                        "data.header=no if the first line is data")
    return names


def parse(lines: Sequence[str], mark: str, columns: list[str], path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_csv(
            io.StringIO("\n".join(lines)), sep=mark, header=None, names=columns, index_col=False,
            skipinitialspace=True, keep_default_na=False, na_values=list(NOTHING),
            dtype_backend="numpy_nullable", low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}); mend the file") from error
    plain = {"Int64": "int64", "Float64": "float64", "boolean": "bool", "string": "str"}
    whole = {name: plain[str(column.dtype)] for name, column in frame.items()
             if str(column.dtype) in plain and not column.isna().any()}
    return frame.astype(whole)
