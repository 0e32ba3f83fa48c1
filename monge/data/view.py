"""What a run sees of a Source: an event, what it is given, and their rows as batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.config import Config
from ..core.error import DataError, RunError, WordError, nearest
from ..core.space import Space
from .codec import Names, listed, unseen
from .shaped import Array
from .source import Field, Schema, Source
from .statistics import Moments

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = "columns"
"""What an event of several columns is called."""
INPUTS = "inputs"
"""The condition that the columns beside a target form together."""


class Terms(Config):
    """How a run reads data: their schema, and which fields are the event and its conditions."""

    schema: Schema
    """The fields with their codecs."""
    event: tuple[str, ...]
    """One field, or columns side by side."""
    given: Mapping[str, tuple[str, ...]]
    """Each condition: one field of that name, or columns side by side."""


def select(schema: Schema, event: str | None, given: Sequence[str], target: str | None) -> Terms:
    """The words of a run made whole: what is not said is the schema's default."""
    known = [field.name for field in schema.fields]
    for name in [event, target, *given]:
        if name is not None and name not in known:
            raise WordError(f"{schema.name} has no field {name!r}{nearest(name, known)}")
    if event and target and event != target:
        raise WordError(f"event {event!r} and target {target!r} are two names for one thing; "
                        "give one of them")
    one = event or target
    chosen = (one,) if one else tuple(name for name in schema.main if name not in given)
    if not chosen or set(chosen) & set(given):
        raise WordError(f"{listed(given)} cannot be both the event and given; leave something to "
                        "model")
    beside = [name for name in known if name not in chosen] if target and not given else given
    return Terms(schema=schema, event=chosen, given=conditions(schema, target, given, beside))


def conditions(schema: Schema, target: str | None, given: Sequence[str], beside: Sequence[str]
               ) -> dict[str, tuple[str, ...]]:
    """Each a field of its own, but for the columns beside a target, which stand together."""
    if target and not beside:
        raise WordError(f"{schema.name} has nothing beside {target!r} to predict it from")
    if target and not given and schema.table:
        return {INPUTS: tuple(beside)}
    return {name: (name,) for name in beside}


@dataclass(frozen=True)
class Compact:
    """The rows of an event or a condition as they are kept."""

    rows: Tensor  # (N, ...): bytes, codes, or float32 with NaN where unseen
    filling: Tensor | None = None  # what stands where nothing was seen, where that happens
    drawn: Array | None = None  # draws what a batch holds

    def batch(self, where: Tensor, train: bool) -> Batch:
        x = self.rows.index_select(0, where)
        if self.drawn is not None:
            return Batch(self.drawn.draw(x, where, train))
        hidden = None if self.filling is None else unseen(x)
        value = x if x.dtype == torch.int64 else x.float()
        if hidden is None or self.filling is None:
            return Batch(value)
        return Batch(torch.where(hidden, self.filling.to(value.dtype), value), observed=~hidden)


@dataclass(frozen=True)
class Group:
    """An event or a condition: one field, or columns side by side."""

    name: str
    fields: tuple[Field, ...]

    @property
    def single(self) -> bool:
        return len(self.fields) == 1 and (self.fields[0].name == self.name or not self.name)

    @property
    def space(self) -> Space:
        if self.single:
            return self.fields[0].space
        spaces = tuple(field.space for field in self.fields)
        shape, rows = (len(spaces),), spaces[0].rows
        missing = any(space.missing for space in spaces)
        kinds = {space.kind for space in spaces}
        if kinds not in ({"real"}, {"binary"}):
            return Space(kind="columns", shape=shape, name=self.name, columns=spaces, rows=rows,
                         missing=missing)
        moments = Moments(mean=tuple(space.mean[0] for space in spaces),
                          scale=tuple(space.scale[0] for space in spaces),
                          low=tuple(space.low[0] for space in spaces),
                          high=tuple(space.high[0] for space in spaces))
        return Space(kind=spaces[0].kind, shape=shape, name=self.name, rows=rows, missing=missing,
                     **moments)

    def compact(self, tensors: Mapping[str, Tensor]) -> Compact:
        codec = self.fields[0].codec
        filling = self.filling() if self.space.missing else None
        if self.single:
            drawn = codec if isinstance(codec, Array) and codec.drawn else None
            return Compact(tensors[self.fields[0].name], filling, drawn)
        columns = [tensors[field.name] for field in self.fields]
        numbers = [column if column.is_floating_point() else
                   torch.where(column < 0, torch.nan, column.float()) for column in columns]
        return Compact(torch.stack(numbers, 1), filling)  # (N, D)

    def filling(self) -> Tensor:
        """What stands where nothing was seen: a value of the support, in the shape of an event."""
        space = self.space
        mean = space.spread("mean")
        kinds = [part.kind for part in space.columns] or [space.kind]
        numeric = torch.tensor([kind in ("real", "counts") for kind in kinds])
        whole = torch.tensor([kind == "counts" for kind in kinds])
        return (torch.where(whole, mean.round(), mean) * numeric).reshape(space.shape)

    def decode(self, x: Tensor) -> list[np.ndarray]:
        """The values of each field."""
        found = x.detach().cpu().numpy()
        if self.single:
            return [self.fields[0].codec.decode(found)]
        return [field.codec.decode(found[:, place]) for place, field in enumerate(self.fields)]


