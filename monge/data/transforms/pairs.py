"""Pairs of images, and two unpaired datasets as one: fields `source` and `target`.

Pairs are made by a function of `pair_ops` from one image each, or read from folders a/ and b/ with
the same file names.

Two unpaired datasets are written `A~B`. The rows of each split are combined in a random order that
depends only on data.seed; the longer side is subsampled without replacement to the length of the
shorter one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.errors import DataError, UsageError
from ..codecs.array import Array
from ..codecs.base import Codec
from ..dataset import Dataset
from ..packed import FieldRows
from ..readers.base import SPLITS
from ..readers.paired_images import SIDES
from ..schema import Field, Schema, mark_missing, read_selection, with_missing_marks
from ..schema_match import adopt
from ..splits import shuffle
from . import parse

if TYPE_CHECKING:
    from torch import Tensor


def parted(
    changes: Sequence[parse.Change],
) -> tuple[Sequence[parse.Change], parse.Change | None, Sequence[parse.Change]]:
    """The transforms before the one that makes pairs, itself, and those after it."""
    makers = [place for place, change in enumerate(changes) if change.pairs]
    if len(makers) > 1:
        raise UsageError(
            f"+{changes[makers[1]].text} after +{changes[makers[0]].text}: pairs can "
            "be made only once; remove one of them"
        )
    if not makers:
        return changes, None, ()
    return changes[: makers[0]], changes[makers[0]], changes[makers[0] + 1 :]


def make(
    pictures: Dataset,
    maker: parse.Change,
    after: Sequence[parse.Change],
    stored: Mapping[str, Any] | None,
) -> Dataset:
    """The pairs that a transform makes of images, with a schema fitted here or that of a run."""
    own = main(pictures)
    codec, rows = pictures.fields[own].codec, pictures.tensors[own]
    if not parse.fits(maker, codec):
        raise DataError(
            f"+{maker.text} needs {parse.needs(maker)}, which {pictures.name} does "
            "not hold at that point; remove it, or write it earlier"
        )
    sides = dict(zip(SIDES, maker.apart(codec, rows), strict=True))
    codecs: dict[str, Codec] = {name: side[0] for name, side in sides.items()}
    tensors: dict[str, FieldRows] = {name: side[1] for name, side in sides.items()}
    for change in after:
        parse.apply(change, codecs, tensors, pictures.name)
    title = "+".join([pictures.name, maker.text, *(change.text for change in after)])
    if stored is None:
        schema = fit_schema(title, codecs, tensors, pictures.rows_of("train"))
    else:
        run_schema = read_selection(stored).schema
        tensors = {
            field.name: read_as(run_schema, field, codecs, tensors) for field in run_schema.fields
        }
        schema = with_missing_marks(run_schema, title, tensors)
    return Dataset(
        schema,
        tensors,
        pictures.split_rows,
        pictures.has_splits,
        None,
        pictures.notes,
        pictures.dropped,
        pictures.options,
    )


def fit_schema(
    title: str, codecs: Mapping[str, Codec], tensors: Mapping[str, FieldRows], train: np.ndarray
) -> Schema:
    fields = tuple(
        Field(
            name=name,
            codec=codec,
            key=name,
            space=mark_missing(codec.measure(tensors[name][train], name), tensors[name]),
        )
        for name, codec in codecs.items()
    )
    return Schema(name=title, fields=fields, main=SIDES[:1], target=SIDES[1])


def read_as(
    schema: Schema, field: Field, codecs: Mapping[str, Codec], tensors: Mapping[str, FieldRows]
) -> Tensor:
    """The rows of one side, converted to the run's codec."""
    name = field.name
    if name not in SIDES or not isinstance(field.codec, Array):
        raise UsageError(
            f"these are pairs of images, but the run was fitted on {schema.name}; "
            "give similar data"
        )
    return adopt(
        field.codec, codecs[name], tensors[name], name, lambda row: f"{name}, row {row + 1}"
    )


def sides(text: str) -> tuple[str, str] | None:
    """The two names of `A~B`; None if there is no ~, or it is part of a file name."""
    first, sign, second = text.partition("~")
    return (first, second) if first and sign and second and not os.path.exists(text) else None


def pair(first: Dataset, second: Dataset) -> Dataset:
    """The main fields of two datasets as one dataset."""
    both = (first, second)
    rows = {split: shuffled_rows(split, both) for split in SPLITS}
    ends = np.cumsum([0, *(len(index) for index, _ in rows.values())]).tolist()
    splits = {split: np.arange(*ends[place : place + 2]) for place, split in enumerate(SPLITS)}
    tensors, fields = {}, []
    for name, side, parts in zip(SIDES, both, zip(*rows.values(), strict=True), strict=True):
        own = main(side)
        tensors[name] = side.stored[own][np.concatenate(parts)]
        fields.append(renamed_field(side.fields[own], name, tensors[name][splits["train"]]))
    schema = Schema(
        name=f"{first.name}-to-{second.name}",
        fields=tuple(fields),
        main=SIDES[:1],
        target=SIDES[1],
    )
    return Dataset(
        schema,
        tensors,
        splits,
        first.has_splits or second.has_splits,
        notes=(*first.notes, *second.notes),
        dropped=first.dropped + second.dropped,
        options=first.options,
    )


def main(source: Dataset) -> str:
    if len(source.main) != 1:
        raise DataError(
            f"{source.name} has {len(source.main)} columns, but each side of A~B is "
            "one field of numbers or images; save it as an array, or keep one "
            "column with data.drop"
        )
    return source.main[0]


def shuffled_rows(split: str, both: Sequence[Dataset]) -> list[np.ndarray]:
    """Row numbers of a split for both sides, as many as the shorter has, in random order."""
    own = [side.rows_of(split) for side in both]
    size = min(map(len, own))
    return [
        rows[shuffle(len(rows), side.options.seed, split, name)][:size]
        for name, side, rows in zip(SIDES, both, own, strict=True)
    ]


def renamed_field(field: Field, name: str, rows: FieldRows) -> Field:
    """The field of a side under its new name, with the statistics of the training rows."""
    space = field.codec.measure(rows, name)
    missing = space.missing or field.space.missing
    return replace(field, name=name, key=name, space=replace(space, missing=missing))


def schemas_of_sides(stored: Mapping[str, Any], opened: Sequence[Dataset]) -> list[dict[str, Any]]:
    """The schema that an earlier run has of each side, under the field names of that side."""
    schema = read_selection(stored).schema
    if {field.name for field in schema.fields} != set(SIDES):
        raise UsageError(
            f"A~B are two unpaired datasets, but the run was fitted on "
            f"{schema.name}; give similar data"
        )
    return [
        Schema(
            name=side.name,
            main=side.main,
            fields=(replace(schema.field(name), name=main(side), key=main(side)),),
        ).to_dict()
        for name, side in zip(SIDES, opened, strict=True)
    ]
