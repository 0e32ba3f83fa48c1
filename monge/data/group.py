"""An event or a condition of a run: its fields side by side, and their rows as batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.space import Space
from .augment import Change
from .ragged import Kept, Ragged, unseen
from .sequence import Sequence
from .shaped import Array
from .source import Field
from .statistics import Moments


@dataclass(frozen=True)
class Compact:
    """The rows of an event or a condition as they are kept."""

    rows: Kept  # (N, ...): bytes, codes, or float32 with NaN where unseen
    filling: Tensor | None = None  # what stands where nothing was seen, where that happens
    drawn: Array | None = None  # draws what a batch holds
    varies: bool = False  # whether rows have lengths of their own
    coded: bool = False  # whether steps are codes rather than numbers

    def batch(self, where: Tensor, train: bool, change: Change | None = None,
              shift: Tensor | int = 0) -> Batch:
        """Rows as a model sees them, changed before anything is drawn; those of unequal length are
        padded to their longest, and begin `shift` steps late."""
        if isinstance(self.rows, Ragged):
            x, length = self.rows.pad(where, torch.int64 if self.coded else torch.float32, shift)
            return replace(self.fill(x), length=length if self.varies else None)
        x = self.rows.index_select(0, where)
        x = x if change is None else change(x)
        return self.fill(x) if self.drawn is None else Batch(self.drawn.draw(x, where, train))

    def fill(self, x: Tensor) -> Batch:
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

    def compact(self, tensors: Mapping[str, Kept]) -> Compact:
        codec = self.fields[0].codec
        filling = self.filling() if self.space.missing else None
        if self.single:
            drawn = codec if isinstance(codec, Array) and codec.drawn else None
            return Compact(tensors[self.fields[0].name], filling, drawn, self.space.varies,
                           self.space.kind == "tokens")
        kept = [tensors[field.name] for field in self.fields]
        columns = [column for column in kept if isinstance(column, Tensor)]
        numbers = [column if column.is_floating_point() else
                   torch.where(column < 0, torch.nan, column.float()) for column in columns]
        return Compact(torch.stack(numbers, 1), filling)  # (N, D)

    def filling(self) -> Tensor:
        """What stands where nothing was seen: a value of the support, in the shape of an event."""
        space = self.space
        if isinstance(self.fields[0].codec, Sequence):
            return space.statistic("mean")
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
