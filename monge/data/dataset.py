"""A dataset in memory, and a view of it as event and conditions.

Statistics come from the training rows alone. `summary` describes each field in one entry, which
is what `monge data FILE` shows. Nothing here imports torch before rows are taken as batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.deferred import torch
from ..core.errors import DataError, RunError, UsageError, nearest
from ..core.space import Space
from .codecs.array import Array
from .codecs.base import Codec, Locator
from .codecs.scalar import MISSING, Categorical, Offset, codes_of, known_names, listed, spelled
from .codecs.sequence import SequenceCodec
from .codecs.sound import Sound
from .codecs.tokens import Text
from .codecs.window import Window
from .constraints import ColumnConstraint
from .constraints import parse as parse_constraints
from .derived import in_numbers, is_empty, leaks
from .options import NO_CHANGE, Options
from .packed import (
    AsTensors,
    FieldRows,
    Moments,
    PackedTensor,
    Ragged,
    as_tensor,
    dtype_name,
    is_missing,
    missing_counts,
    single_columns,
)
from .readers import tables
from .schema import COLUMNS, Field, RowKey, Schema, Selection, is_class, select
from .splits import balanced, labelled, repeated

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from ..core.batch import Batch
    from .augment import Augment
    from .batches import PackedRows, Split
    from .readers.base import Original


MODEL_PROPOSALS = ("augment", "balance", "labelled_share")
"""The settings that a model may propose: they affect training batches only."""


def batches() -> ModuleType:
    """What makes batches of rows, imported when the first is made: it needs torch."""
    from . import batches

    return batches


class Dataset:
    """Named fields with seeded splits."""

    def __init__(
        self,
        schema: Schema,
        stored: Mapping[str, FieldRows],
        split_rows: Mapping[str, np.ndarray],
        has_splits: bool = False,
        density: Callable[[Tensor], Tensor] | None = None,
        notes: Sequence[str] = (),
        dropped: int = 0,
        options: Options | None = None,
        row_keys: Mapping[str, np.ndarray] | None = None,
        refused: np.ndarray | None = None,
        panel: str = "",
        original: Original | None = None,
    ) -> None:
        self.schema, self.stored, self.split_rows = schema, stored, split_rows
        self.options = options or Options()
        self.has_splits, self.density = has_splits, density
        self.notes, self.dropped = tuple(notes), dropped
        self.row_keys = dict(row_keys or {})  # cells of the columns that only identify rows
        self.panel = panel  # column that seems to name the series of each row, such as a symbol
        self.refused = refused  # (N,): rows that the model of a run gives no probability
        self.original = original  # the rows of a table as they were read

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} rows, {len(self.fields)} fields)"

    def __len__(self) -> int:
        return len(next(iter(self.stored.values())))

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        """The rows of each field as tensors."""
        return AsTensors(self.stored)

    @cached_property
    def splits(self) -> dict[str, Tensor]:
        """The row numbers of each split, as tensors."""
        return {name: torch.from_numpy(rows) for name, rows in self.split_rows.items()}

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
        files = getattr(self.stored, "files", {})
        for field in self.schema.fields:
            if field.name in files:
                parts = files[field.name].pieces()
            else:
                rows = self.stored[field.name]
                parts = map(in_bytes, rows.parts if isinstance(rows, Ragged) else [rows])
            for shape, kind, some in parts:
                about = [field.name, field.codec.to_dict(), shape, kind]
                digest.update(json.dumps(about).encode())
                for piece in some:
                    digest.update(piece)
        return digest.hexdigest()

    def rows_of(self, split: str) -> np.ndarray:
        """Row numbers of train, valid, test, of several of them (train+valid), or of all."""
        if "+" in split:
            return np.concatenate([self.rows_of(part) for part in split.split("+")])
        if split == "all":
            return np.arange(len(self))
        if split not in self.split_rows:
            known = [*self.split_rows, "all"]
            raise UsageError(f"there is no split {split!r}{nearest(split, known)}")
        return self.split_rows[split]

    def view(
        self,
        event: str | None = None,
        given: Sequence[str] = (),
        target: str | Sequence[str] | None = None,
        unlabelled: bool = False,
    ) -> View:
        """event | given, as a run sees it; `unlabelled`: with training rows without a label."""
        selection = select(self.schema, event, given, target)
        return View(selection, self.with_schema(selection.schema), unlabelled)

    def with_schema(self, schema: Schema) -> Dataset:
        """The same rows in a schema in which empty cells of some names are unknown."""
        if schema is self.schema:
            return self
        old = self.fields
        changed = {
            field.name: np.where(codes == old[field.name].space.size - 1, -1, codes)
            for field in schema.fields
            if field.space.kind == "label"
            and field.space.size < old[field.name].space.size
            and isinstance(codes := self.stored[field.name], np.ndarray)
        }
        return self.copy(schema=schema, stored={**self.stored, **changed})

    def copy(self, **changes: Any) -> Dataset:
        """The dataset with some of its parts replaced."""
        parts = {
            name: getattr(self, name)
            for name in (
                "schema",
                "stored",
                "split_rows",
                "has_splits",
                "density",
                "notes",
                "dropped",
                "options",
                "row_keys",
                "refused",
                "panel",
                "original",
            )
        }
        return Dataset(**{**parts, **changes})

    def with_defaults(self, *settings: str) -> tuple[Dataset, list[str]]:
        """The dataset with those proposed settings that the user has not set, and the list of
        those."""
        proposed = [
            setting
            for setting in settings
            if (name := setting.partition("=")[0]) in MODEL_PROPOSALS
            and getattr(self.options, name) == getattr(Options, name)
        ]
        return self.copy(options=self.options.override(*proposed)), proposed

    def fields_dict(self) -> dict[str, Any]:
        return self.schema.to_dict()

    def summary(self) -> list[dict[str, Any]]:
        """One entry for each field: kind, size, range, mean, missing cells, an example."""

        return summary(self)

    def missing(self, name: str) -> int:
        """Number of missing cells of a field."""
        found = missing_counts(self.stored[name])
        return 0 if found is None else int(found.sum())


def in_bytes(rows: Any) -> tuple[list[int], str, list[Any]]:
    """Shape and type of an array or a tensor, and its bytes."""
    values = np.ascontiguousarray(rows)
    return list(rows.shape), f"torch.{dtype_name(rows)}", [values.data.cast("B")]


def check_category(codec: Codec, name: str, text: str) -> None:
    """Refuse a name that a field does not have."""
    if isinstance(codec, Categorical) and text.strip() not in codec.names:
        raise DataError(
            f"{name}={text} is not one of its {len(codec.names)} categories; choose from "
            f"{listed(codec.names, 30)}"
        )


def locate_value(name: str) -> Locator:
    """Names a value that was given for a field."""
    return lambda row: f"{name}, row {row + 1}"


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
        plain = all(space.is_plain for space in spaces)
        if not plain or kinds not in ({"real"}, {"binary"}):
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
        return batches().compact(self, tensors)

    def decode(self, x: Tensor) -> list[np.ndarray]:
        """The values of each field."""
        found = x.detach().cpu().numpy()
        if self.single:
            return [self.fields[0].codec.decode(found)]
        return [field.codec.decode(found[:, place]) for place, field in enumerate(self.fields)]


def augmentation(names: Sequence[str], space: Space, points: tuple[int, ...]) -> Augment | None:
    """The random changes of training rows that data.augment names; None for none."""
    changes = [name for name in names if name != NO_CHANGE]
    if not changes:
        return None
    from .augment import Augment  # works on tensors

    return Augment(changes, space, points)


class View:
    """A dataset as event and conditions. Without a source it still decodes and encodes.

    If `unlabelled`, training rows without a value of the target, or whose label data.labels hides,
    are trained on too; splits leave them out all the same.
    """

    def __init__(
        self, selection: Selection, source: Dataset | None = None, unlabelled: bool = False
    ) -> None:
        self.selection, self.source, self.unlabelled = selection, source, unlabelled
        pick = selection.schema.field
        title = selection.event[0] if len(selection.event) == 1 else COLUMNS
        self.restored = selection.restored
        spaces = {each.name: each.space for each in self.restored.differences}
        fields = tuple(
            replace(field, space=spaces.get(field.name, field.space))
            for field in map(pick, selection.event)
        )
        self.event = FieldGroup(title, fields)
        self.given = {
            name: FieldGroup(name, tuple(map(pick, names)))
            for name, names in selection.given.items()
        }
        given = {name: group.space for name, group in self.given.items()}
        self.space = replace(self.event.space, given=given)
        points = self.point_entries(source.options.points) if source else ()
        self.augment = augmentation(source.options.augment, self.space, points) if source else None
        fewer = source and (source.options.labels or selection.predicted)
        if fewer and (selection.predicted or len(self.labels) == 1):
            rows = self.dataset.rows_of("train") if unlabelled else self.index("train")
            self.space = replace(self.space, rows=len(rows))
        if source and selection.predicted and self.event.single and not self.space.shape:
            self.space = replace(self.space, missing=False)  # rows without it are left out

    def point_entries(self, names: Sequence[str]) -> tuple[int, ...]:
        """The entries of the event that data.points names."""
        known = [field.name for field in self.event.fields]
        lost = next((name for name in names if name not in known), None)
        if lost is not None:
            raise UsageError(
                f"expected two targets in data.points, found {lost!r}, which this run does not "
                f"predict; give --target {names[0]} --target {names[1]}"
            )
        return tuple(known.index(name) for name in names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the entries of an event of one axis."""
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
        tensors, columns = self.dataset.tensors, single_columns(self.dataset.stored)
        differences = {
            each.name: as_tensor(each.subtract(columns)) for each in self.restored.differences
        }
        return self.event.compact({**tensors, **differences}), {
            name: group.compact(tensors) for name, group in self.given.items()
        }

    @property
    def sound(self) -> Sound | None:
        """The codec of the event if it is sound."""
        codec = self.event.fields[0].codec
        return codec if self.event.single and isinstance(codec, Sound) else None

    @property
    def text(self) -> Text | None:
        """The codec of the event if it is text."""
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
        changes = self.augment.notes if self.augment else ()
        apart = {each.note for each in self.selection.schema.derived} - {
            each.note for each in self.restored.derived
        }
        about = [note for note in self.dataset.notes if note not in apart]
        out = self.learned_unlabelled() if self.unlabelled else self.left_out("all")
        return (*about, *self.relation_notes, *alone, *out, *changes)

    @property
    def relation_notes(self) -> tuple[str, ...]:
        """Notes about targets that an input determines, and constraints that cannot be met."""
        columns = single_columns(self.dataset.stored)
        inputs = [field.name for group in self.given.values() for field in group.fields]
        given = [name for name in inputs if name in columns]
        leaked = [
            f"{target} is a function of {name}, an input; leave it out with data.drop={name} "
            "unless it is known before the target"
            for target in (self.selection.event if self.selection.predicted else ())
            if target in columns and self.selection.schema.table
            for name in leaks(target, given, columns)
        ]
        used = {*self.selection.event, *inputs}
        left_out = [
            f"{each.rule}; it is left out of the inputs"
            for each in self.selection.schema.derived
            if self.selection.predicted and each.name not in used
        ]
        met = {each.text for each in self.constraints}
        unmet = [
            f"samples are not checked for {each.text!r}, as not all of its columns are modelled"
            for each in self.declared_constraints
            if each.text not in met
        ]
        return (*left_out, *leaked, *unmet)

    def left_out(self, split: str) -> tuple[str, ...]:
        """A note about the rows of a split that have no value of the target, if there are any."""
        if not self.selection.predicted:
            return ()
        count = int((~self.has_target[self.dataset.rows_of(split)]).sum())
        names = listed(self.selection.event)
        if not count:
            return ()
        rows, were = ("row", "was") if count == 1 else ("rows", "were")
        return (f"{count} {rows} without a value of {names} {were} left out",)

    def learned_unlabelled(self) -> tuple[str, ...]:
        """Notes about the training rows that are learned from without their label, and about
        others that are left out."""
        count = int(self.with_unlabelled("train")[1].sum())
        names = listed(self.labels or self.selection.event)
        rows, are = ("row", "is") if count == 1 else ("rows", "are")
        note = f"{count} training {rows} without a value of {names} {are} learned from too"
        held_out = "+".join(name for name in self.dataset.splits if name != "train")
        return (*([note] if count else []), *self.left_out(held_out))

    @cached_property
    def has_target(self) -> np.ndarray:
        """Which rows of the source have a value of the event, or of one of its columns, (N,)."""
        found = np.zeros(len(self.dataset), bool)
        for field in self.event.fields:
            rows = self.dataset.stored[field.name]
            empty = rows.length == 0 if isinstance(rows, Ragged) else is_missing(rows)
            if empty is None:
                return np.ones_like(found)
            found |= ~np.asarray(empty).reshape(len(empty), -1).all(1)
        return found

    def count(self, split: str) -> int:
        """The number of rows of a split; DataError if there are none of those that it has."""
        return len(self.usable_rows(split))

    def split(self, split: str, every: bool = False) -> Split:
        """The rows of a split, not augmented; if `every` is set, also those without a value of
        the target, as for predictions."""
        index = self.usable_rows(split, every)
        rows = torch.from_numpy(index)
        if every:
            return batches().Split(self, rows)
        notes = (*self.left_out(split), *self.left_undetermined(split))
        every_row = self.labelled_rows(split)
        if len(every_row) == len(index):
            return batches().Split(self, rows, notes=notes)
        numbers = torch.from_numpy(np.flatnonzero(np.isin(every_row, index)) + 1)
        return batches().Split(self, rows, notes=notes, numbers=numbers)

    def usable_rows(self, split: str, every: bool = False) -> np.ndarray:
        """The row numbers of `index`; DataError if all rows of the split are left out."""
        index = self.index(split, every)
        if not len(index) and self.dataset.refused is not None:
            self.index(split, every=True)  # refuses the first row
        if not len(index) and not every and self.left_undetermined(split):
            raise DataError(self.left_undetermined(split)[0])
        if not len(index) and (rows := len(self.dataset.rows_of(split))):
            raise DataError(
                f"expected a value of {listed(self.selection.event)} in some rows of "
                f"{self.dataset.name}, found none in the {rows} rows of the split {split}; "
                "add it, or ask for predictions of it"
            )
        return index

    @cached_property
    def implied(self) -> dict[str, np.ndarray]:
        """The known codes (N,) of each computed column, and of each that is modelled as a
        difference, in rows in which a column that it follows from is empty, NaN in the others;
        columns without such rows are left out."""
        codecs = {field.name: field.codec for field in self.selection.schema.fields}
        columns = single_columns(self.dataset.stored)
        found = {
            each.name: each.implied(columns, codecs)
            for each in self.restored.relations
            if {each.name, *each.sources} <= {*columns}
            and any(is_empty(columns[name], codecs[name]).any() for name in each.sources)
        }
        return {name: codes for name, codes in found.items() if not np.isnan(codes).all()}

    @cached_property
    def undetermined(self) -> np.ndarray | None:
        """The rows (N,) in which a computed column, or a difference, leaves several values to the
        columns that it follows from: a sum or an integral over these would be their likelihood.
        None if there are none."""
        codecs = {field.name: field.codec for field in self.selection.schema.fields}
        wrong = np.zeros(len(self.dataset), bool)
        for each in self.restored.relations:
            if each.name in self.implied:
                wrong |= each.undetermined(single_columns(self.dataset.stored), codecs)
        return wrong if wrong.any() else None

    def left_undetermined(self, split: str) -> tuple[str, ...]:
        """A note about the rows of a split whose likelihood is a sum or an integral."""
        if self.undetermined is None:
            return ()
        rows = self.dataset.rows_of(split)
        count = int(self.undetermined[rows].sum())
        pairs = [
            f"{each.name} is known and {listed(each.sources)} is empty"
            for each in self.restored.relations
            if each.name in self.implied
        ]
        if not count:
            return ()
        return (
            f"{count} of {len(rows)} rows have no single log-likelihood and are left out, as "
            f"{' or '.join(pairs)}; fill in the cells, or complete the rows first",
        )

    def training(self, split: str = "train") -> Split:
        """The rows of a split for training: balanced and augmented as set."""
        index, options = self.split(split).index, self.dataset.options
        if options.balance:
            index = index[balanced(self.classes("balance=true")[index.numpy()])]
        hidden = None
        if self.unlabelled:
            every, hides = self.with_unlabelled(split, index.numpy())
            index, hidden = torch.from_numpy(every), torch.from_numpy(hides)
        elif options.labelled_share:
            raise UsageError(
                f"data.labelled_share={options.labelled_share:g} needs a model that learns from "
                "rows without a label, such as predict.semi; leave it out"
            )
        rows = batches().Split(self, index, self.augment, self.crop_limits(index))
        rows.weight = self.weights(index)
        rows.hidden = hidden if hidden is not None and bool(hidden.any()) else None
        return rows

    def with_unlabelled(
        self, split: str, labelled_index: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers of a split, those without a label too, in order; labelled ones, by default
        each once, are repeated as data.labelled_share says. And which rows hide their label."""
        known = self.index(split) if labelled_index is None else labelled_index
        every = self.usable(self.dataset.rows_of(split))
        rest = every[~np.isin(every, known)]
        if labelled_index is not None:
            known = repeated(known, len(rest), self.dataset.options.labelled_share)
        both = np.concatenate([known, rest])
        order = both.argsort(kind="stable")
        return both[order], order >= len(known)

    def weighted(self, split: str) -> Split:
        """The rows of a split with their weights, if data.weight names them."""
        rows = self.split(split)
        rows.weight = self.weights(rows.index)
        return rows

    def weights(self, index: Tensor) -> Tensor | None:
        """How much each of these rows counts in training, 1 on average; None if all count
        alike."""
        name = self.dataset.options.weight
        if not name:
            return None
        found = torch.from_numpy(self.dataset.row_keys[name])[index]
        return found / found.mean().clamp(min=1e-30)

    def crop_limits(self, index: Tensor) -> Tensor | None:
        """The largest random shift of the start of each row (n,) in steps: blocks of running text
        continue in the next block if it is among these rows too."""
        rows = self.compact[0].rows
        if self.text is None or self.text.ends or self.given or not isinstance(rows, Ragged):
            return None
        if bool((index.diff() > 0).all()):
            follows = torch.cat([index.diff() == 1, torch.zeros(1, dtype=torch.bool)])
        else:
            follows = torch.isin(index + 1, index)
        return torch.where(follows, rows.length[(index + 1).clamp(max=len(rows) - 1)], 0)

    def index(self, split: str, every: bool = False) -> np.ndarray:
        """Row numbers of a split: if there is a target, those with a value of it, unless `every`
        is set; with `data.labels`, only labelled training rows. Rows that the model cannot have
        are left out, or refused if `every` is set; rows whose log-likelihood is not known are left
        out unless `every` is set."""
        rows, refused = self.labelled_rows(split), self.dataset.refused
        if refused is not None and every and refused[rows].any():
            number = int(np.argmax(refused[rows]))
            raise DataError(
                f"row {number + 1} of {self.dataset.name} has {self.new_name(rows[number])} that "
                "was not in training; fix the cell, or remove the row"
            )
        if not every:
            rows = self.usable(rows)
        sought = self.selection.predicted or self.text is not None
        return rows[self.has_target[rows]] if sought and not every else rows

    def new_name(self, row: int) -> str:
        """The first name in a row of the source that its column did not have in training."""
        if self.dataset.original is not None:
            cells = self.dataset.original.take(np.array([row])).table
            present = cells.columns[cells.notna().iloc[0]]
            for field in self.selection.schema.fields:
                known = known_names(field.codec)
                cell = spelled(cells[field.name].iloc[0]) if field.name in present else ""
                if known and cell and cell not in known:
                    return f"the name {cell!r} in {field.name!r}"
        return "a name"

    def usable(self, rows: np.ndarray) -> np.ndarray:
        """Those of the rows that the model can have and whose log-likelihood is known."""
        for wrong in (self.dataset.refused, self.undetermined):
            rows = rows if wrong is None else rows[~wrong[rows]]
        return rows

    def labelled_rows(self, split: str) -> np.ndarray:
        """Row numbers of a split; with `data.labels`, only labelled training rows."""
        source, rows = self.dataset, self.dataset.rows_of(split)
        if not source.options.labels or "train" not in split:
            return rows
        train = source.rows_of("train")
        codes = self.classes(f"labels={source.options.labels}")[train]
        with_label = train[labelled(codes, source.options)]
        return rows[~np.isin(rows, train) | np.isin(rows, with_label)]

    @property
    def labels(self) -> list[str]:
        """The event if it is a class, otherwise the classes among the conditions."""
        spaces = {self.event.name: self.event.space}
        if not is_class(self.event.space):
            spaces = {name: group.space for name, group in self.given.items()}
        return [name for name, space in spaces.items() if is_class(space)]

    def classes(self, setting: str) -> np.ndarray:
        """The class of every row of the source."""
        if len(self.labels) != 1:
            raise UsageError(
                f"data.{setting} needs one label that the run uses, but it uses "
                f"{listed(self.labels) or 'none'}; remove it, or name one with "
                "--target or --given"
            )
        codes = self.dataset.stored[self.labels[0]]
        assert isinstance(codes, np.ndarray), "a class is one code per row"
        return codes_of(codes)

    def check_target_varies(self) -> None:
        """DataError if a target is constant in the training rows."""
        for field in self.event.fields:
            rows = self.dataset.stored[field.name]
            if not isinstance(rows, np.ndarray):
                continue
            values = rows[self.index("train")]
            empty = is_missing(values)
            known = values if empty is None else values[~empty]
            if len(np.unique(known)) == 1:
                shown = field.codec.decode(known[:1])[0]
                raise DataError(
                    f"target {field.name!r} is {shown} in every training row, so "
                    "there is nothing to predict; choose another target, or give rows "
                    "in which it varies"
                )

    def codes(self, x: Tensor) -> dict[str, np.ndarray]:
        """The codes (N,) of each column of a table, those included that are computed from rows x
        of the event."""
        codecs = {field.name: field.codec for field in self.selection.schema.fields}
        rows = x.detach().cpu().reshape(len(x), -1).numpy()
        return self.restored.columns(self.selection.event, rows, codecs)

    @cached_property
    def constraints(self) -> list[ColumnConstraint]:
        """The constraints that samples must be checked for."""
        known = {*self.selection.event, *(each.name for each in self.restored.derived)}
        return [each for each in self.declared_constraints if {*each.columns} <= known]

    @property
    def declared_constraints(self) -> list[ColumnConstraint]:
        """The constraints of the data that are met by rejection."""
        texts = self.selection.schema.constraints
        return parse_constraints(texts, self.field_names) if texts else []

    @property
    def field_names(self) -> list[str]:
        return [field.name for field in self.selection.schema.fields]

    def obeys(self, x: Tensor) -> Tensor:
        """Which rows x (N, D) of a table obey the constraints."""
        schema, codes = self.selection.schema, self.codes(x)
        used = {name for each in self.constraints for name in each.columns}
        numbers = in_numbers(
            {name: codes[name] for name in used}, {f.name: f.codec for f in schema.fields}
        )
        good = np.ones(len(x), bool)
        for each in self.constraints:
            good &= ~each.broken(numbers)
        return torch.from_numpy(good)

    def decode(
        self, x: Tensor, row_keys: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray | pd.DataFrame:
        """Events in the form of the data: a frame for a table, otherwise an array. Rows of a table
        get new keys, or the given ones."""
        columns = self.decoded_columns(x)
        if columns is None:
            return self.event.decode(x)[0]
        frame = tables.assemble(columns)
        for place, key, cells in self.key_columns(len(x), row_keys):
            frame.insert(min(place, frame.shape[1]), key, cells)
        return frame

    def decoded_columns(self, x: Tensor) -> list[tuple[str | int, Codec, np.ndarray]] | None:
        """The label, the codec and the values of each column of a table, those included that are
        computed from rows x of the event; None if the event is an array."""
        schema = self.selection.schema
        if self.restored.derived or self.restored.differences or self.row_keys:
            codes = self.codes(x)
            return [
                (field.key, field.codec, field.codec.decode(codes[field.name]))
                for field in schema.fields
                if field.name in codes
            ]
        if not schema.table and len(self.event.fields) == 1:
            return None
        every = zip(self.event.fields, self.event.decode(x), strict=True)
        return [(field.key, field.codec, column) for field, column in every]

    @property
    def row_keys(self) -> tuple[RowKey, ...]:
        """The keys that events of a whole table get."""
        return self.selection.schema.row_keys if self.selection.is_whole else ()

    def key_columns(
        self, n: int, row_keys: Mapping[str, np.ndarray] | None = None
    ) -> Iterator[tuple[int, str | int, np.ndarray]]:
        """The place, the label and the cells of each column of keys of n rows: new ones, or the
        given ones."""
        for each in self.row_keys:
            cells = each.fresh(n) if row_keys is None else row_keys.get(each.name)
            if cells is not None:
                yield each.place, each.key or each.name, cells

    def encode_given(self, name: str, text: str) -> Batch:
        """A condition of one row from the text that a user types."""
        if name not in self.given:
            known = [
                each
                for key, group in self.given.items()
                for each in ([key] if group.single else [field.name for field in group.fields])
            ]
            other = nearest(name, known) if known else f"; refit with --given {name}"
            raise DataError(f"{name}={text}: this run was not conditioned on {name!r}{other}")
        group = self.given[name]
        if group.single and isinstance(group.fields[0].codec, Text):
            return self.read_given(name, [text])
        return self.encode_word(group, name, text)

    def encode_word(self, group: FieldGroup, name: str, text: str) -> Batch:
        """One row of a group of fields, given as text."""
        codec = group.fields[0].codec
        if group.single and isinstance(codec, Array) and len(codec.shape) == 1:
            return self.encode_vector(group, name, text)
        if not group.single or isinstance(codec, Array | SequenceCodec | Window):
            raise DataError(f"{name} cannot be typed as one value; give a file of its rows")
        check_category(codec, name, text)
        value = codec.encode(np.array([text], object), lambda _: f"{name}={text}")
        return (
            batches().PackedRows(as_tensor(value)).batch(torch.zeros(1, dtype=torch.long), False)
        )

    def encode_vector(self, group: FieldGroup, name: str, text: str) -> Batch:
        """One row of a vector, given as numbers with commas between them."""
        codec = group.fields[0].codec
        assert isinstance(codec, Array), "the field is a vector"
        try:
            numbers = np.array([[float(part) for part in text.split(",")]])
        except ValueError:
            numbers = np.empty((1, 0))
        if numbers.shape[1:] != codec.shape:
            raise DataError(
                f"expected {codec.shape[0]} numbers with commas between them, found "
                f"{name}={text}; give one for each entry"
            )
        rows = codec.encode(numbers, lambda _: f"{name}={text}")
        return group.compact({group.fields[0].name: rows}).batch(torch.zeros(1).long(), False)

    def group_of(self, column: str) -> str | None:
        """The condition in which a column stands beside others."""
        for name, group in self.given.items():
            if not group.single and column in [field.name for field in group.fields]:
                return name
        return None

    def encode_columns(self, name: str, values: Mapping[str, Any]) -> Batch:
        """A condition of several columns, from one value or one for each row of every column."""
        group = self.given[name]
        columns: dict[str, Tensor] = {}
        if lost := [field.name for field in group.fields if field.name not in values]:
            raise DataError(
                f"expected values of {listed([field.name for field in group.fields], 30)}, found "
                f"none of {listed(lost, 30)}; give {lost[0]}=VALUE too"
            )
        for field in group.fields:
            given = np.asarray(values[field.name])
            if not given.ndim:
                check_category(field.codec, field.name, str(given))
            cells = given if given.ndim else np.array([str(given)], object)
            found = as_tensor(field.codec.encode(cells, locate_value(field.name)))
            assert not isinstance(found, Ragged), "a column of a table is one number per row"
            columns[field.name] = found
        sizes = {len(column) for column in columns.values()} - {1}
        if len(sizes) > 1:
            raise DataError(
                f"expected one value or equally many of each column, found {listed(sizes, 30)} "
                "values; give as many of each"
            )
        n = max(sizes, default=1)
        every = {key: column.expand(n) for key, column in columns.items()}
        return group.compact(every).batch(torch.arange(n), False)

    def read_given(self, name: str, texts: Sequence[str]) -> Batch:
        """A text condition with one row per given text."""
        codec = self.given[name].fields[0].codec
        assert isinstance(codec, Text), "the field is text"
        rows = codec.encode(
            codec.codes(texts, lambda row: f"text {row + 1}"), lambda row: f"text {row + 1}"
        )
        rows = codec.adopt(codec, rows, name)
        packed = batches().PackedRows(rows, varies=True, coded=True)
        return packed.batch(torch.arange(len(texts)), False)

    def to_dict(self) -> dict[str, Any]:
        return self.selection.to_dict()

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> View:
        return cls(Selection.from_dict(tree))


def summary(source: Dataset) -> list[dict[str, Any]]:
    found = [entry(field, source) for field in source.schema.fields]
    for key in source.schema.row_keys:
        blank = dict.fromkeys(found[0]) | {"rows": found[0]["rows"], "dropped": source.dropped}
        value = source.row_keys[key.name][0] if len(source) else None
        shown = getattr(value, "item", lambda: value)()  # noqa: B023
        about = {"name": key.name, "kind": "key", "role": "key", "missing": 0, "empty": 0.0}
        found.insert(key.place, blank | about | {"shape": [], "example": shown, "atoms": []})
    return found


def entry(field: Field, source: Dataset) -> dict[str, Any]:
    """kind, shape, size; low, high and mean of the training rows; number of missing cells."""
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
        **support(field, source),
        "constant": is_constant(field, source),
        "example": example(field, source),
        "rows": space.rows,
        "dropped": source.dropped,
        "names": list(codec.names) if isinstance(codec, Categorical) else None,
    }


def support(field: Field, source: Dataset) -> dict[str, Any]:
    """The share of empty cells, atoms and bounds in the units of the data, and the role of a
    column that is not modelled as it is."""
    space, codec = field.space, field.codec
    derived = {each.name: each for each in source.schema.derived}
    above = {each.name: each for each in source.schema.differences}
    role = None
    if field.name in derived:
        sources = listed(derived[field.name].sources)
        role = f"computed from {sources}" if sources else "constant"
    elif field.name in above:
        role = f"above {above[field.name].base}"
    base = codec.offset if isinstance(codec, Offset) else 0
    ends = (None if end is None else base + end for end in (space.lower, space.upper))
    return {
        "empty": round(empty_cells(field, source) / max(len(source), 1), 4),
        "atoms": [base + atom for atom in space.atoms],
        **dict(zip(("lower", "upper"), ends, strict=True)),
        "role": role,
    }


def empty_cells(field: Field, source: Dataset) -> int:
    """The number of empty cells, be they missing or a value of their own."""
    codes = source.stored[field.name]
    found = source.missing(field.name)
    if field.space.optional and field.space.kind == "label" and isinstance(codes, np.ndarray):
        found += int((codes == field.space.size - 1).sum())
    return found


def is_constant(field: Field, source: Dataset) -> bool:
    """Whether the field, or an entry of a vector, is constant in the training rows."""
    space = field.space
    if space.kind == "label":
        codes = source.stored[field.name]
        assert isinstance(codes, np.ndarray), "a label is one code per row"
        return len(np.unique(codes[source.rows_of("train")])) <= 1
    same = [
        low == high
        for part in space.columns or (space,)
        for low, high in zip(part.low, part.high, strict=True)
    ]
    return all(same) if len(space.shape) == 3 else any(same)


def example(field: Field, source: Dataset) -> Any:
    """The first value of a single-valued field, the shape of any other."""
    codec, rows = field.codec, source.stored[field.name]
    if isinstance(codec, SequenceCodec) and isinstance(rows, Ragged):
        return codec.describe(rows)
    if isinstance(codec, Array) or isinstance(rows, Ragged):
        return "x".join(map(str, field.space.shape))
    value = codec.decode(np.asarray(rows[:1]))[0]
    return MISSING if value is None or value != value else getattr(value, "item", lambda: value)()