class View:
    """event | given. Without a source it still decodes, and reads other data in its terms."""

    def __init__(self, terms: Terms, source: Source | None = None) -> None:
        self.terms, self.source = terms, source
        pick = terms.schema.field
        title = terms.event[0] if len(terms.event) == 1 else COLUMNS
        self.event = Group(title, tuple(map(pick, terms.event)))
        self.given = {name: Group(name, tuple(map(pick, names)))
                      for name, names in terms.given.items()}
        given = {name: group.space for name, group in self.given.items()}
        self.space = replace(self.event.space, given=given)

    @property
    def columns(self) -> tuple[str, ...]:
        """What the entries of an event of one axis are called."""
        if not self.event.single:
            return tuple(field.name for field in self.event.fields)
        codec = self.event.fields[0].codec
        if isinstance(codec, Array) and len(codec.shape) == 1:
            return codec.entries or tuple(f"x{i + 1}" for i in range(codec.shape[0]))
        return (self.event.fields[0].name,)

    @cached_property
    def compact(self) -> tuple[Compact, dict[str, Compact]]:
        """Event and conditions of every row."""
        tensors = self.opened.tensors
        return self.event.compact(tensors), {name: group.compact(tensors)
                                             for name, group in self.given.items()}

    @property
    def opened(self) -> Source:
        if self.source is None:
            raise RunError("a view that was read from a run holds no rows; open the data first")
        return self.source

    def rows(self, split: str) -> Rows:
        return Rows(self, self.opened, split)

    def decode(self, x: Tensor) -> np.ndarray | pd.DataFrame:
        """Events in the form the data had: a frame where that was a table, an array otherwise."""
        values = self.event.decode(x)
        if not self.terms.schema.table:
            return values[0]
        from .table import assemble

        return assemble([(field.key, field.codec, column)
                         for field, column in zip(self.event.fields, values, strict=True)])

    def encode_given(self, name: str, text: str) -> Batch:
        """A condition of one row as a user types it."""
        if name not in self.given:
            raise DataError(f"{name}={text}: the run is not given {name!r}"
                            f"{nearest(name, self.given)}")
        group = self.given[name]
        codec = group.fields[0].codec
        if not group.single or isinstance(codec, Array):
            raise DataError(f"{name} cannot be typed as one word; give a file of its rows")
        if isinstance(codec, Names) and text.strip() not in codec.names:
            raise DataError(f"{name}={text} is none of its {len(codec.names)} names; choose from "
                            f"{listed(codec.names, 30)}")
        return Batch(codec.encode(np.array([text], object), lambda _: f"{name}={text}"))

    def to_dict(self) -> dict[str, Any]:
        return self.terms.to_dict()

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> View:
        return cls(Terms.from_dict(tree))


class Rows:
    """The rows of one split, made into batches on demand."""

    def __init__(self, view: View, source: Source, split: str) -> None:
        self.space = view.space
        self.index = source.rows_of(split)  # (n,) row numbers of the source
        self.event, self.given = view.compact

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        """The rows numbered `index` within the split; what is drawn is fresh where `train`, and a
        function of the row elsewhere."""
        where = self.index[index]
        given = {name: part.batch(where, train) for name, part in self.given.items()}
        return replace(self.event.batch(where, train), given=given, row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))
