"""Text beside other fields: a column of a table, captions of images.

A field is text by a setting (data.sentences), if it is text in an earlier run, if most of its
cells are several words and hardly any occurs twice, or if it is called a transcript or the like
beside images or sounds. It is not part of a table's event, but can be a condition; beside images
and sounds it is the event if these are given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import DataError, UsageError, nearest
from ..codecs.scalar import listed
from ..codecs.tokens import Text
from ..options import Options
from ..schema import Schema
from .base import RawData, ReadFormat
from .columns import TextColumn
from .text import assign_splits, dataset_name, unit_of, with_longest

WORD = re.compile(r"[^\W\d_]{2,}")
"""A word, not part of a date."""
SENTENCES = 0.5
"""Share of cells with several words from which a column is taken for text."""
NAMES = ("text", "transcript", "transcription", "caption", "sentence")
"""Names of fields that are text beside images or sounds, even if their values repeat."""
FEWEST = 100
"""Categories that a column may have however few rows there are."""


def read(raw: RawData, options: Options, schema: Schema | None) -> RawData:
    """The same fields, with text encoded as symbols."""
    names = [name for name in texts(raw, options, schema) if name not in raw.codecs]
    if not names:
        return raw
    split = raw.split if schema else assign_splits(len(raw), options, raw.name, raw.split)
    values, codecs, title = dict(raw.values), dict(raw.codecs), raw.name
    for name in names:
        known = schema.field(name).codec if schema else None
        lines = sentences(raw, name)
        codec = known if isinstance(known, Text) else fit(lines, split, options)
        values[name] = codec.codes(lines, raw.at(name))
        codecs[name] = with_longest(
            codec, values[name], ReadFormat(texts={name: codec} if schema else {})
        )
        title = dataset_name(title, codec)
    main = tuple(name for name in raw.main if name not in names) or raw.main
    target = raw.target or (None if raw.table else names[0])
    return replace(
        raw,
        target=target,
        name=title,
        values=values,
        codecs=codecs,
        main=main,
        split=split,
        carved=raw.carved or raw.split is None,
        notes=(*raw.notes, *noted(raw, names)),
    )


def texts(raw: RawData, options: Options, schema: Schema | None) -> list[str]:
    """The fields that are text."""
    for name in options.sentences:
        if name not in raw.values:
            raise UsageError(
                f"data.sentences={name}: there is no such column{nearest(name, raw.values)}"
            )
    if schema is not None:
        return [
            field.name
            for field in schema.fields
            if isinstance(field.codec, Text) and field.name in raw.values
        ]
    names = {*raw.labels, *options.names}
    return [
        name
        for name, column in raw.values.items()
        if name in options.sentences
        or is_named_text(raw, name)
        or (name not in names and name not in raw.codecs and is_prose(column))
    ]


def is_named_text(raw: RawData, name: str) -> bool:
    """Whether a field beside images or sounds is text by its name."""
    text = name.lower() in NAMES and raw.values[name].dtype.kind in "OTU"
    return text and not raw.table and name not in raw.codecs


def is_prose(column: Any) -> bool:
    """Whether most cells have several words and hardly any occurs twice."""
    if isinstance(column, TextColumn) and column.nunique() <= max(FEWEST, len(column) / 2):
        return False
    values = np.asarray(column, object) if column.dtype.kind in "OTU" else np.empty(0, object)
    cells = [cell for cell in values if isinstance(cell, str)]
    if len(cells) < len(values) or len(set(cells)) <= max(FEWEST, len(cells) / 2):
        return False
    return sum(len(WORD.findall(cell)) > 1 for cell in cells) >= SENTENCES * len(cells)


def sentences(raw: RawData, name: str) -> list[str]:
    found = [cell.strip() if isinstance(cell, str) else "" for cell in raw.values[name]]
    empty = next((row for row, cell in enumerate(found) if not cell), None)
    if empty is not None:
        raise DataError(
            f"{raw.at(name)(empty)} holds no text; add text, remove the row, or drop the column "
            f"with data.drop={name}",
            f"drop={name}",
        )
    return found


def fit(lines: Sequence[str], split: np.ndarray | None, options: Options) -> Text:
    """Fit a text codec to the training rows."""
    train = lines if split is None else [lines[int(row)] for row in np.flatnonzero(split == 0)]
    return Text.fit(unit_of(options, "bpe"), lines, train, options.vocabulary, ends=True)


def noted(raw: RawData, names: Sequence[str]) -> Sequence[str]:
    """A note that text columns of a table are not part of its event."""
    if not raw.table:
        return ()
    return (
        f"{listed(names)} is read as text and is not modelled; condition on it with "
        f"--given {names[0]}, or drop it with data.drop={names[0]}",
    )
