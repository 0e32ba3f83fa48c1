"""Files and folders: what reads them, and which file is which split.

A table beside files of numbers: which columns are inputs, which the target, and several splits.

The form in which regression benchmarks are passed on: data.txt, index_features.txt,
index_target.txt, and index_train_k.txt with index_test_k.txt for each split k.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...core.errors import DataError, UsageError
from .. import content
from ..codecs.scalar import listed
from ..options import Options
from ..transforms import pairs
from . import arrays, audio, images, parallel_text, tables, text
from .raw import SPLITS, RawData, ReadFormat, join

TABLES = (".csv", ".tsv", ".data", ".txt", ".csv.gz", ".tsv.gz", ".data.gz", ".txt.gz")
ARRAYS = (".npy", ".npz")
NOTES = ("readme", "license", "licence")
"""Files about data."""
FORM = ReadFormat()


def read(path: Path, options: Options, form: ReadFormat = FORM) -> RawData:
    """Whatever is at a path; pictures and sounds are brought to a form as they are read."""
    content.check_kind(path)
    if path.is_dir():
        return read_folder(path, options, form)
    if images.is_picture(path):
        return images.read_pictures([path], path.parent, form.side)
    if audio.is_sound(path):
        return audio.read({path.parent: [path]}, path.stem, options, form)
    if text.is_text(path, options):
        return text.read({path: None}, tables.stem(path), options, form)
    if parallel_text.is_columns(path, options):
        return parallel_text.read_columns(path, tables.stem(path), options, form)
    reader = reader_of(path, options)
    if reader is None:
        raise DataError(
            f"{path} is of no kind that can be read ({', '.join(TABLES[:4])} or their "
            f".gz, {', '.join(ARRAYS)}, idx, pictures, {audio.SUFFIX}); convert "
            "it"
        )
    return reader(path)


def reader_of(path: Path, options: Options) -> Callable[[Path], RawData] | None:
    name = path.name.lower()
    if name.endswith(ARRAYS):
        return arrays.read_file
    if images.is_idx(path):
        return lambda path: images.read_idx([path], tables.stem(path))
    if name.endswith(TABLES):
        return lambda path: tables.read_file(path, options)
    return None


def read_folder(folder: Path, options: Options, form: ReadFormat) -> RawData:
    """A folder of idx files, of splits, of pictures or sounds, or with one readable file in it."""
    try:
        files = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check its rights") from error
    for path in files:
        content.check_kind(path)
    name = folder.resolve().name
    if {"data.txt", "index_features.txt", "index_target.txt"} <= {path.name for path in files}:
        return read_numbered(folder, name, options)
    idx = [path for path in files if images.is_idx(path)]
    if idx:
        return by_split(idx, name, lambda paths: images.read_idx(paths, name))
    shelves = {path: images.find(path) for path in files if path.is_dir() and split_of(path)}
    if any(shelves.values()):
        paired = all(pairs.is_pair(path) for path, found in shelves.items() if found)
        return by_split(
            list(shelves), name, lambda paths: read_pictures(paths[0], form.side, paired)
        )
    if images.find(folder):
        return read_pictures(folder, form.side, pairs.is_pair(folder))
    return (
        read_sounds(folder, options, form, name)
        or read_texts(files, options, form, name)
        or read_tables(folder, files, options, name)
    )


def read_pictures(folder: Path, side: int | None, paired: bool) -> RawData:
    """Pictures with their folders as labels, or pairs of pictures in a/ and b/."""
    if paired:
        return pairs.read(folder, side)
    return images.read_pictures(images.find(folder), folder, side)


def read_sounds(folder: Path, options: Options, form: ReadFormat, name: str) -> RawData | None:
    """A folder of sounds, or one for each split; None where there is no sound."""
    shelves = {
        path: audio.find(path)
        for path in sorted(folder.iterdir())
        if path.is_dir() and split_of(path)
    }
    if not any(shelves.values()):
        sounds = audio.find(folder)
        return audio.read({folder: sounds}, name, options, form) if sounds else None
    raw = audio.read(shelves, name, options, form)
    split = np.repeat(
        [SPLITS.index(str(split_of(path))) for path in shelves],
        [len(shelf) for shelf in shelves.values()],
    )
    return replace(raw, split=split) if 0 in split and split.any() else raw


def read_texts(
    files: Sequence[Path], options: Options, form: ReadFormat, name: str
) -> RawData | None:
    """A folder of text, or of files that are translations of one another; None where there is
    neither."""
    if both := parallel_text.find(files):
        splits = {stem: split_of(Path(stem)) for stem in both}
        return parallel_text.read(both, splits, name, options, form)
    found = [
        path
        for path in files
        if path.is_file() and text.is_text(path, options) and path.stem.lower() not in NOTES
    ]
    return (
        text.read({path: split_of(path) for path in found}, name, options, form) if found else None
    )


def read_tables(folder: Path, files: Sequence[Path], options: Options, name: str) -> RawData:
    readable = [
        path
        for path in files
        if path.is_file() and reader_of(path, options) and path.stem.lower() not in NOTES
    ]
    if not readable:
        raise DataError(
            f"{folder} holds nothing that can be read; put a table, arrays, idx "
            "files, pictures or sounds in it"
        )
    if any(split_of(path) == "train" for path in readable):
        return by_split(
            [path for path in readable if split_of(path)], name, lambda paths: one(paths, options)
        )
    if len(readable) > 1:
        raise DataError(
            f"{folder} holds several files and none is called train "
            f"({listed(path.name for path in readable)}); name one of them"
        )
    return one(readable, options)


def one(paths: Sequence[Path], options: Options) -> RawData:
    if len(paths) > 1:
        raise DataError(
            f"several files of {paths[0].parent} could be the same split "
            f"({listed(path.name for path in paths)}); name one of them"
        )
    return read(paths[0], options)


def by_split(paths: Sequence[Path], name: str, reader: Callable[[list[Path]], RawData]) -> RawData:
    """Files grouped by the split their names say, read group by group."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(split_of(path) or "train", []).append(path)
    raws = {split: reader(groups[split]) for split in SPLITS if split in groups}
    return join(raws, name) if "train" in raws and len(raws) > 1 else next(iter(raws.values()))


