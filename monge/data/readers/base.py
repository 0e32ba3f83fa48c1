"""What readers share: files opened safely, and the output of every reader.

That output is named values, not yet encoded, and the location of each row. Anything but a plain
file is refused, and what does not fit into memory: a small compressed file may unpack to
terabytes, so its unpacked size is found first, from the list in a zip archive, or by counting the
bytes of a .gz without storing them. The limit is a quarter of the memory available at that time.
"""

from __future__ import annotations

import gzip
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import DataError
from ...core.memory import available, gigabytes
from ..codecs.base import Codec, Locator
from ..codecs.scalar import listed
from .stored import Chain, Place

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from .delimited import TextRows

SPLITS = ("train", "valid", "test")
ARROW_SUFFIXES = (".parquet", ".feather", ".arrow", ".ipc")
JOIN_TABLES = "join tables that refer to one another into one, as with pandas.merge(a, b, on='id')"
"""The end of a sentence that refuses several tables."""


@dataclass(frozen=True)
class RowLocations:
    """The location of rows in messages: file and line, or number from 1."""

    lines: np.ndarray  # (N,) from 1, as in the file
    owner: np.ndarray  # (N,) index into `files`
    files: tuple[str, ...] = ("",)

    @classmethod
    def count(cls, n: int, file: str = "") -> RowLocations:
        return cls.of(np.arange(1, n + 1), file)

    @classmethod
    def of(cls, lines: np.ndarray, file: str = "") -> RowLocations:
        return cls(lines, np.zeros(len(lines), np.int32), (file,))

    @classmethod
    def join(cls, parts: Sequence[RowLocations]) -> RowLocations:
        if len(parts) == 1:
            return parts[0]
        owner = np.repeat(np.arange(len(parts), dtype=np.int32), [len(p.lines) for p in parts])
        files = tuple(part.files[0] for part in parts)
        return cls(np.concatenate([part.lines for part in parts]), owner, files)

    def take(self, rows: np.ndarray) -> RowLocations:
        return RowLocations(self.lines[rows], self.owner[rows], self.files)

    def at(self, what: str) -> Locator:
        """Names a cell of `what` at the start of a message."""

        def where(row: int) -> str:
            file = self.files[self.owner[row]]
            return f"{what}, row {self.lines[row]}" + (f" of {file}" if file else "")

        return where


@dataclass(frozen=True)
class ReadFormat:
    """The format that files are converted to when read: from the transforms in the name, and from
    the schema of a run."""

    side: int | None = None  # of images
    rate: int | None = None  # of sounds
    mono: bool = False
    parts: tuple[str, ...] = ()  # names of the parts of sound file names in an earlier run
    texts: Mapping[str, Codec] = field(default_factory=dict)  # text codecs of an earlier run
    store: Place | None = None  # where rows are written that do not fit into memory


@dataclass(frozen=True)
class Original:
    """Rows of a table as they are. Completed rows keep their cells: encoded ones are float32,
    which has seven digits, and know neither spellings nor columns that a run does not use."""

    names: tuple[str, ...]  # of the columns
    read: Callable[[], pd.DataFrame]
    read_texts: Callable[[], TextRows] | None = None  # of a text file
    rows: np.ndarray | None = None  # (N,) numbers of the rows in the table; None for all

    def take(self, rows: np.ndarray) -> Original:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def renamed(self, names: Mapping[str, str]) -> Original:
        return replace(self, names=tuple(names.get(name, name) for name in self.names))

    @property
    def table(self) -> pd.DataFrame:
        found = self.read().set_axis([*self.names], axis=1)
        return found if self.rows is None else found.iloc[self.rows]

    @property
    def labels(self) -> dict[str, Any]:
        """How the table itself labels its columns."""
        return dict(zip(self.names, self.read().columns, strict=True))

    @property
    def texts(self) -> pd.DataFrame | None:
        """The cells as a file writes them; None if there is no such file."""
        if self.read_texts is None:
            return None
        return self.read_texts().take(self.rows).set_axis([*self.names], axis=1)

    @property
    def first_texts(self) -> pd.DataFrame | None:
        """The first cells of the file, whatever the rows are."""
        if self.read_texts is None:
            return None
        return self.read_texts().first.set_axis([*self.names], axis=1)


