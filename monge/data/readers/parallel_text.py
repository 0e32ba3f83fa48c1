"""Pairs of sentences: two parallel files, a file of two columns, or a folder of such files.

The fields are named by the suffixes of the files (train.de, train.en) or by the header; the second
is the target. Both sides share one vocabulary of subwords, learned from the training pairs, so
that names and numbers have the same tokens on both sides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...core.errors import DataError
from ..codecs.tokens import Text
from ..options import Options
from .base import JOIN_TABLES, SPLITS, RawData, ReadFormat, RowLocations
from .text import assign_splits, check_lines, codec_of, dataset_name, load, unit_of, with_longest

ENDINGS = re.compile(r"[a-z]{2,3}|src|tgt|source|target")
OTHERS = {"csv", "tsv", "txt", "npy", "npz", "wav", "png", "jpg", "gif", "md", "gz", "data", "py"}
"""Suffixes that do not name a language."""
SIDES = ("source", "target")
SNIFFED = 200


class FilePair(NamedTuple):
    """Two parallel files of sentences, one per line."""

    source: Path
    target: Path


def sides(text: str) -> FilePair | None:
    """The two files of a name such as train.de,train.en."""
    first, comma, second = text.partition(",")
    if not comma or os.path.exists(text):
        return None
    both = FilePair(Path(first), Path(second))
    return both if all(map(os.path.isfile, both)) else None


def ending(path: Path) -> str | None:
    """The language in the name of a file: de of train.de.gz."""
    word = path.name.lower().removesuffix(".gz").rpartition(".")
    return word[2] if word[0] and ENDINGS.fullmatch(word[2]) and word[2] not in OTHERS else None


def find(files: Sequence[Path]) -> dict[str, tuple[Path, Path]]:
    """The pairs of files in a folder that differ only in their suffix, by the common part of the
    name; none unless there are exactly two suffixes."""
    stems: dict[str, dict[str, Path]] = {}
    for path in files:
        if path.is_file() and (language := ending(path)):
            stem = path.name.removesuffix(".gz").rpartition(".")[0]
            stems.setdefault(stem, {})[language] = path
    languages = sorted({language for own in stems.values() for language in own})
    if len(languages) != 2 or any(len(own) != 2 for own in stems.values()):
        return {}
    return {stem: (own[languages[0]], own[languages[1]]) for stem, own in stems.items()}


TABLES = {".csv", ".parquet", ".feather"}
"""Endings of files that hold tables, not sentences."""


def read_pair(files: FilePair, options: Options, form: ReadFormat) -> RawData:
    name = files.source.name.partition(".")[0]
    return read({name: files}, {name: None}, name, options, form)


def read(
    files: Mapping[str, tuple[Path, Path]],
    splits: Mapping[str, str | None],
    name: str,
    options: Options,
    form: ReadFormat,
) -> RawData:
    """Read pairs of files, by the common part of their names; with `splits` each is a split."""
    first = next(iter(files.values()))
    names = tuple(ending(path) or side for path, side in zip(first, SIDES, strict=True))
    texts: dict[str, list[str]] = {names[0]: [], names[1]: []}
    places, split = [], []
    for stem, pair in files.items():
        if all(path.suffix in TABLES for path in pair):
            raise DataError(
                f"expected two files of sentences, found the tables {pair[0].name} and "
                f"{pair[1].name}; {JOIN_TABLES}"
            )
        source, target = (lines_of(path) for path in pair)
        if len(source) != len(target):
            raise DataError(
                f"{pair[0].name} has {len(source)} lines and {pair[1].name} has "
                f"{len(target)}; give each line its translation in the other file"
            )
        texts[names[0]] += source
        texts[names[1]] += target
        places.append(RowLocations.count(len(source), pair[0].name))
        split += [SPLITS.index(splits[stem] or "train")] * len(source)
    given = np.array(split) if len(set(split)) > 1 else None
    return assemble(texts, RowLocations.join(places), name, given, options, form)


def lines_of(path: Path) -> list[str]:
    lines = load(path).removesuffix("\n").split("\n")
    check_lines(lines, path.name)
    return lines


def is_columns(path: Path, options: Options) -> bool:
    """Whether a .tsv holds two columns of sentences."""
    if not path.name.lower().endswith((".tsv", ".tsv.gz")):
        return False
    try:
        lines = load(path).split("\n")[:SNIFFED]
    except DataError:
        return False
    cells = [line.split("\t") for line in lines if line]
    if any(len(row) != 2 for row in cells):
        return False
    words = [cell.split() for row in cells[1:] for cell in row]
    mostly_sentences = sum(len(own) > 1 for own in words) >= 0.5 * len(words)
    return options.tokens != "auto" or (bool(words) and mostly_sentences)


def read_columns(path: Path, name: str, options: Options, form: ReadFormat) -> RawData:
    lines = lines_of(path)
    cells = [line.split("\t") for line in lines]
    for place, row in enumerate(cells, 1):
        if len(row) != 2 or not all(cell.strip() for cell in row):
            raise DataError(
                f"line {place} of {path.name} is not two sentences with a tab between "
                "them; fix or remove it"
            )
    head = all(re.fullmatch(r"[a-z]{2,10}", cell) for cell in cells[0])
    names = tuple(cells[0]) if head else SIDES
    body = cells[1:] if head else cells
    texts = {field: [row[side] for row in body] for side, field in enumerate(names)}
    places = RowLocations.of(np.arange(1 + head, len(cells) + 1), path.name)
    return assemble(texts, places, name, None, options, form)


def from_pairs(
    source: Sequence[str], target: Sequence[str], options: Options, form: ReadFormat
) -> RawData:
    """Pairs of Python strings."""
    if len(source) != len(target):
        raise DataError(
            f"expected one target per source, found {len(source)} sources and {len(target)} "
            "targets; give equally many"
        )
    texts = dict(zip(SIDES, (list(source), list(target)), strict=True))
    return assemble(texts, RowLocations.count(len(source)), "pairs", None, options, form)


def assemble(
    texts: Mapping[str, Sequence[str]],
    places: RowLocations,
    name: str,
    given: np.ndarray | None,
    options: Options,
    form: ReadFormat,
) -> RawData:
    """Encode both sides with one vocabulary."""
    source, target = texts
    names = (
        dict(zip(texts, form.texts, strict=False))
        if len(form.texts) == 2
        else {side: side for side in texts}
    )
    count = len(texts[source])
    split = assign_splits(count, options, name) if given is None and not form.texts else given
    rows = list(range(count)) if split is None else np.flatnonzero(split == 0).tolist()
    train = [texts[side][row] for side in texts for row in rows]
    every = [*texts[source], *texts[target]]
    shared = codec_of(form, unit_of(options, "bpe"), every, train, options, True, names[target])
    values, codecs = {}, {}
    for side, lines in texts.items():
        known = form.texts.get(names[side])
        codec = known if isinstance(known, Text) else shared
        values[names[side]] = codec.codes(lines, places.at(side))
        codecs[names[side]] = with_longest(codec, values[names[side]], form)
    goal = names[target]
    return RawData(
        dataset_name(name, shared),
        values,
        (goal,),
        places,
        goal,
        split=split,
        carved=given is None,
        codecs=codecs,
    )