def split_of(path: Path) -> str | None:
    """train, valid or test where a word of the name says so."""
    for word in re.split(r"[^a-z0-9]+", path.name.lower()):
        for split, starts in (("train", "train"), ("valid", "valid"), ("test", "test")):
            if word.startswith(starts):
                return split
        if word in ("val", "dev", "t10k"):
            return "test" if word == "t10k" else "valid"
    return None


def read_numbered(folder: Path, name: str, options: Options) -> RawData:
    """The table with the split that `data.split` chooses; validation rows are carved from its
    training rows."""
    raw = tables.read_file(folder / "data.txt", options)
    columns = list(raw.values)
    inputs = [columns[i] for i in numbers(folder / "index_features.txt", len(columns))]
    target = [columns[i] for i in numbers(folder / "index_target.txt", len(columns))]
    if len(target) != 1:
        raise DataError(f"{folder / 'index_target.txt'} names {len(target)} columns; name one")
    values = {key: raw.values[key] for key in columns if key in inputs or key in target}
    train, test = (find(folder, part, options.split) for part in ("train", "test"))
    split = np.full(len(raw), -1)
    split[numbers(train, len(raw))] = SPLITS.index("train")
    split[numbers(test, len(raw))] = SPLITS.index("test")
    kept = np.flatnonzero(split >= 0)
    values = {key: column.iloc[kept].reset_index(drop=True) for key, column in values.items()}
    return replace(
        raw,
        name=name,
        values=values,
        main=tuple(values),
        target=target[0],
        split=split[kept],
        places=raw.places.take(kept),
        numbered=True,
    )


def find(folder: Path, part: str, number: int) -> Path:
    path = folder / f"index_{part}_{number}.txt"
    if not path.exists():
        known = len(list(folder.glob(f"index_{part}_*.txt")))
        raise UsageError(
            f"data.split={number}: {folder} has no {path.name}; choose from 0 to {known - 1}"
        )
    return path


def numbers(path: Path, limit: int) -> np.ndarray:
    """Places from 0, one a line, below `limit`."""
    content.check(path)
    try:
        found = np.loadtxt(path, ndmin=1)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} does not hold a number a line ({error}); mend it") from error
    if not len(found) or not np.isin(found, np.arange(limit)).all():
        raise DataError(f"{path} must hold whole numbers from 0 to {limit - 1}; mend it")
    return found.astype(np.int64)
