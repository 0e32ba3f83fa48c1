"""A prepared folder: data of any size as plain files, of which a fit reads the rows it needs.

    prepared.json   schema, statistics, settings, the files it was made of, fingerprint
    fields/0.bin    the encoded rows of the first field, one after another, and so on; rows of
                    unequal length have their starts and lengths beside them, and pictures that
                    stay in their own files have a list of these instead
    splits/         the row numbers of train, valid and test
    keys/           the cells of columns that only identify rows

The files of the fields are mapped into memory, so that the system keeps as much of them there as
there is room for. Reading the same rows gives the same tensors as data that are held in memory,
hence the same schema, the same fingerprint and the same weights.

A folder is written beside its final name and renamed once it is whole. The cells that were read
from a table are kept there until then, so that a process that was killed after reading goes on
from them; one that was killed before starts again. Pictures that were decoded are not again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout

from ..core.deferred import torch
from ..core.errors import DataError, UsageError
from ..core.files import DRAFT, load_array, replacing
from ..core.memory import gigabytes
from .codecs.array import Array
from .codecs.base import Codec
from .codecs.scalar import PIECE
from .dataset import Dataset
from .options import Options
from .packed import FieldRows, Ragged, dtype_name, pieces, some_rows
from .readers import arrow, delimited
from .readers.base import SPLITS, RawData, RowLocations, is_arrow, size_of
from .readers.columns import LazyColumns, StoredColumn, append
from .readers.stored import StoredRows, StoredSteps, at_once
from .schema import Schema, read_selection, with_missing_marks

SUFFIX = ".monge"
ABOUT = "prepared.json"
FORMAT = 2
LATE = ("labels", "balance", "augment")
"""Settings that change neither the rows nor their statistics."""
TYPES = {name: np.dtype(name) for name in ("float32", "int64", "int32", "int16", "uint8")}
"""How encoded values are stored: numbers, codes of names, tokens, levels."""
MANY = 1000
"""Files from which the list of them is remembered by its digest alone."""
BYTES = 16
"""Bytes that a cell takes at most on disk while a table is prepared."""


class NotATable(DataError):
    """Data that cannot be prepared, as their rows are not the rows of a table."""


def is_prepared(path: Path) -> bool:
    return (path / ABOUT).is_file()


def cache_root() -> Path:
    """The folder of tables that were prepared because they are large: MONGE_CACHE, or one in the
    user's cache."""
    if named := os.environ.get("MONGE_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "monge"


@dataclass(frozen=True)
class CachedFolder:
    """Data in the cache: prepared, or left over by a process that was killed."""

    path: Path
    bytes: int
    used: float  # when it was read last, in seconds since 1970
    source: str  # the first of the files that it was made of
    whole: bool


def cached() -> list[CachedFolder]:
    """What is in the cache, what was not used for the longest time first."""
    found = []
    for path in sorted(cache_root().glob(f"*{SUFFIX}")) + sorted(cache_root().glob(".*.part")):
        whole = is_prepared(path)
        about = read_json(path / ABOUT) if whole else None
        source = about["origin"][0][0] if isinstance(about, dict) else ""
        used = (path / ABOUT if whole else path).stat().st_mtime
        found.append(CachedFolder(path, written(path), used, source, whole))
    return sorted(found, key=lambda each: each.used)


def remove(folder: CachedFolder) -> None:
    """Remove a folder of the cache, unless it is being written."""
    name = folder.path.name.removeprefix(".").removesuffix(".part")
    try:
        with FileLock(lock_of(folder.path.with_name(name)), timeout=0):
            shutil.rmtree(folder.path)
    except Timeout:
        raise DataError(
            f"expected a folder that is not being written, found {folder.path}; wait until the "
            "process that prepares it has ended"
        ) from None


def cache_place(inputs: Inputs, options: Options, stored: Mapping[str, Any] | None) -> Path:
    """The prepared folder of these files in the cache, whether it exists or not."""
    about = [inputs.origin, early(options), stored, *([inputs.changes] if inputs.changes else [])]
    text = json.dumps(about, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_root() / f"{inputs.label}-{digest}{SUFFIX}"


@dataclass(frozen=True)
class Inputs:
    """The files that a folder is prepared from."""

    paths: Sequence[Path]
    kind: Literal["table", "pictures", "text", "arrays"]
    label: str  # of the folder in the cache
    changes: tuple[str, ...] = ()  # transforms in the name of the data

    @property
    def origin(self) -> list[list[Any]]:
        """Path, size and time of change of each file; of many files their number and a digest."""
        found = [(os.path.abspath(path), path.stat()) for path in self.paths]
        each = [[path, about.st_size, about.st_mtime_ns] for path, about in found]
        if len(each) < MANY:
            return each
        digest = hashlib.sha256(json.dumps(each).encode()).hexdigest()
        return [[os.path.abspath(self.paths[0].parent), len(each), digest]]

    @property
    def size(self) -> int:
        """About how many bytes the data take."""
        if self.kind == "pictures":
            return len(self.paths) * picture_bytes(self.paths[0], self.changes)
        return size_of(self.paths)

    def needed(self, options: Options) -> int:
        """About how many bytes preparing the files takes on disk."""
        if self.kind == "table":
            return needed(self.paths, options)
        packed = any(path.suffix.lower() == ".npz" for path in self.paths)
        return self.size * (2 if packed or self.kind == "text" else 1)


def picture_bytes(path: Path, changes: Sequence[str]) -> int:
    """Bytes of a picture once it is decoded."""
    from .readers.decoding import header, refusing_bombs

    with refusing_bombs():
        (height, width), grey = header(path)
    sides = [int(change.removeprefix("resize")) for change in changes]
    return (1 if grey else 3) * (sides[0] ** 2 if sides else height * width)


def early(options: Options) -> dict[str, Any]:
    """The settings that decide what is stored."""
    found = json.loads(json.dumps(asdict(options)))
    return {name: value for name, value in found.items() if name not in LATE}


@dataclass(frozen=True)
class StoredField:
    """The encoded rows of a field in a file."""

    path: Path
    kind: str  # of the numbers
    shape: tuple[int, ...] = ()  # of one row
    form: Literal["rows", "steps", "pictures"] = "rows"
    side: int | None = None  # that pictures are brought to

    @classmethod
    def read(cls, path: Path, about: Any) -> StoredField:
        """As `about` says; the first format has only numbers, one for each row."""
        if isinstance(about, str):
            return cls(path, about)
        return cls(path, about["kind"], tuple(about["shape"]), about["form"], about["side"])

    @property
    def about(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kind", "shape", "form", "side")}

    def beside(self, part: str) -> Path:
        return self.path.with_suffix(f".{part}.npy")

    def open(self) -> Any:
        """The rows, mapped into memory: an array of single values, or a tensor."""
        if self.form == "pictures":
            from .readers.decoding import PictureRows

            return PictureRows(read_json(self.path), self.shape, self.side)  # type: ignore[arg-type]
        flat = np.memmap(self.path, TYPES[self.kind], "c").view(np.ndarray)
        if self.form == "steps":
            start, length = (
                torch.from_numpy(load_array(self.beside(part), "c")) for part in STEPS
            )
            return Ragged(torch.from_numpy(flat), start, length)
        return torch.from_numpy(flat).reshape(-1, *self.shape) if self.shape else flat

    def check(self, rows: int) -> None:
        """ValueError unless the files hold as many rows."""
        if self.form == "pictures":
            found = len(read_json(self.path) or ())
        elif self.form == "steps":
            opened = self.open()
            last = int((opened.start + opened.length).max())
            found = len(opened) if last <= len(opened.flat) else -1
        else:
            row = TYPES[self.kind].itemsize * math.prod(self.shape)
            found, more = divmod(self.path.stat().st_size, row)
            found = -1 if more else found
        if found != rows:
            raise ValueError(f"{self.path.name} has {self.path.stat().st_size} bytes")

    def pieces(self) -> Iterator[tuple[list[int], str, Iterator[Any]]]:
        """Shape and type of each part of the rows, as `Dataset.fingerprint` reads them, with its
        bytes some at a time; what was read does not stay in memory."""
        opened = self.open()
        if self.form == "rows":
            yield list(opened.shape), f"torch.{dtype_name(opened)}", file_pieces(self.path)
            return
        for part in opened.parts if isinstance(opened, Ragged) else [opened]:
            some = (piece.contiguous().numpy().data.cast("B") for piece in some_rows(part))
            yield list(part.shape), str(part.dtype), some


def write_field(path: Path, rows: Any) -> StoredField:
    """Write rows that are not those of a file as they were read."""
    if isinstance(rows, Ragged):
        for part in some_rows(rows.flat):
            append(path, part.numpy(), None)
        for name in STEPS:
            with path.with_name(f"{path.name}-{name}").open("wb") as file:
                np.save(file, getattr(rows, name).numpy())
        return StoredField(path, str(rows.flat.numpy().dtype), form="steps")
    if not isinstance(rows, np.ndarray | torch.Tensor):
        write_json(path, rows.paths)
        return StoredField(path, "uint8", tuple(rows.shape[1:]), "pictures", rows.side)
    for part in some_rows(rows):
        append(path, np.ascontiguousarray(part), None)
    return StoredField(path, dtype_name(rows), tuple(rows.shape[1:]))


STEPS = ("start", "length")
"""Where each row of unequal length begins, and how long it is."""


def file_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(2**22), b"")


class StoredTensors(Mapping[str, Any]):
    """Encoded rows in files, mapped anew whenever they are asked for, so that what was read of
    one field does not stay in memory."""

    def __init__(self, files: Mapping[str, StoredField]) -> None:
        self.files = files

    def __getitem__(self, name: str) -> Any:
        return self.files[name].open()

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


class Store:
    """The folder in which data are being prepared."""

    def __init__(
        self, folder: Path, inputs: Inputs, options: Options, stored: str, direct: bool
    ) -> None:
        self.folder, self.inputs, self.options, self.stored = folder, inputs, options, stored
        self.cells, self.rows = folder / "cells", folder / "fields"
        self.origin, self.direct, self.made = inputs.origin, direct, 0
        for each in (self.cells, self.rows, folder / "splits", folder / "keys"):
            each.mkdir(parents=True, exist_ok=True)

    def new(self, suffix: str) -> Path:
        """A file for what is read, which is there until all is prepared."""
        self.made += 1
        return self.cells / f"{self.made}{suffix}"

    def resume(self) -> RawData | None:
        """The table whose cells a process that was killed had read; None if there is none."""
        path = self.folder / "read.json"
        if not path.exists():
            for left in self.cells.iterdir():
                left.unlink()
            return None
        about = json.loads(path.read_text(encoding="utf-8"))
        columns = {
            name: StoredColumn.restored(self.cells / f"{place}.cells", state)
            for place, (name, state) in enumerate(about["columns"].items())
        }
        lines, owner = (load_array(self.cells / f"{part}.npy", "r") for part in ("lines", "owner"))
        return RawData(
            about["name"],
            LazyColumns(columns),
            tuple(columns),
            RowLocations(lines, owner, tuple(about["files"])),
            table=True,
            named=about["named"],
            notes=tuple(about["notes"]),
        )

    def finish_reading(self, raw: RawData) -> RawData:
        """Remember the cells that were read of files which did not change meanwhile; returns the
        table with the lines of its rows in a file too."""
        self.check_unchanged()
        assert isinstance(raw.values, LazyColumns), "cells are in files"
        np.save(self.cells / "lines.npy", raw.places.lines)
        np.save(self.cells / "owner.npy", raw.places.owner)
        states = {
            name: column.state
            for name, column in raw.values.columns.items()
            if isinstance(column, StoredColumn)
        }
        write_json(
            self.folder / "read.json",
            {
                "name": raw.name,
                "named": raw.named,
                "notes": raw.notes,
                "files": raw.places.files,
                "columns": states,
            },
        )
        lines, owner = (load_array(self.cells / f"{part}.npy", "r") for part in ("lines", "owner"))
        return replace(raw, places=RowLocations(lines, owner, raw.places.files))

    def check_unchanged(self) -> None:
        now = self.inputs.origin
        for (path, size, time), (_, new, changed) in zip(self.origin, now, strict=True):
            if (size, time) != (new, changed):
                what = "bytes" if len(self.inputs.paths) < MANY else "files"
                raise DataError(
                    f"{path}: expected what stays as it is while it is read, found {size} {what} "
                    f"that are now {new} and were changed; wait until it is written, and prepare "
                    "it again"
                )

    def check_table(self, raw: RawData) -> None:
        """Refuse rows that are windows of a series, and columns of text."""
        texts = [name for name in raw.codecs if name in raw.values]
        if raw.store is None:
            raise NotATable(
                f"expected rows that are not a series, found {raw.name}, of which only what fits "
                "into memory can be read; set data.time=none, or give a part of it"
            )
        if texts:
            raise NotATable(
                f"expected columns of numbers and names, found text in {texts[0]!r}, which is "
                f"read only from tables that fit into memory; drop it with "
                f"data.drop={texts[0]}",
                f"drop={texts[0]}",
            )

    def encode(
        self, raw: RawData, codecs: Mapping[str, Codec], values: Mapping[str, Any]
    ) -> StoredTensors:
        """Write the encoded cells of each field, some rows at a time."""
        files: dict[str, StoredField] = {}
        for place, (name, codec) in enumerate(codecs.items()):
            path, cells, at = self.rows / f"{place}.bin", values[name], raw.at(name)
            path.unlink(missing_ok=True)
            if (made := self.as_read(path, cells)) is not None:
                files[name] = made
                continue
            size = at_once(cells.shape) if isinstance(codec, Array) else PIECE
            for start in range(0, len(cells), size):
                some = cells[start : start + size]
                codes = codec.encode(some, lambda row: at(start + row))  # noqa: B023
                if isinstance(codes, Ragged):
                    raise NotATable(
                        f"expected rows of one length, found sequences in {name!r}, which are "
                        "read only from files that fit into memory; give a part of them"
                    )
                append(path, np.asarray(codes), None)
                files[name] = StoredField(path, dtype_name(codes), tuple(codes.shape[1:]))
        return StoredTensors(files)

    def as_read(self, path: Path, values: Any) -> StoredField | None:
        """A field that its reader has encoded; None for others."""
        if isinstance(values, StoredRows):
            values.in_one(path)
            return StoredField(path, values.kind, values.shape[1:])
        if isinstance(values, StoredSteps):
            values.path.replace(path)
            field = StoredField(path, values.kind, form="steps")
            np.save(field.beside("length"), values.length)
            np.save(field.beside("start"), np.cumsum(values.length) - values.length)
            return field
        if self.inputs.kind == "pictures":
            from .readers.decoding import PictureRows

            if isinstance(values, PictureRows):
                write_json(path, values.paths)
                return StoredField(path, "uint8", values.shape[1:], "pictures", values.side)
        return None

    def select(self, tensors: Mapping[str, FieldRows], rows: np.ndarray) -> StoredTensors:
        """Some of the rows alone."""
        assert isinstance(tensors, StoredTensors), "rows are in files"
        files = {}
        for name, field in tensors.files.items():
            fresh = replace(field, path=self.rows / f"{secrets.token_hex(4)}.chosen")
            if field.form == "pictures":
                every = read_json(field.path)
                write_json(fresh.path, [every[row] for row in rows.tolist()])
            elif field.form == "steps":
                os.link(field.path, fresh.path)
                for part in STEPS:
                    np.save(fresh.beside(part), load_array(field.beside(part), "r")[rows])
            else:
                for some in pieces(rows, at_once((1, *field.shape))):
                    append(fresh.path, np.asarray(tensors[name][some]), None)
            files[name] = fresh
        return StoredTensors(files)

    def write(self, dataset: Dataset) -> None:
        """Write what the folder still lacks, and remove what only preparing needs."""
        self.check_unchanged()
        made, rows = {}, len(dataset)
        for place, field in enumerate(dataset.schema.fields):
            path = self.rows / f"{place}.new"
            known = getattr(dataset.stored, "files", {}).get(field.name)
            if known is not None:
                fresh = replace(known, path=path)
                os.replace(known.path, path)
                for part in STEPS if known.form == "steps" else ():
                    os.replace(known.beside(part), path.with_name(f"{place}.new-{part}"))
            else:
                fresh = write_field(path, dataset.stored[field.name])
            made[field.name] = replace(fresh, path=self.rows / f"{place}.bin")
        for field in made.values():
            draft = field.path.with_suffix(".new")
            os.replace(draft, field.path)
            for part in STEPS if field.form == "steps" else ():
                os.replace(f"{draft}-{part}", field.beside(part))
        kept = {field.path.name.partition(".")[0] for field in made.values()}
        for path in self.rows.iterdir():
            if path.name.partition(".")[0] not in kept:
                path.unlink()
        for split, index in dataset.split_rows.items():
            np.save(self.folder / "splits" / f"{split}.npy", index)
        keys = {}
        for place, (name, cells) in enumerate(dataset.row_keys.items()):
            text = cells.dtype.kind not in "biuf"
            np.save(self.folder / "keys" / f"{place}.npy", cells.astype(str) if text else cells)
            keys[name] = "text" if text else "number"
        if dataset.refused is not None:
            np.save(self.folder / "refused.npy", dataset.refused)
        # First what says that the cells were read: killed here, the next process reads them again.
        (self.folder / "read.json").unlink(missing_ok=True)
        shutil.rmtree(self.cells)
        write_json(
            self.folder / ABOUT,
            {
                "format": FORMAT,
                "rows": rows,
                "settings": asdict(self.options),
                "changes": self.inputs.changes,
                "origin": self.origin,
                "for_run": self.stored,
                "schema": dataset.schema.to_dict(),
                "kinds": {name: field.about for name, field in made.items()},
                "keys": keys,
                "has_splits": dataset.has_splits,
                "notes": dataset.notes,
                "dropped": dataset.dropped,
                "fingerprint": dataset.copy(stored=StoredTensors(made)).fingerprint,
            },
        )


def stored_tensors(folder: Path, schema: Schema, kinds: Mapping[str, Any]) -> StoredTensors:
    return StoredTensors(
        {
            field.name: StoredField.read(folder / "fields" / f"{place}.bin", kinds[field.name])
            for place, field in enumerate(schema.fields)
        }
    )


def write_json(path: Path, content: Any) -> None:
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(content), encoding="utf-8")


@contextmanager
def writing(
    inputs: Inputs, out: Path, options: Options, stored: Mapping[str, Any] | None, whole: bool
) -> Iterator[Store | None]:
    """The store of a folder that does not exist yet, renamed to `out` when the block succeeds;
    None if another process has made it while this one waited for it. Unless it is to be `whole`,
    pictures stay in their files if there is no room for them."""
    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock_of(out)):
            if is_prepared(out):
                yield None
                return
            about = [inputs.origin, early(options), digest_of(stored), inputs.changes, FORMAT]
            if read_json(part / "about.json") != json.loads(json.dumps(about)):
                shutil.rmtree(part, ignore_errors=True)
            for draft in part.rglob(".*"):
                if DRAFT.fullmatch(draft.name):  # of a process that was killed
                    draft.unlink()
            missing = lacking(inputs, options, part)
            direct = missing is not None and inputs.kind == "pictures" and not whole
            if missing is not None and not direct:
                raise missing
            store = Store(part, inputs, options, digest_of(stored), direct)
            write_json(part / "about.json", about)
            try:
                yield store
            except DataError:
                shutil.rmtree(part, ignore_errors=True)
                raise
            (part / "about.json").unlink()
            part.rename(out)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        shutil.rmtree(part, ignore_errors=True)
        raise no_room(inputs, options, out, 0) from error


