"""Text files and folders of them: running text in consecutive blocks, or one text per line.

Running text is split in order: its end is the test text, and stretches before it are validation
text; no two splits share a character. Separate lines are split at random. The alphabet comes from
the whole text; words and subwords are learned from the training text only.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from ...core.errors import DataError
from ..codecs.base import Locator
from ..codecs.sequence import pack
from ..codecs.tokens import Text, Unit
from ..options import Options
from ..splits import divide
from .base import SPLITS, RawData, ReadFormat, RowLocations, first_bytes, read_bytes

SUFFIXES = (".txt", ".text", ".md", ".txt.gz", ".text.gz")
SHORT = 200
"""Characters of the longest line that is a row by default."""
SNIFFED = 1 << 16
"""Bytes that decide whether a file is text or a table."""
PIECES = 10
"""Stretches of validation text in a long text."""
LONG = 8
"""The fewest blocks in a stretch of validation text if there are several stretches."""
FIELD = "text"


def load(path: Path) -> str:
    """The text of a file, with every line end as one character."""
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at "
            f"offset {error.start} is invalid; save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); check the file") from error
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise DataError(f"{path} is empty; add text")
    return text


def is_text(path: Path, options: Options) -> bool:
    """Whether a file holds text rather than a table: few of its words are numbers, and no
    separator cuts its lines into equally many cells."""
    if not path.name.lower().endswith(SUFFIXES):
        return False
    if options.tokens != "auto" or options.lines != "auto":
        return True
    try:
        start = first_bytes(path, SNIFFED)
    except (OSError, EOFError, zlib.error):
        return False
    lines = [line for line in start.decode("utf-8", "replace").splitlines()[:200] if line.strip()]
    words = [word for line in lines for word in re.split(r"[\s,;|]+", line) if word]
    numbers = sum(bool(re.fullmatch(r"[-+.\d][\d.eE+-]*|\?|NA|nan", word)) for word in words)
    return (
        bool(words)
        and numbers < 0.2 * len(words)
        and not any(is_cut(lines, mark) for mark in "\t,;|")
    )


def is_cut(lines: Sequence[str], mark: str) -> bool:
    """Whether a separator cuts every line into equally many cells, more than one."""
    counts = {line.count(mark) for line in lines}
    return len(counts) == 1 and counts != {0}


def read(
    files: Mapping[Path, str | None], name: str, options: Options, form: ReadFormat
) -> RawData:
    """Text files, each with its split if known, as the rows of one field."""
    texts = {path.name: load(path) for path in files}
    known, given = form.texts.get(FIELD), dict(zip(texts, files.values(), strict=True))
    given = given if "train" in given.values() else dict.fromkeys(texts, "train")
    if known.ends if isinstance(known, Text) else each_line(texts, options):
        return lines_of(texts, given, name, options, form)
    parts = {
        split: "".join(text for file, text in texts.items() if given[file] == split)
        for split in SPLITS
        if split in given.values()
    }
    return blocks_of(parts, ", ".join(texts), name, options, form)


def from_lines(lines: Sequence[str], options: Options, form: ReadFormat) -> RawData:
    """Python strings, one row each."""
    return rows_of(list(lines), RowLocations.count(len(lines)), None, FIELD, options, form)


def lines_of(
    texts: Mapping[str, str],
    given: Mapping[str, str | None],
    name: str,
    options: Options,
    form: ReadFormat,
) -> RawData:
    lines: list[str] = []
    places, split = [], []
    for file, text in texts.items():
        own = text.removesuffix("\n").split("\n")
        check_lines(own, file)
        lines += own
        places.append(RowLocations.count(len(own), file))
        split += [SPLITS.index(given[file] or "train")] * len(own)
    known = np.array(split) if any(split) else None
    return rows_of(lines, RowLocations.join(places), known, name, options, form)


def each_line(texts: Mapping[str, str], options: Options) -> bool:
    if options.lines != "auto":
        return options.lines == "each"
    lines = [line for text in texts.values() for line in text.removesuffix("\n").split("\n")]
    return len(lines) > 1 and all(line.strip() and len(line) <= SHORT for line in lines)


def check_lines(lines: Sequence[str], file: str) -> None:
    empty = next((place for place, line in enumerate(lines) if not line.strip()), None)
    if empty is not None:
        raise empty_line(empty, file)


def empty_line(place: int, file: str) -> DataError:
    return DataError(
        f"line {place + 1} of {file} is empty, but each line is a row; remove "
        "it, or set data.lines=running"
    )


def rows_of(
    lines: Sequence[str],
    places: RowLocations,
    given: np.ndarray | None,
    name: str,
    options: Options,
    form: ReadFormat,
) -> RawData:
    """One text per line, each with an end symbol."""
    split = given if form.texts else assign_splits(len(lines), options, name, given)
    train = lines if split is None else [lines[int(row)] for row in np.flatnonzero(split == 0)]
    codec = codec_of(form, unit_of(options, "chars"), lines, train, options, ends=True)
    rows = codec.codes(lines, places.at(FIELD))
    return RawData(
        dataset_name(name, codec),
        {FIELD: rows},
        (FIELD,),
        places,
        split=split,
        carved=given is None,
        codecs={FIELD: with_longest(codec, rows, form)},
    )


def blocks_of(
    given: Mapping[str, str], files: str, name: str, options: Options, form: ReadFormat
) -> RawData:
    """Running text in consecutive blocks of `context` tokens, separately for each stretch."""
    cut = list(enumerate(given.values())) if form.texts else stretches(given, options)
    split, parts = [split for split, _ in cut], [part for _, part in cut]
    train = [part for split, part in cut if split == 0]
    codec = codec_of(form, unit_of(options, "chars"), parts, train, options, ends=False)
    starts = np.cumsum([0, *map(len, parts[:-1])])
    tokens = codec.codes(parts, lambda part: f"{files}, from character {starts[part] + 1} on")
    context = codec.longest if form.texts else options.context
    blocks = [np.split(own, range(context, len(own), context)) for own in tokens]
    rows = pack([block for own in blocks for block in own])
    whole = np.repeat(split, list(map(len, blocks)))
    return RawData(
        dataset_name(name, codec),
        {FIELD: rows},
        (FIELD,),
        RowLocations.count(len(rows), files),
        split=whole if len(parts) > 1 else None,
        carved=len(given) == 1,
        codecs={FIELD: with_longest(codec, rows, form)},
    )


def stretches(given: Mapping[str, str], options: Options) -> list[tuple[int, str]]:
    """The text in order, each stretch with its split."""
    sizes = {split: len(text) for split, text in given.items()}
    return [
        (split, given[source][begin:end]) for split, source, begin, end in cuts(sizes, options)
    ]


def cuts(sizes: Mapping[str, int], options: Options) -> list[tuple[int, str, int, int]]:
    """The split of each stretch, the text it is part of, where it begins and where it ends. Splits
    without a file are taken from the training text: the test text from its end, the validation
    text in stretches spread over it, so that training sees every part of a text that changes along
    the way."""
    total = sizes["train"]
    train = total if "test" in sizes else total - round(options.test * total)
    held = 0 if "valid" in sizes else round(options.valid * total)
    pieces = min(max(held // (LONG * options.context), 1), PIECES)
    found = []
    for begin, end in pairwise(train * i // pieces for i in range(pieces + 1)):
        middle = end - held * (end - begin) // max(train, 1)
        found += [(0, "train", begin, middle), (1, "train", middle, end)]
    found.append((1, "valid", 0, sizes.get("valid", 0)))
    found.append((2, "test", 0, sizes["test"]) if "test" in sizes else (2, "train", train, total))
    found = [each for each in found if each[2] < each[3]]
    if {split for split, *_ in found} != {0, 1, 2}:
        raise DataError(
            f"a text of {total} characters is too short to train, validate and test on; give more"
        )
    return found


def assign_splits(
    n: int, options: Options, name: str, given: np.ndarray | None = None
) -> np.ndarray:
    """The split of each row, an index into SPLITS."""
    split = np.zeros(n, np.int64)
    for code, rows in enumerate(divide(n, options, given, name).values()):
        split[rows] = code
    return split


def unit_of(options: Options, usual: Unit) -> Unit:
    return usual if options.tokens == "auto" else options.tokens


def codec_of(
    form: ReadFormat,
    unit: Unit,
    texts: Sequence[str],
    train: Sequence[str],
    options: Options,
    ends: bool,
    name: str = FIELD,
) -> Text:
    """The codec of an earlier run, or a fitted one."""
    known = form.texts.get(name)
    if isinstance(known, Text):
        return known
    return Text.fit(unit, texts, train, options.vocabulary, ends)


def with_longest(codec: Text, rows: np.ndarray, form: ReadFormat) -> Text:
    """The codec with the length of the longest row, unless it comes from an earlier run."""
    return with_lengths(codec, np.array([len(row) for row in rows] or [1]), form)


def with_lengths(codec: Text, length: np.ndarray, form: ReadFormat) -> Text:
    return codec if form.texts else replace(codec, longest=int(length.max()))


def dataset_name(name: str, codec: Text) -> str:
    """The name of the data, marked if text is lost: rare words become one symbol."""
    return f"{name}+words" if codec.unit == "words" else name


def prompt(codec: Text, text: str, at: Locator) -> list[int]:
    """The symbols of a text without the end symbol."""
    codes = codec.codes([text], at)[0].tolist()
    return codes[:-1] if codec.ends else codes
