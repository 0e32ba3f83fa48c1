"""From what a reader found to a Source: encode, derive, choose rows, split, measure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.config import read
from ..core.errors import DataError, UsageError, nearest
from . import schema_match
from .codecs import window
from .codecs.array import Array
from .codecs.base import Codec
from .codecs.scalar import Number, listed
from .codecs.sequence import SequenceCodec as Uneven
from .codecs.sound import Sound
from .codecs.tokens import Text
from .dataset import Dataset, Field, Schema
from .options import Options
from .ragged import PackedTensor, holes
from .readers import arrays, tables, text_columns
from .readers.raw import RawData, ReadFormat
from .selection import Selection
from .splits import divide, keep
from .transforms import parse


def ingest(
    raw: RawData,
    options: Options,
    changes: Sequence[parse.Change] = (),
    stored: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> Dataset:
    """A Source of what was read, in terms of its own or in those of an earlier run; too few rows
    to split are refused, but where they are `whole` or come to a run."""
    schema, needed = (None, set()) if stored is None else stored_terms(stored)
    raw = window.windows(prepare(raw, options), options, schema)
    raw = text_columns.read(raw, options, schema)
    if schema is not None:
        raw = schema_match.match(raw, schema, needed)
    codecs, tensors = encode(raw, options, changes, schema)
    read = len(raw)
    if options.missing == "drop":
        raw, tensors = thin(raw, tensors, full(tensors, raw.name))
    dropped = read - len(raw)
    if options.rows:
        raw, tensors = thin(raw, tensors, keep(len(raw), options, raw.split))
    splits = divide(len(raw), options, raw.split, raw.name, whole or schema is not None)
    name = re.sub(r"[^\w.+-]+", "-", "+".join([raw.name, *(change.word for change in changes)]))
    settled = (
        measure(raw, name, codecs, tensors, splits["train"])
        if schema is None
        else in_terms(schema, name, tensors)
    )
    given = raw.split is not None and not raw.carved
    notes = raw.notes + (numbering(settled, tensors) if schema is None and raw.table else ())
    return Dataset(settled, tensors, splits, given, raw.density, notes, dropped, options)


def numbering(schema: Schema, tensors: Mapping[str, PackedTensor]) -> tuple[str, ...]:
    """What to say of columns that do no more than number the rows."""
    names = [
        field.name
        for field in schema.fields
        if isinstance(field.codec, Number)
        and isinstance(x := tensors[field.name], Tensor)
        and x.ndim == 1
        and len(x) > 20
        and torch.equal(x.sort().values - x.min(), torch.arange(len(x), dtype=x.dtype))
    ]
    return (
        (
            f"no more than the number of its row is in {listed(names)}; leave it out with "
            f"data.drop={','.join(names)}",
        )
        if names
        else ()
    )


def encode(
    raw: RawData, options: Options, changes: Sequence[parse.Change], schema: Schema | None
) -> tuple[dict[str, Codec], dict[str, PackedTensor]]:
    """Codecs and compact rows, transformed as the name says."""
    values = {name: values_of(raw, name) for name in raw.values}
    codecs = fitted(raw, values, options, schema)
    tensors = {name: codec.encode(values[name], raw.at(name)) for name, codec in codecs.items()}
    for change in changes:
        parse.apply(change, codecs, tensors, raw.name)
    return codecs, tensors if schema is None else schema_match.encode(raw, schema, codecs, tensors)


def thin(
    raw: RawData, tensors: Mapping[str, PackedTensor], rows: Tensor
) -> tuple[RawData, dict[str, PackedTensor]]:
    """Some of the rows, in their order."""
    if len(rows) == len(raw):
        return raw, dict(tensors)
    split = None if raw.split is None else raw.split[rows.numpy()]
    return replace(raw, split=split, places=raw.places.take(rows.numpy())), {
        name: tensor[rows] for name, tensor in tensors.items()
    }


def prepare(raw: RawData, options: Options) -> RawData:
    """Columns that the words leave out left out, and at least one row."""
    if options.split and not raw.numbered:
        raise UsageError(
            f"data.split={options.split}: {raw.name} does not come with several "
            "splits; leave it out"
        )
    for name in options.names:
        if name not in raw.values:
            raise UsageError(
                f"data.names={name}: there is no such column{nearest(name, raw.values)}"
            )
    raw = tables.without(raw, options.drop)
    if not len(raw):
        raise DataError(f"{raw.name} has no rows; give it some")
    return raw


def stored_terms(stored: Mapping[str, Any]) -> tuple[Schema, set[str]]:
    """What a run kept, and the fields it cannot do without: all it looks at but a target."""
    kept = read(stored)
    if isinstance(kept, Selection):
        given = {name for names in kept.given.values() for name in names}
        spare = given and (kept.predicted or len(kept.event) == 1)
        return kept.schema, given | (set() if spare else set(kept.event))
    schema = Schema.from_dict(stored)
    return schema, set(schema.main)


def form(changes: Sequence[parse.Change], stored: Mapping[str, Any] | None) -> ReadFormat:
    """How files are to be read: as the words of a name say, and as an earlier run names parts."""
    plain = parse.form(changes)
    fields = () if stored is None else stored_terms(stored)[0].fields
    sounds = [field.codec for field in fields if isinstance(field.codec, Sound)]
    texts = {field.name: field.codec for field in fields if isinstance(field.codec, Text)}
    return replace(plain, parts=sounds[0].parts if sounds else (), texts=texts)


def fitted(
    raw: RawData, values: Mapping[str, np.ndarray], options: Options, schema: Schema | None
) -> dict[str, Codec]:
    """The codec of each field, or one sentence about all columns that have none."""
    found, wrong = {}, {}
    for name in values:
        try:
            found[name] = fit(raw, name, values[name], options, schema)
        except tables.Unfit as error:
            wrong[name] = error
    if wrong:
        raise tables.together(wrong)
    return found


def fit(
    raw: RawData, name: str, values: np.ndarray, options: Options, schema: Schema | None
) -> Codec:
    """The codec of a field: known, taken from the run, or what its values ask for. Arrays are read
    as what they are and brought to the run's terms after they were transformed."""
    taken = None if schema is None else schema.field(name).codec
    if taken is not None and not isinstance(taken, Array | Uneven):
        return taken
    if name in raw.codecs:
        return raw.codecs[name]
    label = name in raw.labels or name in options.names
    if raw.table:
        return tables.fit(raw.values[name], values, name, label, options, raw.at(name))
    return arrays.fit(values, raw.at(name), label)


