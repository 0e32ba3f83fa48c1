"""An event or a condition of a run: its fields side by side, and their rows as batches.

What a run sees of a Source: an event, what it is given, and their rows as batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import DataError, RunError, UsageError, nearest
from ..core.space import Space
from .augment import EVENT, Augment, Change
from .codecs.array import Array
from .codecs.scalar import Categorical, listed
from .codecs.sequence import SequenceCodec
from .codecs.sequence import SequenceCodec as Steps
from .codecs.sound import Sound
from .codecs.tokens import Text
from .codecs.window import Window
from .dataset import Dataset, Field
from .ragged import PackedTensor, Ragged, unseen
from .selection import COLUMNS, Selection, is_class
from .splits import balanced, labelled
from .statistics import Moments

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PackedRows:
    """The rows of an event or a condition as they are kept."""

    rows: PackedTensor  # (N, ...): bytes, codes, or float32 with NaN where unseen
    filling: Tensor | None = None  # what stands where nothing was seen, where that happens
    drawn: Array | None = None  # draws what a batch holds
    varies: bool = False  # whether rows have lengths of their own
    coded: bool = False  # whether steps are codes rather than numbers

    def batch(
        self, where: Tensor, train: bool, change: Change | None = None, shift: Tensor | int = 0
    ) -> Batch:
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
class FieldGroup:
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
            return Space(
                kind="columns",
                shape=shape,
                name=self.name,
                columns=spaces,
                rows=rows,
                missing=missing,
            )
        moments = Moments(
            mean=tuple(space.mean[0] for space in spaces),
            scale=tuple(space.scale[0] for space in spaces),
            low=tuple(space.low[0] for space in spaces),
            high=tuple(space.high[0] for space in spaces),
        )
        return Space(
            kind=spaces[0].kind, shape=shape, name=self.name, rows=rows, missing=missing, **moments
        )

    def compact(self, tensors: Mapping[str, PackedTensor]) -> PackedRows:
        codec = self.fields[0].codec
        filling = self.filling() if self.space.missing else None
        if self.single:
            drawn = codec if isinstance(codec, Array) and codec.drawn else None
            return PackedRows(
                tensors[self.fields[0].name],
                filling,
                drawn,
                self.space.varies,
                self.space.kind == "tokens",
            )
        kept = [tensors[field.name] for field in self.fields]
        columns = [column for column in kept if isinstance(column, Tensor)]
        numbers = [
            column
            if column.is_floating_point()
            else torch.where(column < 0, torch.nan, column.float())
            for column in columns
        ]
        return PackedRows(torch.stack(numbers, 1), filling)  # (N, D)

    def filling(self) -> Tensor:
        """What stands where nothing was seen: a value of the support, in the shape of an event."""
        space = self.space
        if isinstance(self.fields[0].codec, SequenceCodec):
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


class View:
    """event | given. Without a source it still decodes, and reads other data in its terms."""

    def __init__(self, terms: Selection, source: Dataset | None = None) -> None:
        self.terms, self.source = terms, source
        pick = terms.schema.field
        title = terms.event[0] if len(terms.event) == 1 else COLUMNS
        self.event = FieldGroup(title, tuple(map(pick, terms.event)))
        self.given = {
            name: FieldGroup(name, tuple(map(pick, names))) for name, names in terms.given.items()
        }
        given = {name: group.space for name, group in self.given.items()}
        self.space = replace(self.event.space, given=given)
        self.augment = Augment(source.options.augment if source else (), self.space)
        if source and source.options.labels and len(self.labels) == 1:
            self.space = replace(self.space, rows=len(self.index("train")))

    @property
    def columns(self) -> tuple[str, ...]:
        """What the entries of an event of one axis are called."""
        if not self.event.single:
            return tuple(field.name for field in self.event.fields)
        codec = self.event.fields[0].codec
        if isinstance(codec, Window):
            return codec.entries
        if isinstance(codec, Array) and len(codec.shape) == 1:
            return codec.entries or tuple(f"x{i + 1}" for i in range(codec.shape[0]))
        return (self.event.fields[0].name,)

    @cached_property
    def compact(self) -> tuple[PackedRows, dict[str, PackedRows]]:
        """Event and conditions of every row."""
        tensors = self.opened.tensors
        return self.event.compact(tensors), {
            name: group.compact(tensors) for name, group in self.given.items()
        }

    @property
    def sound(self) -> Sound | None:
        """How an event that is sound is written down."""
        codec = self.event.fields[0].codec
        return codec if self.event.single and isinstance(codec, Sound) else None

    @property
    def text(self) -> Text | None:
        """How an event that is text is written down."""
        codec = self.event.fields[0].codec
        return codec if self.event.single and isinstance(codec, Text) else None

    @property
    def opened(self) -> Dataset:
        if self.source is None:
            raise RunError("a view that was read from a run holds no rows; open the data first")
        return self.source

    @property
    def notes(self) -> tuple[str, ...]:
        """What reading the data and the words about them have to say."""
        alone = () if self.given else self.terms.schema.one_sided(self.event.name)
        return (*self.opened.notes, *alone, *self.augment.notes)

    def rows(self, split: str) -> Split:
        """A split as it is."""
        return Split(self, self.index(split))

    def training(self, split: str = "train") -> Split:
        """A split as training sees it: balanced and augmented where the words say so."""
        index = self.index(split)
        if self.opened.options.balance:
            index = index[balanced(self.classes("balance=true")[index])]
        return Split(self, index, self.augment, self.reach(index))

    def reach(self, index: Tensor) -> Tensor | None:
        """By how many steps each row (n,) may begin late: blocks of running text begin anywhere,
        and read on in the block that follows where that is among these rows too."""
        rows = self.compact[0].rows
        if self.text is None or self.text.ends or self.given or not isinstance(rows, Ragged):
            return None
        follows = torch.isin(index + 1, index)
        return torch.where(follows, rows.length[(index + 1).clamp(max=len(rows) - 1)], 0)

    def index(self, split: str) -> Tensor:
        """Row numbers of a split; of training rows those that keep their label."""
        source, rows = self.opened, self.opened.rows_of(split)
        if not source.options.labels or "train" not in split:
            return rows
        train = source.rows_of("train")
        codes = self.classes(f"labels={source.options.labels}")[train]
        kept = train[labelled(codes, source.options)]
        return rows[~torch.isin(rows, train) | torch.isin(rows, kept)]

    @property
    def labels(self) -> list[str]:
        """The event where it is a class, or the classes among the conditions."""
        spaces = {self.event.name: self.event.space}
        if not is_class(self.event.space):
            spaces = {name: group.space for name, group in self.given.items()}
        return [name for name, space in spaces.items() if is_class(space)]

    def classes(self, word: str) -> Tensor:
        """The class of every row of the source."""
        if len(self.labels) != 1:
            raise UsageError(
                f"data.{word} needs one label that the run looks at, and it looks at "
                f"{listed(self.labels) or 'none'}; leave it out, or name one with "
                "--target or --given"
            )
        codes = self.opened.tensors[self.labels[0]]
        assert isinstance(codes, Tensor), "a class is one code a row"
        return torch.where(codes.isnan(), -1, codes).long()

    def vary(self) -> None:
        """A DataError about a target that never varies in the training rows."""
        for field in self.event.fields:
            values = self.opened.tensors[field.name][self.index("train")]
            if isinstance(values, Tensor) and values.ndim == 1 and len(values.unique()) == 1:
                shown = field.codec.decode(values[:1].numpy())[0]
                raise DataError(
                    f"target {field.name!r} is {shown} in every training row, so that "
                    "there is nothing to predict; choose another target, or give rows "
                    "in which it varies"
                )

    def decode(self, x: Tensor) -> np.ndarray | pd.DataFrame:
        """Events in the form the data had: a frame where that was a table, an array otherwise."""
        values = self.event.decode(x)
        if not self.terms.schema.table and len(values) == 1:
            return values[0]
        from .readers.tables import assemble

        return assemble(
            [
                (field.key, field.codec, column)
                for field, column in zip(self.event.fields, values, strict=True)
            ]
        )

    def encode_given(self, name: str, text: str) -> Batch:
        """A condition of one row as a user types it."""
        if name not in self.given:
            other = nearest(name, self.given) if self.given else f"; fit one with --given {name}"
            raise DataError(f"{name}={text}: the run is not given {name!r}{other}")
        group = self.given[name]
        if group.single and isinstance(group.fields[0].codec, Text):
            return self.read_given(name, [text])
        return self.encode_word(group, name, text)

    def encode_word(self, group: FieldGroup, name: str, text: str) -> Batch:
        """One row of a group of fields that is one word."""
        codec = group.fields[0].codec
        if not group.single or isinstance(codec, Array | Steps | Window):
            raise DataError(f"{name} cannot be typed as one word; give a file of its rows")
        if isinstance(codec, Categorical) and text.strip() not in codec.names:
            raise DataError(
                f"{name}={text} is none of its {len(codec.names)} names; choose from "
                f"{listed(codec.names, 30)}"
            )
        value = codec.encode(np.array([text], object), lambda _: f"{name}={text}")
        return PackedRows(value).batch(torch.zeros(1, dtype=torch.long), False)

    def read_given(self, name: str, texts: Sequence[str]) -> Batch:
        """A condition that is text, of one row for each of some texts."""
        codec = self.given[name].fields[0].codec
        assert isinstance(codec, Text), "only text is read as text"
        rows = codec.encode(
            codec.codes(texts, lambda row: f"text {row + 1}"), lambda row: f"text {row + 1}"
        )
        rows = codec.adopt(codec, rows, name)
        return PackedRows(rows, varies=True, coded=True).batch(torch.arange(len(texts)), False)

    def to_dict(self) -> dict[str, Any]:
        return self.terms.to_dict()

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> View:
        return cls(Selection.from_dict(tree))


class Split:
    """Rows made into batches on demand."""

    def __init__(
        self,
        view: View,
        index: Tensor,
        augment: Augment | None = None,
        reach: Tensor | None = None,
    ) -> None:
        self.space, self.augment, self.reach = view.space, augment, reach
        self.index, self.density = index, view.opened.density  # (n,) row numbers of the source
        self.event, self.given = view.compact

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        """The rows numbered `index` within the split; what is drawn is fresh where `train`, and a
        function of the row elsewhere."""
        where = self.index[index]
        changes = self.augment.draw(len(index)) if train and self.augment else {}
        given = {
            name: part.batch(where, train, changes.get(name)) for name, part in self.given.items()
        }
        shift: Tensor | int = 0
        if train and self.reach is not None:
            shift = (torch.rand(len(index)) * (self.reach[index] + 1)).long()
        event = self.event.batch(where, train, changes.get(EVENT), shift)
        return replace(event, given=given, row=index)

    @property
    def lengths(self) -> Tensor | None:
        """Steps of the event and of each condition of every row, (n, parts); None where all rows
        are alike."""
        parts = [
            part.rows.length[self.index]
            for part in (self.event, *self.given.values())
            if isinstance(part.rows, Ragged) and part.varies
        ]
        return torch.stack(parts, 1) if parts else None

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))
