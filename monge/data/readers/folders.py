"""Folders: of images, sounds or texts, of one file per split, or a table with numbered splits.

A table with numbered splits is a common format of regression benchmarks: data.txt,
index_features.txt, index_target.txt, and index_train_k.txt with index_test_k.txt for each split k.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...core.errors import DataError, UsageError
from ..codecs.scalar import listed
from ..options import Options
from . import audio, images, paired_images, parallel_text, tables, text
from .base import JOIN_TABLES, SPLITS, RawData, ReadFormat, check_file, check_kind, join

DOCUMENTS = ("readme", "license", "licence")
"""Files that describe data."""
NUMBERED_SPLITS = {"data.txt", "index_features.txt", "index_target.txt"}


def files_of(folder: Path) -> list[Path]:
    """The entries of a folder, sorted, without hidden files."""
    try:
        files = sorted(path for path in folder.iterdir() if path.name[0] != ".")
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror}); check its permissions"
        ) from error
    for path in files:
        check_kind(path)
    return files


def name_of(folder: Path) -> str:
    return folder.resolve().name


def split_folders(folder: Path) -> list[Path]:
    return [path for path in files_of(folder) if path.is_dir() and split_of(path)]


def is_numbered(folder: Path) -> bool:
    return {path.name for path in files_of(folder)} >= NUMBERED_SPLITS


def has_idx(folder: Path) -> bool:
    return any(map(images.is_idx, files_of(folder)))


def read_idx(folder: Path) -> RawData:
    """Images and labels in the format of MNIST, one pair of files per split."""
    paths, name = [path for path in files_of(folder) if images.is_idx(path)], name_of(folder)
    return by_split(paths, name, lambda paths: images.read_idx(paths, name))


def has_images(folder: Path) -> bool:
    return images.has_any(folder) or any(map(images.has_any, split_folders(folder)))


def images_of(folder: Path) -> list[Path]:
    """Every image of a folder, or of its folders of splits."""
    inside = [path for each in split_folders(folder) for path in images.find(each)]
    return inside or images.find(folder)


def read_images(folder: Path, form: ReadFormat) -> RawData:
    """Images labelled by their folders, or pairs in a/ and b/, with or without splits."""
    found = {path: images.find(path) for path in split_folders(folder)}
    if not any(found.values()):
        return read_image_folder(folder, form, paired_images.is_pair(folder))
    paired = all(paired_images.is_pair(path) for path, inside in found.items() if inside)
    return by_split(
        list(found),
        name_of(folder),
        lambda paths: read_image_folder(paths[0], form, paired),
    )


def read_image_folder(folder: Path, form: ReadFormat, paired: bool) -> RawData:
    if paired:
        return paired_images.read(folder, form)
    return images.read_images(images.find(folder), folder, form)


def is_arrow_dataset(folder: Path) -> bool:
    """Whether a folder holds the files of one table as the library `datasets` saves it."""
    return (folder / "state.json").is_file() and bool(files_of_dataset(folder))


def files_of_dataset(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.arrow"))


def has_arrow_datasets(folder: Path) -> bool:
    """Whether each split is a folder as the library `datasets` saves it."""
    return (folder / "dataset_dict.json").is_file() and bool(split_folders(folder))


def read_arrow_datasets(folder: Path, options: Options) -> RawData:
    name = name_of(folder)
    return by_split(
        split_folders(folder),
        name,
        lambda paths: tables.read_files(files_of_dataset(paths[0]), name, options),
    )


def has_sounds(folder: Path) -> bool:
    return bool(audio.find(folder)) or any(map(audio.find, split_folders(folder)))


def read_sounds(folder: Path, options: Options, form: ReadFormat) -> RawData:
    """A folder of sounds, or one for each split."""
    name = name_of(folder)
    found = {path: audio.find(path) for path in split_folders(folder)}
    if not any(found.values()):
        return audio.read({folder: audio.find(folder)}, name, options, form)
    raw = audio.read(found, name, options, form)
    split = np.repeat(
        [SPLITS.index(str(split_of(path))) for path in found],
        [len(inside) for inside in found.values()],
    )
    return replace(raw, split=split) if 0 in split and split.any() else raw


def has_sentence_pairs(folder: Path) -> bool:
    return bool(parallel_text.find(files_of(folder)))


def read_sentence_pairs(folder: Path, options: Options, form: ReadFormat) -> RawData:
    """Files that are translations of one another."""
    both = parallel_text.find(files_of(folder))
    splits = {stem: split_of(Path(stem)) for stem in both}
    return parallel_text.read(both, splits, name_of(folder), options, form)


def has_texts(folder: Path, options: Options) -> bool:
    return bool(texts_of(folder, options))


def texts_of(folder: Path, options: Options) -> list[Path]:
    return [
        path
        for path in files_of(folder)
        if path.is_file() and text.is_text(path, options) and not is_document(path)
    ]


def is_document(path: Path) -> bool:
    return path.stem.lower() in DOCUMENTS


def read_texts(folder: Path, options: Options, form: ReadFormat) -> RawData:
    found = {path: split_of(path) for path in texts_of(folder, options)}
    return read_text_files(found, name_of(folder), options, form)


def read_text_files(
    files: Mapping[Path, str | None], name: str, options: Options, form: ReadFormat
) -> RawData:
    """Text that is held in memory, or written to a file."""
    if form.store is None:
        return text.read(files, name, options, form)
    from . import long_text

    return long_text.read(files, name, options, form, form.store)


def read_tables(
    folder: Path, is_table: Callable[[Path], bool], read_file: Callable[[Path], RawData]
) -> RawData:
    """A folder with one readable file in it, or with one per split."""
    readable = [
        path
        for path in files_of(folder)
        if path.is_file() and is_table(path) and not is_document(path)
    ]
    if not readable:
        raise DataError(
            f"{folder} holds no readable file; add a table, arrays, idx files, images or sounds"
        )

    def read_one(paths: Sequence[Path]) -> RawData:
        if len(paths) > 1:
            raise DataError(
                f"several files of {folder} could be the same split "
                f"({listed(path.name for path in paths)}); name one of them"
            )
        return read_file(paths[0])

    if any(split_of(path) == "train" for path in readable):
        return by_split([path for path in readable if split_of(path)], name_of(folder), read_one)
    if len(readable) > 1:
        raise DataError(
            f"{folder} holds several tables and none is called train "
            f"({listed(path.name for path in readable)}); name one of them, or all that are one "
            f"table by a pattern such as {folder}/*{readable[0].suffix}, or {JOIN_TABLES}"
        )
    return read_one(readable)


def by_split(paths: Sequence[Path], name: str, reader: Callable[[list[Path]], RawData]) -> RawData:
    """Files grouped by the split in their names, read group by group."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(split_of(path) or "train", []).append(path)
    raws = {split: reader(groups[split]) for split in SPLITS if split in groups}
    return join(raws, name) if "train" in raws and len(raws) > 1 else next(iter(raws.values()))