def values_of(raw: RawData, name: str) -> np.ndarray:
    as_is = not raw.table or isinstance(raw.codecs.get(name), Text)
    return raw.values[name] if as_is else tables.cells(raw.values[name], raw.at(name))


def full(tensors: Mapping[str, PackedTensor], name: str) -> Tensor:
    """The rows in which every cell was seen."""
    masks = [found > 0 for kept in tensors.values() if (found := holes(kept)) is not None]
    rows = (
        (~torch.stack(masks).any(0)).nonzero()[:, 0]
        if masks
        else torch.arange(len(next(iter(tensors.values()))))
    )
    if not len(rows):
        raise DataError(
            f"every row of {name} has a missing cell, and data.missing=drop leaves "
            "none; say data.missing=keep"
        )
    return rows


def measure(
    raw: RawData,
    name: str,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, PackedTensor],
    train: Tensor,
) -> Schema:
    """Fields with the statistics of the training rows."""
    fields = []
    for field, codec in codecs.items():
        space = codec.measure(tensors[field][train], field)
        fields.append(
            Field(
                name=field,
                codec=codec,
                space=mark_missing(space, tensors[field]),
                key=raw.keys.get(field, field),
            )
        )
    return Schema(
        name=name,
        fields=tuple(fields),
        main=raw.main,
        target=raw.target,
        inputs=raw.inputs,
        table=raw.table,
    )


def in_terms(schema: Schema, name: str, tensors: Mapping[str, PackedTensor]) -> Schema:
    fields = tuple(
        replace(field, space=mark_missing(field.space, tensors[field.name]))
        for field in schema.fields
    )
    return replace(schema, name=name, fields=fields)


def mark_missing(space: Any, kept: PackedTensor) -> Any:
    """A space that owns up to cells that were not seen in any split."""
    found = holes(kept)
    return replace(space, missing=space.missing or (found is not None and bool(found.any())))