def join_originals(parts: Sequence[Original | None]) -> Original | None:
    """The rows of several tables one after another."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or any({*part.names} != {*known[0].names} for part in known):
        return None

    def read() -> pd.DataFrame:
        import pandas as pd

        return pd.concat([part.table for part in known], ignore_index=True)

    def read_texts() -> TextRows:
        first, *others = (part.read_texts() for part in known if part.read_texts)
        return first.joined(others)

    written = all(part.read_texts and part.rows is None for part in known)
    return Original(known[0].names, cache(read), cache(read_texts) if written else None)


@dataclass(frozen=True)
class RawData:
    """Fields as read; a table has one per column."""

    name: str
    values: Mapping[str, Any]  # a numpy array, or in a table a pandas Series
    main: tuple[str, ...]
    places: RowLocations
    target: str | None = None
    inputs: tuple[str, ...] = ()  # the fields a target is predicted from; empty for all others
    table: bool = False
    plain: bool = False  # whether numbers have neither atoms nor bounds, as in published tables
    named: bool = True  # whether the column names come from the file
    keys: Mapping[str, str | int] = field(default_factory=dict)  # column labels of a frame
    labels: frozenset[str] = frozenset()  # fields that are always categorical
    codecs: Mapping[str, Codec] = field(default_factory=dict)  # codecs that the reader knows
    split: np.ndarray | None = None  # (N,) index into SPLITS
    density: Callable[[Tensor], Tensor] | None = None
    notes: tuple[str, ...] = ()
    numbered: bool = False  # whether `split` is one of several in the data
    row_keys: Mapping[str, np.ndarray] = field(default_factory=dict)  # columns of keys
    refused: np.ndarray | None = None  # (N,): rows with a name that the model of a run cannot have
    panel: str = ""  # column of a table that seems to name the series of each row
    carved: bool = False  # whether the reader made `split`, as tokens or blocks depend on it
    store: Any = None  # where encoded rows are kept if they are not held in memory
    original: Original | None = None  # the rows of a table as they are

    def __len__(self) -> int:
        return len(self.places.lines)

    def at(self, name: str) -> Locator:
        return self.places.at(f"column {name!r}" if self.table else name)


def join(parts: Mapping[str, RawData], name: str) -> RawData:
    """Join files of one kind, keyed by their split."""
    raws = align(list(parts.values()))
    first = raws[0]
    values = {
        field: stack([raw.values[field] for raw in raws], first.table, field)
        for field in first.values
    }
    split = np.repeat([SPLITS.index(part) for part in parts], [len(raw) for raw in raws])
    keys = {
        key: np.concatenate([raw.row_keys[key] for raw in raws])
        for key in first.row_keys
        if all(key in raw.row_keys for raw in raws)
    }
    return replace(
        first,
        name=name,
        values=values,
        split=split,
        row_keys=keys,
        places=RowLocations.join([raw.places for raw in raws]),
        original=join_originals([raw.original for raw in raws]),
        notes=tuple(note for raw in raws for note in raw.notes),
    )


def align(raws: list[RawData]) -> list[RawData]:
    """Give all files the field names of the first that has names."""
    leader = next((raw for raw in raws if raw.named), raws[0])
    return [rename(raw, leader) for raw in raws]


def rename(raw: RawData, leader: RawData) -> RawData:
    if set(raw.values) == set(leader.values):
        return raw
    if raw.named or len(raw.values) != len(leader.values):
        raise DataError(
            f"{raw.places.files[0] or raw.name} has the columns "
            f"{listed(raw.values)} and {leader.places.files[0] or leader.name} has "
            f"{listed(leader.values)}; files of one folder must agree"
        )
    return named_as(replace(raw, main=leader.main, named=True), [*leader.values])


def named_as(raw: RawData, names: Sequence[str]) -> RawData:
    """The same columns with these names."""
    renamed = dict(zip(raw.values, names, strict=True))
    values = {renamed[name]: column for name, column in raw.values.items()}
    return replace(raw, values=values, original=raw.original and raw.original.renamed(renamed))


def stack(pieces: list[Any], table: bool, name: str) -> Any:
    if table:
        import pandas as pd

        return pd.concat(pieces, ignore_index=True)
    shapes = {piece.shape[1:] for piece in pieces}
    if any(map(is_mapped, pieces)):
        return Chain(pieces, name)
    if len(shapes) > 1:
        raise DataError(
            f"{name} has the shapes {' and '.join(map(str, sorted(shapes)))} in "
            "different splits; make them equal; resize images with +resize64"
        )
    if not isinstance(pieces[0], np.ndarray):  # rows in files
        return pieces[0].joined(pieces)
    return np.concatenate(pieces)


def is_mapped(array: Any) -> bool:
    """Whether an array, or what it is a view of, is in a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