def split_of(path: Path) -> str | None:
    """train, valid or test if part of the name stands for it."""
    for word in re.split(r"[^a-z0-9]+", path.name.lower()):
        for split, starts in (("train", "train"), ("valid", "valid"), ("test", "test")):
            if word.startswith(starts):
                return split
        if word in ("val", "dev", "t10k"):
            return "test" if word == "t10k" else "valid"
    return None


def read_numbered(folder: Path, options: Options) -> RawData:
    """The table with the split that `data.split` chooses; validation rows are taken from its
    training rows."""
    raw = tables.read_file(folder / "data.txt", options)
    columns = list(raw.values)
    inputs = [columns[i] for i in numbers(folder / "index_features.txt", len(columns))]
    target = [columns[i] for i in numbers(folder / "index_target.txt", len(columns))]
    if len(target) != 1:
        raise DataError(
            f"{folder / 'index_target.txt'} names {len(target)} columns; name exactly one"
        )
    values = {key: raw.values[key] for key in columns if key in inputs or key in target}
    train, test = (find(folder, part, options.split) for part in ("train", "test"))
    split = np.full(len(raw), -1)
    split[numbers(train, len(raw))] = SPLITS.index("train")
    split[numbers(test, len(raw))] = SPLITS.index("test")
    rows = np.flatnonzero(split >= 0)
    values = {key: column.iloc[rows].reset_index(drop=True) for key, column in values.items()}
    return replace(
        raw,
        name=name_of(folder),
        values=values,
        main=tuple(values),
        target=target[0],
        split=split[rows],
        places=raw.places.take(rows),
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
    """Indices from 0 to `limit` - 1, one per line."""
    check_file(path)
    try:
        found = np.loadtxt(path, ndmin=1)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} does not hold one number per line ({error}); fix it") from error
    if not len(found) or not np.isin(found, np.arange(limit)).all():
        raise DataError(f"{path} must hold whole numbers from 0 to {limit - 1}; fix it")
    return found.astype(np.int64)
