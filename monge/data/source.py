"""A Source: named fields in compact tensors, seeded splits, and how both came about.

Codecs are fitted on what was read, or taken from an earlier run; statistics come from the
training rows alone.
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
from ..core.error import WordError, nearest
from ..core.space import Space
from .codec import Codec, unseen

if TYPE_CHECKING:
    from .view import View


class Field(Config):
    """A named part of every row."""

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

    name: str
    """Short and fit for a file's name, transforms included."""
    fields: tuple[Field, ...]
    """In the order the data had."""
    main: tuple[str, ...]
    """The fields that are the event by default."""
    target: str | None = None
    """The field to predict by default."""
    table: bool = False
    """Whether the fields are the columns of a table."""

    def field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)


class Source:
    """Data that were opened."""

    def __init__(self, schema: Schema, tensors: Mapping[str, Tensor], splits: Mapping[str, Tensor],
                 has_splits: bool = False, density: Callable[[Tensor], Tensor] | None = None,
                 notes: Sequence[str] = (), dropped: int = 0) -> None:
        self.schema, self.tensors, self.splits = schema, tensors, splits
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
            tensor = self.tensors[field.name].contiguous()
            about = [field.name, field.codec.to_dict(), list(tensor.shape), str(tensor.dtype)]
            digest.update(json.dumps(about).encode())
            digest.update(tensor.numpy().data.cast("B"))
        return digest.hexdigest()

    def rows_of(self, split: str) -> Tensor:
        """Row numbers of train, valid, test or all."""
        if split == "all":
            return torch.arange(len(self))
        if split not in self.splits:
            raise WordError(f"there is no split {split!r}{nearest(split, [*self.splits, 'all'])}")
        return self.splits[split]

    def view(self, event: str | None = None, given: Sequence[str] = (),
             target: str | None = None) -> View:
        """event | given, as a run sees it."""
        from .view import View, select

        return View(select(self.schema, event, given, target), self)

    def fields_dict(self) -> dict[str, Any]:
        return self.schema.to_dict()

    def summary(self) -> list[dict[str, Any]]:
        """One entry for each field: kind, size, range, mean, missing cells, an example."""
        from .describe import summary

        return summary(self)

    def missing(self, name: str) -> int:
        """How many cells of a field were not seen."""
        mask = unseen(self.tensors[name])
        return 0 if mask is None else int(mask.sum())
