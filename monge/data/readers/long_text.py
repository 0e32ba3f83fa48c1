"""Text of any length: read some characters at a time, its tokens written to a file.

The first pass counts characters and lines and finds the alphabet, the second writes the tokens;
words and subwords are learned in a pass between them. Rows, splits and tokens are those of the
same text held in memory, but for one thing: of a training text beyond SAMPLE characters the
vocabulary is learned from an evenly spaced sample of that size, which a note says.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...core.errors import DataError
from ..codecs.tokens import Text
from ..options import Options
from . import text
from .base import SPLITS, RawData, ReadFormat, RowLocations, check_kind, is_gz
from .columns import append
from .stored import Place, StoredSteps

BYTES = 2**20
"""Bytes that are read at a time."""
SAMPLE = 2**26
"""Characters of the training text that words and subwords are learned from at most."""
LINES = 2**14
"""Lines whose tokens are found at a time."""


def characters(path: Path) -> Iterator[str]:
    """The text of a file some characters at a time, with every line end as one character."""
    check_kind(path)
    whole = codecs.getincrementaldecoder("utf-8")()
    decoder, taken = io.IncrementalNewlineDecoder(whole, translate=True), 0
    try:
        with gzip.open(path) if is_gz(path) else path.open("rb") as file:
            while part := file.read(BYTES):
                some = decoder.decode(part.removeprefix(codecs.BOM_UTF8) if not taken else part)
                taken += len(part)
                if some:
                    yield some
            if rest := decoder.decode(b"", final=True):
                yield rest
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset "
            f"{taken + len(part) - len(error.object) + error.start} is invalid; save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); check the file") from error


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file; the last need not end."""
    rest = ""
    for some in characters(path):
        *whole, rest = (rest + some).split("\n")
        yield from whole
    if rest:
        yield rest


@dataclass
class Survey:
    """What the first pass finds in a file."""

    length: int = 0
    lines: int = 0
    short: bool = True  # whether every line is a row by default
    empty: int | None = None  # the first line that is empty
    alphabet: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, path: Path) -> Survey:
        found, rest = cls(), ""
        for some in characters(path):
            found.length += len(some)
            found.alphabet.update(some)
            *whole, rest = (rest + some).split("\n")
            found.see(whole)
        if rest:
            found.see([rest])
        if not "".join(found.alphabet).strip():
            raise DataError(f"{path} is empty; add text")
        return found

    def see(self, lines: Sequence[str]) -> None:
        if self.empty is None:
            blank = (place for place, line in enumerate(lines) if not line.strip())
            place = next(blank, None)
            self.empty = None if place is None else self.lines + place
        self.lines += len(lines)
        self.short &= self.empty is None and all(len(line) <= text.SHORT for line in lines)


def read(
    files: Mapping[Path, str | None], name: str, options: Options, form: ReadFormat, store: Place
) -> RawData:
    """Text files, each with its split if known, as the rows of one field."""
    found = {path: Survey.of(path) for path in files}
    given = files if "train" in files.values() else dict.fromkeys(files, "train")
    known = form.texts.get(text.FIELD)
    each = options.lines == "each"
    if options.lines == "auto":
        each = sum(one.lines for one in found.values()) > 1
        each &= all(one.short for one in found.values())
    if known.ends if isinstance(known, Text) else each:
        return rows_of_lines(found, given, name, options, form, store)
    return blocks(found, given, name, options, form, store)


