"""Two data sets side by side that nobody paired: `A~B`, fields `source` and `target`.

Rows of each split are put beside one another in a random order that depends on data.seed alone;
of the longer side as many are drawn, without replacement, as the shorter one has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.error import DataError, WordError
from .ragged import Kept
from .raw import SPLITS
from .source import Field, Schema, Source
from .split import shuffle

SIDES = ("source", "target")


def sides(text: str) -> tuple[str, str] | None:
    """The two names of `A~B`; none where there is no such sign, or a file is called so."""
    first, sign, second = text.partition("~")
    return (first, second) if first and sign and second and not os.path.exists(text) else None


def pair(first: Source, second: Source) -> Source:
    """The main field of each, as one Source."""
    both = (first, second)
    rows = {split: draw(split, both) for split in SPLITS}
    ends = torch.tensor([0, *(len(index) for index, _ in rows.values())]).cumsum(0).tolist()
    splits = {split: torch.arange(*ends[place:place + 2]) for place, split in enumerate(SPLITS)}
    tensors, fields = {}, []
    for name, side, parts in zip(SIDES, both, zip(*rows.values(), strict=True), strict=True):
        own = main(side)
        tensors[name] = side.tensors[own][torch.cat(parts)]
        fields.append(told(side.fields[own], name, tensors[name][splits["train"]]))
    schema = Schema(name=f"{first.name}-to-{second.name}", fields=tuple(fields),
                    main=SIDES[:1], target=SIDES[1])
    return Source(schema, tensors, splits, first.has_splits or second.has_splits,
                  notes=(*first.notes, *second.notes), dropped=first.dropped + second.dropped,
                  options=first.options)


def main(source: Source) -> str:
    if len(source.main) != 1:
        raise DataError(f"{source.name} has {len(source.main)} columns, and each side of A~B is "
                        "one field of numbers or pictures; save it as an array, or keep one "
                        "column with data.drop")
    return source.main[0]


def draw(split: str, both: Sequence[Source]) -> list[Tensor]:
    """As many rows of a split of each side as the shorter has, in a random order."""
    size = min(len(side.splits[split]) for side in both)
    return [side.splits[split][shuffle(len(side.splits[split]), side.options.seed, split, name)]
            [:size] for name, side in zip(SIDES, both, strict=True)]


def told(field: Field, name: str, rows: Kept) -> Field:
    """The field of a side under its new name, with the statistics of the training rows."""
    space = field.codec.measure(rows, name)
    missing = space.missing or field.space.missing
    return replace(field, name=name, key=name, space=replace(space, missing=missing))


def terms_of(stored: Mapping[str, Any], opened: Sequence[Source]) -> list[dict[str, Any]]:
    """What an earlier run kept of each side, in the names that the side has for itself."""
    from .ingest import stored_terms

    schema, _ = stored_terms(stored)
    if {field.name for field in schema.fields} != set(SIDES):
        raise WordError(f"A~B are two data sets that nobody paired, and the run was fitted on "
                        f"{schema.name}; give data of its form")
    return [Schema(name=side.name, main=side.main, fields=(
        replace(schema.field(name), name=main(side), key=main(side)),)).to_dict()
        for name, side in zip(SIDES, opened, strict=True)]
