"""Pairs of pictures as one Source: fields `source`, which is given, and `target`, the event.

They are made by a word of `paired` from one picture each, or lie in folders a/ and b/ under the
same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..core.error import DataError, WordError
from . import derive, image
from .array import from_arrays
from .codec import Codec, listed
from .ingest import in_terms, stored_terms, told
from .ragged import Kept
from .raw import Raw
from .shaped import Array
from .source import Field, Schema, Source
from .terms import adopt
from .unpaired import SIDES, main

FOLDERS = ("a", "b")
"""Where the sources and where the targets lie."""


def parted(changes: Sequence[derive.Change]
           ) -> tuple[Sequence[derive.Change], derive.Change | None, Sequence[derive.Change]]:
    """The words before the one that makes pairs, it, and those after."""
    makers = [place for place, change in enumerate(changes) if change.pairs]
    if len(makers) > 1:
        raise WordError(f"+{changes[makers[1]].word} after +{changes[makers[0]].word}: pairs are "
                        "made once; leave one of them out")
    if not makers:
        return changes, None, ()
    return changes[:makers[0]], changes[makers[0]], changes[makers[0] + 1:]


def make(pictures: Source, maker: derive.Change, after: Sequence[derive.Change],
         stored: Mapping[str, Any] | None) -> Source:
    """The pairs that a word makes of pictures, in terms of their own or in those of a run."""
    own = main(pictures)
    codec, rows = pictures.fields[own].codec, pictures.tensors[own]
    if not derive.fits(maker, codec):
        raise DataError(f"+{maker.word} needs {derive.needs(maker)}, which {pictures.name} does "
                        "not hold at that point; leave it out, or write it earlier")
    sides = dict(zip(SIDES, maker.apart(codec, rows), strict=True))
    codecs: dict[str, Codec] = {name: side[0] for name, side in sides.items()}
    tensors: dict[str, Kept] = {name: side[1] for name, side in sides.items()}
    for change in after:
        derive.apply(change, codecs, tensors, pictures.name)
    title = "+".join([pictures.name, maker.word, *(change.word for change in after)])
    if stored is None:
        schema = measured(title, codecs, tensors, pictures.splits["train"])
    else:
        kept, _ = stored_terms(stored)
        tensors = {field.name: read_as(kept, field, codecs, tensors) for field in kept.fields}
        schema = in_terms(kept, title, tensors)
    return Source(schema, tensors, pictures.splits, pictures.has_splits, None, pictures.notes,
                  pictures.dropped, pictures.options)


def measured(title: str, codecs: Mapping[str, Codec], tensors: Mapping[str, Kept], train: Tensor
             ) -> Schema:
    fields = tuple(Field(name=name, codec=codec, key=name,
                         space=told(codec.measure(tensors[name][train], name), tensors[name]))
                   for name, codec in codecs.items())
    return Schema(name=title, fields=fields, main=SIDES[:1], target=SIDES[1])


def read_as(schema: Schema, field: Field, codecs: Mapping[str, Codec],
            tensors: Mapping[str, Kept]) -> Tensor:
    """The rows of one side as the run's codec would have them."""
    name = field.name
    if name not in SIDES or not isinstance(field.codec, Array):
        raise WordError(f"these are pairs of pictures, and the run was fitted on {schema.name}; "
                        "give data of its form")
    return adopt(field.codec, codecs[name], tensors[name], name,
                 lambda row: f"{name}, row {row + 1}")


def is_pair(folder: Path) -> bool:
    """Whether a folder holds pictures in a/ and in b/ and nowhere else."""
    shelves = [path.name.lower() for path in folder.iterdir()
               if path.is_dir() and any(map(image.is_picture, path.iterdir()))]
    return sorted(shelves) == list(FOLDERS)


def read(folder: Path, side: int | None) -> Raw:
    """The pictures of a/ and b/ with the same names beside one another."""
    shelves = {path.name.lower(): path for path in folder.iterdir() if path.is_dir()}
    first, second = ({path.stem: path for path in image.find(shelves[name])} for name in FOLDERS)
    alone = sorted(first.keys() ^ second.keys())
    if alone:
        raise DataError(f"{folder} holds {len(first)} pictures in a/ and {len(second)} in b/, and "
                        f"{listed(alone, 3)} has no partner; give each picture one of the same "
                        "name, or rename the folders where they are classes")
    names = sorted(first)
    raws = [image.read_pictures([shelf[name] for name in names], shelves[where], side)
            for where, shelf in zip(FOLDERS, (first, second), strict=True)]
    codecs = {name: raw.codecs["image"] for name, raw in zip(SIDES, raws, strict=True)}
    same_sides(codecs, folder)
    values: dict[str, np.ndarray] = {name: raw.values["image"]
                                     for name, raw in zip(SIDES, raws, strict=True)}
    return replace(from_arrays(values, folder.resolve().name), codecs=codecs)


def same_sides(codecs: Mapping[str, Codec], folder: Path) -> None:
    sizes = [codec.shape[1:] for codec in codecs.values() if isinstance(codec, Array)]
    if sizes[0] != sizes[1]:
        told = [f"{width}x{height}" for height, width in sizes]
        raise DataError(f"the pictures of {folder} are {told[0]} in a/ and {told[1]} in b/; bring "
                        f"them to one size with {folder.resolve().name}+resize64")
