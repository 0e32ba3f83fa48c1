"""A prepared folder: a table of any length as plain files, of which a fit reads the rows it needs.

    prepared.json   schema, statistics, settings, the files it was made of, fingerprint
    fields/0.bin    the encoded cells of the first field, one after another, and so on
    splits/         the row numbers of train, valid and test
    keys/           the cells of columns that only identify rows

The files of the fields are mapped into memory, so that the system keeps as much of them there as
there is room for. Reading the same rows gives the same tensors as a table that is held in memory,
hence the same schema, the same fingerprint and the same weights.

A folder is written beside its final name and renamed once it is whole. The cells that were read
from the table are kept there until then, so that a process that was killed after reading goes on
from them; one that was killed before starts again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from ..core.errors import DataError, UsageError
from ..core.files import replacing
from ..core.memory import gigabytes
from .codecs.base import Codec
from .codecs.scalar import pieces
from .dataset import Dataset
from .options import Options
from .packed import PackedTensor
from .readers import arrow, delimited
from .readers.base import SPLITS, RawData, RowLocations, is_arrow, size_of
from .readers.columns import LazyColumns, StoredColumn, append
from .schema import Schema, read_selection, with_missing_marks

SUFFIX = ".monge"
ABOUT = "prepared.json"
FORMAT = 1
LARGE = 2**28
"""Bytes of files from which a table is prepared in the cache rather than held in memory."""
LATE = ("labels", "balance", "augment")
"""Settings that change neither the rows nor their statistics."""
TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "int64": np.dtype(np.int64)}
"""How encoded cells are stored: numbers, and codes of names."""
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


def cache_place(paths: Sequence[Path], options: Options, stored: Mapping[str, Any] | None) -> Path:
    """The prepared folder of these files in the cache, whether it exists or not."""
    about = json.dumps([origin(paths), early(options), stored], sort_keys=True, default=str)
    digest = hashlib.sha256(about.encode()).hexdigest()[:16]
    return cache_root() / f"{Path(paths[0].name.removesuffix('.gz')).stem}-{digest}.monge"


def origin(paths: Sequence[Path]) -> list[list[Any]]:
    """Path, size and time of change of each file."""
    found = [(os.path.abspath(path), path.stat()) for path in paths]
    return [[path, about.st_size, about.st_mtime_ns] for path, about in found]


def early(options: Options) -> dict[str, Any]:
    """The settings that decide what is stored."""
    found = json.loads(json.dumps(asdict(options)))
    return {name: value for name, value in found.items() if name not in LATE}


class StoredTensors(Mapping[str, Tensor]):
    """Encoded cells in files, mapped anew whenever they are asked for, so that what was read of
    one column does not stay in memory."""

    def __init__(self, files: Mapping[str, tuple[Path, str]]) -> None:
        self.files = files

    def __getitem__(self, name: str) -> Tensor:
        path, kind = self.files[name]
        return torch.from_numpy(np.memmap(path, TYPES[kind], "c").view(np.ndarray))

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


class Store:
    """The folder in which a table is being prepared."""

    def __init__(self, folder: Path, paths: Sequence[Path], options: Options, stored: str) -> None:
        self.folder, self.paths, self.options, self.stored = folder, paths, options, stored
        self.cells, self.rows = folder / "cells", folder / "fields"
        self.origin = origin(paths)
        for each in (self.cells, self.rows, folder / "splits", folder / "keys"):
            each.mkdir(parents=True, exist_ok=True)

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
        lines, owner = (np.load(self.cells / f"{part}.npy", "r") for part in ("lines", "owner"))
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
        lines, owner = (np.load(self.cells / f"{part}.npy", "r") for part in ("lines", "owner"))
        return replace(raw, places=RowLocations(lines, owner, raw.places.files))

    def check_unchanged(self) -> None:
        for path, (_, size, time) in zip(self.paths, self.origin, strict=True):
            now = path.stat()
            if (now.st_size, now.st_mtime_ns) != (size, time):
                raise DataError(
                    f"{path}: expected a file that stays as it is while it is read, found one of "
                    f"{size} bytes that now has {now.st_size} and was changed; wait until it is "
                    "written, and prepare it again"
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
        """Write the encoded cells of each column, some rows at a time."""
        files = {}
        for place, (name, codec) in enumerate(codecs.items()):
            path, cells, at = self.rows / f"{place}.bin", values[name], raw.at(name)
            path.unlink(missing_ok=True)
            for start, some in pieces(cells):
                codes = codec.encode(some, lambda row: at(start + row))  # noqa: B023
                assert isinstance(codes, Tensor), "a table has one cell per row and column"
                append(path, codes.numpy(), None)
                files[name] = (path, str(codes.dtype).removeprefix("torch."))
        return StoredTensors(files)

    def select(self, tensors: Mapping[str, PackedTensor], rows: Tensor) -> StoredTensors:
        """Some of the rows alone."""
        files = {}
        for name in tensors:
            column = tensors[name]
            assert isinstance(column, Tensor), "a table has one cell per row and column"
            path = self.rows / f"{secrets.token_hex(4)}.chosen"
            for part in rows.split(2**20):
                append(path, column[part].numpy(), None)
            files[name] = (path, str(column.numpy().dtype))
        return StoredTensors(files)

    def write(self, dataset: Dataset) -> None:
        """Write what the folder still lacks, and remove what only preparing needs."""
        self.check_unchanged()
        kinds, rows = {}, len(dataset)
        for place, field in enumerate(dataset.schema.fields):
            column = dataset.tensors[field.name]
            assert isinstance(column, Tensor), "a table has one cell per row and column"
            path, kinds[field.name] = self.rows / f"{place}.new", str(column.numpy().dtype)
            known = getattr(dataset.tensors, "files", {}).get(field.name)
            if known is not None:
                os.replace(known[0], path)
            else:
                path.write_bytes(column.contiguous().numpy().data)
        for place in range(len(kinds)):
            os.replace(self.rows / f"{place}.new", self.rows / f"{place}.bin")
        for path in self.rows.iterdir():
            if path.name not in {f"{place}.bin" for place in range(len(kinds))}:
                path.unlink()
        for split, index in dataset.splits.items():
            np.save(self.folder / "splits" / f"{split}.npy", index.numpy())
        keys = {}
        for place, (name, cells) in enumerate(dataset.row_keys.items()):
            text = cells.dtype.kind not in "biuf"
            np.save(self.folder / "keys" / f"{place}.npy", cells.astype(str) if text else cells)
            keys[name] = "text" if text else "number"
        if dataset.refused is not None:
            np.save(self.folder / "refused.npy", dataset.refused.numpy())
        shutil.rmtree(self.cells)
        stored = self.stored_tensors(dataset.schema, kinds)
        write_json(
            self.folder / ABOUT,
            {
                "format": FORMAT,
                "rows": rows,
                "settings": asdict(self.options),
                "origin": self.origin,
                "for_run": self.stored,
                "schema": dataset.schema.to_dict(),
                "kinds": kinds,
                "keys": keys,
                "has_splits": dataset.has_splits,
                "notes": dataset.notes,
                "dropped": dataset.dropped,
                "fingerprint": dataset.copy(tensors=stored).fingerprint,
            },
        )
        (self.folder / "read.json").unlink()

    def stored_tensors(self, schema: Schema, kinds: Mapping[str, str]) -> StoredTensors:
        return stored_tensors(self.folder, schema, kinds)


def stored_tensors(folder: Path, schema: Schema, kinds: Mapping[str, str]) -> StoredTensors:
    return StoredTensors(
        {
            field.name: (folder / "fields" / f"{place}.bin", kinds[field.name])
            for place, field in enumerate(schema.fields)
        }
    )


def write_json(path: Path, content: Any) -> None:
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(content), encoding="utf-8")


@contextmanager
def writing(
    paths: Sequence[Path], out: Path, options: Options, stored: Mapping[str, Any] | None
) -> Iterator[Store | None]:
    """The store of a folder that does not exist yet, renamed to `out` when the block succeeds;
    None if another process has made it while this one waited for it."""
    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock_of(out)):
            if is_prepared(out):
                yield None
                return
            about = [origin(paths), early(options), digest_of(stored), FORMAT]
            if read_json(part / "about.json") != json.loads(json.dumps(about)):
                shutil.rmtree(part, ignore_errors=True)
            check_room(paths, options, part)
            store = Store(part, paths, options, digest_of(stored))
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
        raise no_room(paths, options, out, 0) from error


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


def check_room(paths: Sequence[Path], options: Options, part: Path) -> None:
    """Refuse to prepare a table that does not fit on the disk."""
    free = shutil.disk_usage(part.parent).free
    if needed(paths, options) > free:
        raise no_room(paths, options, part, free)


def no_room(paths: Sequence[Path], options: Options, place: Path, free: int) -> DataError:
    return DataError(
        f"expected {gigabytes(needed(paths, options))} of space in {place.parent} to prepare "
        f"{paths[0].name}, found {gigabytes(free)}; free some, or name a folder on a larger disk "
        "with MONGE_CACHE, or with -o of `monge data prepare`"
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
        for path, kind in tensors.files.values():
            if path.stat().st_size != rows * TYPES[kind].itemsize:
                raise ValueError(f"{path.name} has {path.stat().st_size} bytes")
        splits = {
            split: torch.from_numpy(np.load(folder / "splits" / f"{split}.npy", "c"))
            for split in SPLITS
        }
        keys = {
            name: np.load(folder / "keys" / f"{place}.npy", "r")
            for place, name in enumerate(about["keys"])
        }
        for name, index in splits.items():
            if index.dtype != torch.int64 or (len(index) and not is_within(index, rows)):
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
            torch.from_numpy(np.load(refused)) if refused.exists() else None,
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
        note = f"the rows are read from {folder}, where the table was prepared"
        dataset.notes = (*dataset.notes, note)
    if stored is None or about["for_run"] == digest_of(stored):
        return dataset
    own = read_selection(stored).schema
    if same_columns(own, schema):
        return dataset.copy(schema=with_missing_marks(own, schema.name, tensors))
    raise OtherColumns(dataset)


def is_within(index: Tensor, rows: int) -> bool:
    low, high = index.aminmax()
    return int(low) >= 0 and int(high) < rows


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