def lock_of(out: Path) -> Path:
    """The lock of a folder that is being written, away from it, as it is never removed."""
    whose = f"{os.path.expanduser('~')} {os.path.abspath(out)}"
    name = hashlib.sha256(whose.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"monge-{name}.lock"


def digest_of(stored: Mapping[str, Any] | None) -> str:
    """Which fields of a run the rows were read with; empty for none."""
    text = "" if stored is None else json.dumps(stored, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def lacking(inputs: Inputs, options: Options, part: Path) -> DataError | None:
    """Why data cannot be prepared that do not fit on the disk; None if they do."""
    free = shutil.disk_usage(part.parent).free + written(part)
    return no_room(inputs, options, part, free) if inputs.needed(options) > free else None


def written(folder: Path) -> int:
    """Bytes on the disk of the files in a folder."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


def no_room(inputs: Inputs, options: Options, place: Path, free: int) -> DataError:
    return DataError(
        f"expected {gigabytes(inputs.needed(options))} of space in {place.parent} to prepare "
        f"{inputs.label}, found {gigabytes(free)}; free some (`monge data cache` shows what is "
        "prepared), or name a folder on a larger disk with MONGE_CACHE, or with -o of `monge data "
        "prepare`"
    )


def needed(paths: Sequence[Path], options: Options) -> int:
    """About how many bytes preparing files takes on disk."""
    if is_arrow(paths[0]):
        return sum(BYTES * arrow.rows_of(path) * len(arrow.names(path)) for path in paths)
    layout = delimited.find_layout(paths[0], options)
    lines = delimited.opening(paths[0], 100)[0].splitlines()
    size = size_of(paths)
    length = sum(map(len, lines)) / len(lines) + 1
    return int(BYTES * layout.width * size / length)


def read(
    folder: Path, settings: Sequence[str] = (), stored: Mapping[str, Any] | None = None
) -> Dataset:
    """The dataset of a prepared folder, with the schema of a run if its fields are `stored`."""
    about = read_json(folder / ABOUT)
    try:
        if about["format"] > FORMAT:
            raise DataError(
                f"{folder} is of format {about['format']}, which is newer than this version of "
                "Monge; install a newer one"
            )
        options = Options(**tuples(about["settings"]))
        schema = Schema.from_dict(about["schema"])
        rows, kinds = int(about["rows"]), about["kinds"]
        tensors = stored_tensors(folder, schema, kinds)
        for field in tensors.files.values():
            field.check(rows)
        splits = {split: load_array(folder / "splits" / f"{split}.npy", "c") for split in SPLITS}
        keys = {
            name: load_array(folder / "keys" / f"{place}.npy", "r")
            for place, name in enumerate(about["keys"])
        }
        for name, index in splits.items():
            if index.dtype != np.int64 or (len(index) and not is_within(index, rows)):
                raise ValueError(f"{name} has rows that are not there")
        for name, cells in keys.items():
            if cells.shape != (rows,):
                raise ValueError(f"{name} has the shape {cells.shape}")
        refused = folder / "refused.npy"
        dataset = Dataset(
            schema,
            tensors,
            splits,
            about["has_splits"],
            None,
            about["notes"],
            about["dropped"],
            with_settings(options, settings, folder),
            keys,
            load_array(refused) if refused.exists() else None,
        )
    except (OSError, KeyError, TypeError, ValueError, UsageError) as error:
        if isinstance(error, DataError | UsageError):
            raise
        raise DataError(
            f"{folder}: expected a prepared folder as Monge writes it, found a damaged one "
            f"({error}); prepare the data again"
        ) from error
    dataset.__dict__["fingerprint"] = about["fingerprint"]
    if folder.parent.resolve() == cache_root().resolve():
        dataset.notes = (*dataset.notes, *notes_of(folder, tensors))
        os.utime(folder / ABOUT)  # when it was used last
    if stored is None or about["for_run"] == digest_of(stored):
        return dataset
    own = read_selection(stored).schema
    if same_columns(own, schema):
        return dataset.copy(schema=with_missing_marks(own, schema.name, tensors))
    raise OtherColumns(dataset)


def unchanged_files(folder: Path) -> list[Path]:
    """The files that a folder was prepared from; none if one of them changed or is gone, or they
    are too many to be listed."""
    about = read_json(folder / ABOUT)
    origin = about.get("origin", []) if isinstance(about, dict) else []
    found = []
    for path, size, time in origin:
        try:
            now = os.stat(path)
        except (OSError, TypeError, ValueError):
            return []
        if (now.st_size, now.st_mtime_ns) != (size, time):
            return []
        found.append(Path(path))
    return found


def notes_of(folder: Path, tensors: StoredTensors) -> list[str]:
    if any(field.form == "pictures" for field in tensors.files.values()):
        return [
            "the pictures are decoded from their files in every batch, as there was no room for "
            f"them in {folder.parent}; MONGE_CACHE names another folder"
        ]
    return [f"the rows are read from {folder}, where the data were prepared"]


def is_within(index: np.ndarray, rows: int) -> bool:
    return int(index.min()) >= 0 and int(index.max()) < rows


class OtherColumns(Exception):
    """A prepared folder whose cells are encoded in another way than a run asks for."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset.name)
        self.dataset = dataset


def same_columns(own: Schema, other: Schema) -> bool:
    """Whether the rows of one schema are encoded, and may be, as those of the other."""
    return own.to_dict() == replace(other, name=own.name).to_dict()


def tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(Options)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
        if name in known
    }


def with_settings(options: Options, settings: Sequence[str], folder: Path) -> Options:
    """The settings of a prepared folder; only those that do not change its rows can be others."""
    wanted = options.override(*settings)
    for name, value in early(wanted).items():
        if value != early(options)[name]:
            raise UsageError(
                f"expected the settings that {folder} was prepared with, found "
                f"data.{name}={value} in place of {early(options)[name]}; prepare the data again "
                f"with it"
            )
    return wanted