COPIES = 4
"""Copies of the unpacked content that reading needs at least."""
ALWAYS_FITS = 1 << 26
"""Bytes that always fit into memory."""
MAX_RATIO = 1032
"""The largest compression ratio of deflate."""
PIECE = 1 << 20
"""Bytes unpacked at once when counting."""
LARGE = 2**28
"""Bytes of data from which they are prepared in the cache rather than held in memory."""
UNPACKED = 8
"""How many times its size a compressed file is taken to have."""
ARCHIVES = (".npy", ".npz")
"""Suffixes of files that numpy may read as zip archives."""
NOT_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


def check_kind(path: Path) -> None:
    """Refuse anything but regular files and folders: reading a pipe or device may never end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        what = "a broken link" if path.is_symlink() else f"none ({error.strerror})"
        raise DataError(
            f"expected a file or a folder at {path}, found {what}; remove or replace it"
        ) from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        found = NOT_FILES.get(stat.S_IFMT(mode), "something else")
        raise DataError(
            f"expected a file or a folder at {path}, found {found}; copy its content to a file"
        )


def check_file(path: Path) -> None:
    """Refuse anything but plain files, and content that does not fit into memory."""
    check_kind(path)
    size, packed = path.stat().st_size, is_gz(path) or path.suffix.lower() in ARCHIVES
    if not packed and size <= ALWAYS_FITS:
        return
    free = available()
    if not is_gz(path) or size * MAX_RATIO > free // COPIES:
        whole = unpacked_size(path, free // COPIES) if packed else 0
        check_size(str(path), max(size, whole), free, whole > size)


def check_size(what: str, size: int, free: int, packed: bool = True) -> None:
    """Raise a DataError if `size` bytes do not fit into the `free` ones."""
    most = free // COPIES if packed else free
    if size > most:
        part = f"a quarter of the {gigabytes(free)}" if packed else f"the {gigabytes(free)}"
        raise DataError(
            f"{what} {'unpacks to' if packed else 'has'} more than {gigabytes(most)}, "
            f"{part} of memory available; give a smaller part of the data, or more "
            "memory"
        )


def unpacked_size(path: Path, most: int) -> int:
    """Unpacked size of a file in bytes; counting stops above `most`."""
    try:
        if not is_gz(path):
            return (
                sum(entry.file_size for entry in zipfile.ZipFile(path).infolist())
                if zipfile.is_zipfile(path)
                else 0
            )
        size = 0
        with gzip.open(path) as file:
            while size <= most and (piece := file.read(PIECE)):
                size += len(piece)
        return size
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); download it again") from error


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    check_file(path)
    content = path.read_bytes()
    return gzip.decompress(content) if is_gz(path) else content


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file, unpacked if its name ends in .gz."""
    check_kind(path)
    with gzip.open(path) if is_gz(path) else path.open("rb") as file:
        return file.read(count)


def is_gz(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def is_arrow(path: Path) -> bool:
    return path.name.lower().endswith(ARROW_SUFFIXES)


def size_of(paths: Sequence[Path]) -> int:
    """Bytes of files, of compressed ones about those of their content."""
    return sum(path.stat().st_size * (UNPACKED if is_gz(path) else 1) for path in paths)


def is_large(size: int) -> bool:
    """Whether data of so many bytes are prepared before they are used."""
    return size >= LARGE