def rows_of_lines(
    found: Mapping[Path, Survey],
    given: Mapping[Path, str | None],
    name: str,
    options: Options,
    form: ReadFormat,
    store: Place,
) -> RawData:
    """One text per line, each with an end symbol."""
    for path, one in found.items():
        if one.empty is not None:
            raise text.empty_line(one.empty, path.name)
    counts = [one.lines for one in found.values()]
    places = RowLocations.join(
        [RowLocations.count(count, path.name) for path, count in zip(found, counts, strict=True)]
    )
    codes = [SPLITS.index(given[path] or "train") for path in found]
    known = np.repeat(codes, counts) if any(codes) else None
    split = known if form.texts else text.assign_splits(sum(counts), options, name, known)
    train = np.ones(sum(counts), bool) if split is None else split == 0
    alphabet = "".join(set().union(*(one.alphabet for one in found.values())) - {"\n"})
    every = sum(one.length for one in found.values())
    step = -(-every // SAMPLE)  # of the training lines
    sample = (
        line
        for place, line in enumerate(line for path in found for line in lines_of(path))
        if train[place] and place % step == 0
    )
    unit = text.unit_of(options, "chars")
    codec = text.codec_of(form, unit, [alphabet], learned(unit, sample), options, ends=True)
    out, length, row = store.new(".bin"), np.empty(sum(counts), np.int64), 0
    out.unlink(missing_ok=True)
    at = places.at(text.FIELD)
    for some in grouped(line for path in found for line in lines_of(path)):
        start = row
        rows = codec.codes(some, lambda place: at(start + place))  # noqa: B023
        append(out, np.concatenate(list(rows)), None)
        length[row : row + len(rows)] = [len(tokens) for tokens in rows]
        row += len(rows)
    return RawData(
        text.dataset_name(name, codec),
        {text.FIELD: StoredSteps(out, np.dtype(codec.storage).name, length)},
        (text.FIELD,),
        places,
        split=split,
        carved=known is None,
        codecs={text.FIELD: text.with_lengths(codec, length, form)},
        notes=sample_note(codec, step, form),
    )


def sample_note(codec: Text, step: int, form: ReadFormat) -> tuple[str, ...]:
    if step == 1 or form.texts or codec.unit in ("chars", "bytes"):
        return ()
    return (f"the vocabulary is learned from one in {step} parts of the training text",)


def learned(unit: str, sample: Iterable[str]) -> list[str]:
    """What a vocabulary is learned from; nothing for units that are not learned."""
    return list(sample) if unit in ("words", "bpe") else []


def grouped(lines: Iterable[str]) -> Iterator[list[str]]:
    found: list[str] = []
    for line in lines:
        found.append(line)
        if len(found) == LINES:
            yield found
            found = []
    if found:
        yield found


class CharacterStream:
    """Files one after another, of which the next characters are taken."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.parts = (some for path in paths for some in characters(path))
        self.rest = ""

    def take(self, count: int) -> Iterator[str]:
        """The next characters, some at a time."""
        while count:
            some = self.rest or next(self.parts)
            self.rest, some = some[count:], some[:count]
            count -= len(some)
            yield some


def blocks(
    found: Mapping[Path, Survey],
    given: Mapping[Path, str | None],
    name: str,
    options: Options,
    form: ReadFormat,
    store: Place,
) -> RawData:
    """Running text in consecutive blocks of `context` tokens, separately for each stretch."""
    groups = {
        split: [path for path in found if given[path] == split]
        for split in SPLITS
        if split in given.values()
    }
    sizes = {split: sum(found[path].length for path in paths) for split, paths in groups.items()}
    cut = (
        [(number, split, 0, size) for number, (split, size) in enumerate(sizes.items())]
        if form.texts
        else text.cuts(sizes, options)
    )
    alphabet = "".join(set().union(*(one.alphabet for one in found.values())))
    unit = text.unit_of(options, "chars")
    training = sum(end - begin for split, _, begin, end in cut if split == 0)
    step = -(-training // SAMPLE)

    def stretches() -> Iterator[tuple[int, Iterator[str]]]:
        streams = {split: CharacterStream(paths) for split, paths in groups.items()}
        for split, source, begin, end in cut:
            yield split, streams[source].take(end - begin)

    def sample() -> Iterator[str]:
        for split, parts in stretches():
            if step == 1 and split == 0:
                yield "".join(parts)
                continue
            for place, some in enumerate(in_words(parts)):
                if split == 0 and place % step == 0:
                    yield some

    codec = text.codec_of(form, unit, [alphabet], learned(unit, sample()), options, ends=False)
    context = codec.longest if form.texts else options.context
    out, lengths, split_of = store.new(".bin"), [], []
    out.unlink(missing_ok=True)
    files = ", ".join(path.name for path in found)
    for split, parts in stretches():
        tokens, taken = 0, 0
        for some in parts if codec.unit in ("chars", "bytes") else in_words(parts):
            at = f"{files}, in the {len(some)} characters from {taken + 1} on"
            codes = codec.codes([some], lambda _: at)[0]  # noqa: B023
            append(out, codes, None)
            tokens, taken = tokens + len(codes), taken + len(some)
        sizes_here = np.full(-(-tokens // context), context)
        sizes_here[-1:] -= -tokens % context
        lengths.append(sizes_here)
        split_of.append(np.full(len(sizes_here), split))
    length = np.concatenate(lengths)
    return RawData(
        text.dataset_name(name, codec),
        {text.FIELD: StoredSteps(out, np.dtype(codec.storage).name, length)},
        (text.FIELD,),
        RowLocations.count(len(length), files),
        split=np.concatenate(split_of) if len(cut) > 1 else None,
        carved=len(groups) == 1,
        codecs={text.FIELD: text.with_lengths(codec, length, form)},
        notes=sample_note(codec, step, form),
    )


def in_words(parts: Iterable[str]) -> Iterator[str]:
    """The same text cut only before white space that follows another character, where no word or
    subword reaches across."""
    rest = ""
    for some in parts:
        rest += some
        cut = len(rest) - 1
        while cut > 0 and not (rest[cut].isspace() and not rest[cut - 1].isspace()):
            cut -= 1
        if cut > 0:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest
