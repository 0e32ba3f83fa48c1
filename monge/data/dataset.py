"""A Source: named fields in compact tensors, seeded splits, and how both came about.

Codecs are fitted on what was read, or taken from an earlier run; statistics come from the
training rows alone.

How data were understood, a line for each field: what `monge data FILE` shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.config import Config
from ..core.errors import UsageError, nearest
from ..core.space import Space
from .codecs.array import Array
from .codecs.base import Codec
from .codecs.scalar import MISSING, Categorical, Offset
from .codecs.sequence import SequenceCodec
from .options import Options
from .ragged import PackedTensor, Ragged, holes

if TYPE_CHECKING:
    from .view import View


OPTIONS = Options()
LATE = ("augment", "balance")
"""The words that a model may propose: they concern training batches and nothing before."""


class Field(Config):
    """A named part of every row."""

    tag = "data/field"
    name: str
    """What words and sentences call it."""
    codec: Codec
    """How it is written down."""
    space: Space
    """Where it lives, with statistics of the training rows."""
    key: str | int = ""
    """What a frame calls the column, where that is not its name."""


class Schema(Config):
    """Everything about data but their rows: what a run keeps to decode and to read other data."""

    tag = "data/schema"
    name: str
    """Short and fit for a file's name, transforms included."""
    fields: tuple[Field, ...]
    """In the order the data had."""
    main: tuple[str, ...]
    """The fields that are the event by default."""
    target: str | None = None
    """The field to predict by default."""
    inputs: tuple[str, ...] = ()
    """The fields that a target is predicted from by default; none means all beside it."""
    table: bool = False
    """Whether the fields are the columns of a table."""

    def field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)

    def one_sided(self, event: str) -> tuple[str, ...]:
        """What to say of a law that looks at one side of pairs of pictures alone."""
        goal = self.target
        if goal is None or not self.field(goal).space.is_picture:
            return ()
        return (
            f"a law of {event} alone; say --target {goal} for one of {goal} given what it is "
            "paired with",
        )


class Dataset:
    """Data that were opened."""

    def __init__(
        self,
        schema: Schema,
        tensors: Mapping[str, PackedTensor],
        splits: Mapping[str, Tensor],
        has_splits: bool = False,
        density: Callable[[Tensor], Tensor] | None = None,
        notes: Sequence[str] = (),
        dropped: int = 0,
        options: Options = OPTIONS,
    ) -> None:
        self.schema, self.tensors, self.splits, self.options = schema, tensors, splits, options
        self.has_splits, self.density = has_splits, density
        self.notes, self.dropped = tuple(notes), dropped

    def __repr__(self) -> str:
        return f"Source({self.name!r}, {len(self)} rows, {len(self.fields)} fields)"

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def fields(self) -> dict[str, Field]:
        return {field.name: field for field in self.schema.fields}

    @property
    def main(self) -> tuple[str, ...]:
        return self.schema.main

    @property
    def target(self) -> str | None:
        return self.schema.target

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over codecs and encoded rows, in their order."""
        digest = hashlib.sha256()
        for field in self.schema.fields:
            kept = self.tensors[field.name]
            parts = kept.parts if isinstance(kept, Ragged) else [kept]
            for tensor in map(Tensor.contiguous, parts):
                about = [field.name, field.codec.to_dict(), list(tensor.shape), str(tensor.dtype)]
                digest.update(json.dumps(about).encode())
                digest.update(tensor.numpy().data.cast("B"))
        return digest.hexdigest()

    def rows_of(self, split: str) -> Tensor:
        """Row numbers of train, valid, test, of several of them (train+valid), or of all."""
        if "+" in split:
            return torch.cat([self.rows_of(part) for part in split.split("+")])
        if split == "all":
            return torch.arange(len(self))
        if split not in self.splits:
            raise UsageError(f"there is no split {split!r}{nearest(split, [*self.splits, 'all'])}")
        return self.splits[split]

    def view(
        self,
        event: str | None = None,
        given: Sequence[str] = (),
        target: str | Sequence[str] | None = None,
    ) -> View:
        """event | given, as a run sees it."""
        from .selection import select
        from .view import View

        return View(select(self.schema, event, given, target), self)

    def with_defaults(self, *words: str) -> tuple[Dataset, list[str]]:
        """The same rows under those of more words that nobody has said otherwise, and these."""
        unsaid = [
            word
            for word in words
            if (name := word.partition("=")[0]) in LATE
            and getattr(self.options, name) == getattr(OPTIONS, name)
        ]
        return Dataset(
            self.schema,
            self.tensors,
            self.splits,
            self.has_splits,
            self.density,
            self.notes,
            self.dropped,
            self.options.override(*unsaid),
        ), unsaid

    def fields_dict(self) -> dict[str, Any]:
        return self.schema.to_dict()

    def summary(self) -> list[dict[str, Any]]:
        """One entry for each field: kind, size, range, mean, missing cells, an example."""

        return summary(self)

    def missing(self, name: str) -> int:
        """How many cells of a field were not seen."""
        found = holes(self.tensors[name])
        return 0 if found is None else int(found.sum())


def summary(source: Dataset) -> list[dict[str, Any]]:
    return [entry(field, source) for field in source.schema.fields]


def entry(field: Field, source: Dataset) -> dict[str, Any]:
    """kind, shape, size; low, high and mean of the training rows; cells not seen in any row."""
    space, codec = field.space, field.codec
    told: dict[str, Any] = {
        "name": field.name,
        "kind": space.kind,
        "shape": list(space.shape),
        "size": space.size or None,
    }
    parts = space.columns or (space,)
    low, high = ([v for part in parts for v in getattr(part, end)] for end in ("low", "high"))
    if space.kind == "label":
        told |= {"low": None, "high": None, "mean": None}
    else:
        means = [mean for part in parts for mean in part.mean]
        base = codec.offset if isinstance(codec, Offset) else 0
        told |= {
            "low": base + min(low),
            "high": base + max(high),
            "mean": base + sum(means) / len(means),
        }
    return told | {
        "missing": source.missing(field.name),
        "constant": is_constant(field, source),
        "example": example(field, source),
        "rows": space.rows,
        "dropped": source.dropped,
        "names": list(codec.names) if isinstance(codec, Categorical) else None,
    }


def is_constant(field: Field, source: Dataset) -> bool:
    """Whether training rows never vary: the field, or some entry of a vector."""
    space = field.space
    if space.kind == "label":
        train = source.tensors[field.name][source.splits["train"]]
        return isinstance(train, Tensor) and len(train.unique()) <= 1
    same = [
        low == high
        for part in space.columns or (space,)
        for low, high in zip(part.low, part.high, strict=True)
    ]
    return all(same) if len(space.shape) == 3 else any(same)


def example(field: Field, source: Dataset) -> Any:
    """The first value of a single, the form of anything larger."""
    codec, kept = field.codec, source.tensors[field.name]
    if isinstance(codec, SequenceCodec) and isinstance(kept, Ragged):
        return codec.tell(kept)
    if isinstance(codec, Array) or isinstance(kept, Ragged):
        return "x".join(map(str, field.space.shape))
    value = codec.decode(kept[:1].numpy())[0]
    return MISSING if value is None or value != value else getattr(value, "item", lambda: value)()
