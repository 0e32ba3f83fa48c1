"""A dataset in memory, a view of it as event and conditions, and its splits as batches.

Statistics come from the training rows alone. `summary` describes each field in one entry, which
is what `monge data FILE` shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import DataError, RunError, UsageError, nearest
from ..core.space import Space
from .augment import EVENT, NONE, Augment, Change
from .codecs.array import Array
from .codecs.scalar import MISSING, Categorical, Offset, listed
from .codecs.sequence import SequenceCodec
from .codecs.sound import Sound
from .codecs.tokens import Text
from .codecs.window import Window
from .options import Options
from .packed import Moments, PackedTensor, Ragged, holes, unseen
from .readers import tables
from .schema import COLUMNS, Field, Schema, Selection, is_class, select
from .splits import balanced, labelled

if TYPE_CHECKING:
    import pandas as pd


MODEL_PROPOSALS = ("augment", "balance")
"""The settings that a model may propose: they concern training batches alone."""


class Dataset:
    """Named fields in compact tensors, with seeded splits."""

    def __init__(
        self,
        schema: Schema,
        tensors: Mapping[str, PackedTensor],
        splits: Mapping[str, Tensor],
        has_splits: bool = False,
        density: Callable[[Tensor], Tensor] | None = None,
        notes: Sequence[str] = (),
        dropped: int = 0,
        options: Options | None = None,
    ) -> None:
        self.schema, self.tensors, self.splits = schema, tensors, splits
        self.options = options or Options()
        self.has_splits, self.density = has_splits, density
        self.notes, self.dropped = tuple(notes), dropped

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} rows, {len(self.fields)} fields)"

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
        return View(select(self.schema, event, given, target), self)

    def with_defaults(self, *settings: str) -> tuple[Dataset, list[str]]:
        """The same rows with those proposed settings that the user has not set, and these."""
        unsaid = [
            word
            for word in settings
            if (name := word.partition("=")[0]) in MODEL_PROPOSALS
            and getattr(self.options, name) == getattr(Options, name)
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


@dataclass(frozen=True)
class PackedRows:
    """The rows of an event or a condition as they are stored."""

    rows: PackedTensor  # (N, ...): bytes, codes, or float32 with NaN where unseen
    filling: Tensor | None = None  # what stands where nothing was seen, where that happens
    drawn: Array | None = None  # samples the binary values of a batch
    varies: bool = False  # whether rows have lengths of their own
    coded: bool = False  # whether steps are codes rather than numbers

    def batch(
        self, where: Tensor, train: bool, change: Change | None = None, shift: Tensor | int = 0
    ) -> Batch:
        """Rows as a model sees them, changed before anything is sampled; rows of unequal length
        are padded to their longest, and begin `shift` steps late."""
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
        self.selection, self.source = terms, source
        pick = terms.schema.field
        title = terms.event[0] if len(terms.event) == 1 else COLUMNS
        self.event = FieldGroup(title, tuple(map(pick, terms.event)))
        self.given = {
            name: FieldGroup(name, tuple(map(pick, names))) for name, names in terms.given.items()
        }
        given = {name: group.space for name, group in self.given.items()}
        self.space = replace(self.event.space, given=given)
        changes = [word for word in source.options.augment if word != NONE] if source else []
        self.augment = Augment(changes, self.space) if changes else None
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
        tensors = self.dataset.tensors
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
    def dataset(self) -> Dataset:
        if self.source is None:
            raise RunError("a view that was read from a run holds no rows; open the data first")
        return self.source

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the data and the settings for them."""
        alone = () if self.given else self.selection.schema.one_sided(self.event.name)
        return (*self.dataset.notes, *alone, *(self.augment.notes if self.augment else ()))

    def split(self, split: str) -> Split:
        """A split as it is."""
        return Split(self, self.index(split))

    def training(self, split: str = "train") -> Split:
        """A split as training sees it: balanced and augmented as the settings ask."""
        index = self.index(split)
        if self.dataset.options.balance:
            index = index[balanced(self.classes("balance=true")[index])]
        return Split(self, index, self.augment, self.crop_limits(index))

    def crop_limits(self, index: Tensor) -> Tensor | None:
        """By how many steps each row (n,) may begin late: blocks of running text begin anywhere,
        and read on in the block that follows where that is among these rows too."""
        rows = self.compact[0].rows
        if self.text is None or self.text.ends or self.given or not isinstance(rows, Ragged):
            return None
        follows = torch.isin(index + 1, index)
        return torch.where(follows, rows.length[(index + 1).clamp(max=len(rows) - 1)], 0)

    def index(self, split: str) -> Tensor:
        """Row numbers of a split; of training rows those that keep their label."""
        source, rows = self.dataset, self.dataset.rows_of(split)
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
                f"data.{word} needs one label that the run uses, and it uses "
                f"{listed(self.labels) or 'none'}; leave it out, or name one with "
                "--target or --given"
            )
        codes = self.dataset.tensors[self.labels[0]]
        assert isinstance(codes, Tensor), "a class is one code per row"
        return torch.where(codes.isnan(), -1, codes).long()

    def check_target_varies(self) -> None:
        """A DataError about a target that never varies in the training rows."""
        for field in self.event.fields:
            values = self.dataset.tensors[field.name][self.index("train")]
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
        if not self.selection.schema.table and len(values) == 1:
            return values[0]
        return tables.assemble(
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
        """One row of a group of fields, given as text."""
        codec = group.fields[0].codec
        if not group.single or isinstance(codec, Array | SequenceCodec | Window):
            raise DataError(f"{name} cannot be typed as one value; give a file of its rows")
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
        return self.selection.to_dict()

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
        crop_limits: Tensor | None = None,
    ) -> None:
        self.space, self.augment, self.crop_limits = view.space, augment, crop_limits
        self.index, self.density = index, view.dataset.density  # (n,) row numbers of the source
        self.event, self.given = view.compact

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        """The rows numbered `index` within the split; what is sampled is fresh where `train`, and
        a function of the row elsewhere."""
        where = self.index[index]
        changes = self.augment.draw(len(index)) if train and self.augment else {}
        given = {
            name: part.batch(where, train, changes.get(name)) for name, part in self.given.items()
        }
        shift: Tensor | int = 0
        if train and self.crop_limits is not None:
            shift = (torch.rand(len(index)) * (self.crop_limits[index] + 1)).long()
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


def summary(source: Dataset) -> list[dict[str, Any]]:
    return [entry(field, source) for field in source.schema.fields]


def entry(field: Field, source: Dataset) -> dict[str, Any]:
    """kind, shape, size; low, high and mean of the training rows; cells not seen in any row."""
    space, codec = field.space, field.codec
    described: dict[str, Any] = {
        "name": field.name,
        "kind": space.kind,
        "shape": list(space.shape),
        "size": space.size or None,
    }
    parts = space.columns or (space,)
    low, high = ([v for part in parts for v in getattr(part, end)] for end in ("low", "high"))
    if space.kind == "label":
        described |= {"low": None, "high": None, "mean": None}
    else:
        means = [mean for part in parts for mean in part.mean]
        base = codec.offset if isinstance(codec, Offset) else 0
        described |= {
            "low": base + min(low),
            "high": base + max(high),
            "mean": base + sum(means) / len(means),
        }
    return described | {
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
        return codec.describe(kept)
    if isinstance(codec, Array) or isinstance(kept, Ragged):
        return "x".join(map(str, field.space.shape))
    value = codec.decode(kept[:1].numpy())[0]
    return MISSING if value is None or value != value else getattr(value, "item", lambda: value)()
