"""The schema of a dataset, and which of its fields a run models: the event and its conditions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.config import Config, read
from ..core.errors import DataError, UsageError, nearest, shown
from ..core.space import Space
from .codecs.base import Codec
from .codecs.scalar import MISSING, Categorical, listed
from .codecs.tokens import Text
from .derived import Derived, Difference, Restored
from .packed import FieldRows, has_missing, single_columns

COLUMNS = "columns"
"""The name of an event of several columns."""
INPUTS = "inputs"
"""The name of the condition formed by all columns except the target."""
CHARACTER_CLASSES = (
    (re.compile(r"[0-9]"), "9", "0123456789"),
    (re.compile(r"[a-z]"), "a", "abcdefghijklmnopqrstuvwxyz"),
    (re.compile(r"[A-Z]"), "A", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
)
"""The classes of characters, their marks in a pattern, and their members."""
MAX_KEY_ATTEMPTS = 100
"""Strings tried for each new key before a pattern is taken to have no more."""


class Field(Config):
    """A named part of every row."""

    tag = "data/field"
    name: str
    """Its name in settings and messages."""
    codec: Codec
    """Its codec."""
    space: Space
    """Its space, with statistics of the training rows."""
    key: str | int = ""
    """Label of the column in a frame, if it differs from the name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = getattr(self.codec, "names", None)
        if self.space.kind == "label" and names is not None and len(names) != self.space.size:
            raise UsageError(
                f"expected {self.space.size} names of {shown(self.name)}, found {shown(names)}"
            )


class RowKey(Config):
    """A column that only identifies the rows, such as row numbers, uuids or A0001.

    It is not modelled. Samples get new keys, numbers after the largest or strings of the same
    pattern, and completed rows keep theirs.
    """

    tag = "data/row_key"
    name: str
    """The column."""
    place: int
    """Its place among the columns of the data."""
    key: str | int = ""
    """Its label in a frame, if it differs from the name."""
    dtype: str = "object"
    """Its type in the data."""
    prefix: str = ""
    """What comes before the number of a counted key."""
    width: int = 0
    """Digits of the number of a counted key, with zeros in front; 0 for no zeros."""
    following: int | None = None
    """The number after the largest; None for strings without an order."""
    pattern: str = ""
    """Strings without an order: 9, a, A and h for a digit, a letter and a hexadecimal digit."""

    @property
    def note(self) -> str:
        return f"{self.name} is a key; it is not modelled, and samples get new ones"

    def fresh(self, n: int) -> np.ndarray:
        """n new keys."""
        if self.following is None:
            return np.array(self.strings(n), object)
        numbers = range(self.following, self.following + n)
        if not self.prefix and self.dtype != "object" and not self.width:
            return np.array(numbers, self.dtype)
        return np.array([f"{self.prefix}{number:0{self.width}}" for number in numbers], object)

    def strings(self, n: int) -> list[str]:
        """n different strings of the pattern, the same at every call."""
        found: dict[str, None] = {}
        for number in range(n * MAX_KEY_ATTEMPTS):
            if len(found) == n:
                break
            found[spell(self.pattern, f"{self.name}/{number}")] = None
        if len(found) < n:
            raise DataError(
                f"the keys of column {self.name!r} have too few strings of the pattern "
                f"{self.pattern!r} for {n} rows; sample fewer rows, or drop the column with "
                f"data.drop={self.name}"
            )
        return list(found)


def spell(pattern: str, seed: str) -> str:
    """A string of the pattern that looks random and is a function of the seed."""
    letters = {mark: members for _, mark, members in CHARACTER_CLASSES} | {"h": "0123456789abcdef"}
    letters["H"] = letters["h"].upper()
    digest = hashlib.shake_256(seed.encode()).digest(len(pattern))
    return "".join(
        letters[mark][byte % len(letters[mark])] if mark in letters else mark
        for mark, byte in zip(pattern, digest, strict=True)
    )


class Schema(Config):
    """Everything about a dataset except its rows, stored with a run to decode samples and to read
    other data."""

    tag = "data/schema"
    name: str
    """Name of the dataset, including transforms, usable as a file name."""
    fields: tuple[Field, ...]
    """Fields in the order of the data."""
    main: tuple[str, ...]
    """The fields that are the event by default."""
    target: str | None = None
    """The field to predict by default."""
    inputs: tuple[str, ...] = ()
    """The fields that a target is predicted from by default; empty for all others."""
    table: bool = False
    """Whether the fields are the columns of a table."""
    row_keys: tuple[RowKey, ...] = ()
    """The columns that only identify the rows."""
    derived: tuple[Derived, ...] = ()
    """The fields that follow from others, each after those it follows from."""
    differences: tuple[Difference, ...] = ()
    """The columns that are modelled as differences, each after the one below it."""
    constraints: tuple[str, ...] = ()
    """The constraints that samples are checked for."""
    declared: tuple[str, ...] = ()
    """All constraints, which every row obeys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {field.name for field in self.fields}
        for name in self.main:
            if name not in known:
                raise UsageError(
                    f"expected the event among the fields, found {shown(name)}"
                    f"{nearest(name, known)}"
                )

    @property
    def relation_notes(self) -> tuple[str, ...]:
        """A note on each key, derived column and difference."""
        differences = [
            f"{each.name} is modelled as {each.name} - {each.base}, which is never negative"
            for each in self.differences
        ]
        checked = [
            f"{text.replace('`', '')} is met by rejection: samples that break it are thrown away"
            for text in self.constraints
        ]
        known = [*(key.note for key in self.row_keys), *(each.note for each in self.derived)]
        return (*known, *differences, *checked)

    def field(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def vocabulary_files(self) -> dict[str, Any]:
        """The vocabulary of each field of text, as files of a run. Files are numbered, since the
        name of a field is data, which may lead out of the folder or be too long for a file."""
        texts = [
            (field.name, field.codec)
            for field in self.fields
            if isinstance(field.codec, Text) and field.codec.unit != "bytes"
        ]
        return {
            f"tokens/{number}.json": {"field": name} | codec.vocabulary()
            for number, (name, codec) in enumerate(texts)
        }

    def one_sided(self, event: str) -> tuple[str, ...]:
        """A note about a model of only one side of pairs of images."""
        goal = self.target
        if goal is None or not self.field(goal).space.is_image:
            return ()
        return (
            f"a model of {event} alone; use --target {goal} for a model of {goal} given what it "
            "is paired with",
        )


class Selection(Config):
    """How a run reads data: the schema, and which fields are the event and the conditions."""

    tag = "data/selection"
    schema: Schema
    """The fields with their codecs."""
    event: tuple[str, ...]
    """One field, or columns side by side."""
    given: Mapping[str, tuple[str, ...]]
    """Each condition: one field of that name, or columns side by side."""
    predicted: bool = False
    """Whether the event is a target, which may be absent from other data."""

    @property
    def conditions(self) -> set[str]:
        """The fields that the conditions consist of."""
        return {name for names in self.given.values() for name in names}

    @property
    def required(self) -> set[str]:
        """The fields that other data must have: all but a target."""
        spare = self.given and (self.predicted or len(self.event) == 1)
        return self.conditions | (set() if spare else {*self.event})

    @property
    def is_whole(self) -> bool:
        """Whether the event is the table rather than columns that the user names."""
        return not self.predicted and {*self.event} == {*self.schema.main} - self.conditions

    @property
    def restored(self) -> Restored:
        """The columns that are computed from those of the event."""
        if not self.is_whole:
            return Restored()
        given, known = self.conditions, {*self.event}
        derived = []
        for each in self.schema.derived:
            if {*each.sources} <= known and each.name not in given:
                derived.append(each)
                known.add(each.name)
        differences = tuple(
            each for each in self.schema.differences if {each.name, each.base} <= {*self.event}
        )
        return Restored(tuple(derived), differences)


def select(
    schema: Schema, event: str | None, given: Sequence[str], target: str | Sequence[str] | None
) -> Selection:
    """The fields of a run, with the schema's defaults for those that are not given."""
    known = [field.name for field in schema.fields]
    targets = parse_targets(target, known)
    for name in [event, *targets, *given]:
        if name in [key.name for key in schema.row_keys]:
            raise UsageError(
                f"{name!r} is a key of {schema.name}, which is not modelled; leave it out, or "
                "read it as a column of numbers or names with data.space=plain"
            )
        if name is not None and name not in known:
            raise UsageError(f"{schema.name} has no field {name!r}{nearest(name, known)}")
    if event and targets and (event,) != targets:
        raise UsageError(
            f"event {event!r} and target {listed(targets)!r} are alternatives; give one of them"
        )
    usual = schema.main if {*schema.main} - {*given} else (schema.target or "",)
    chosen = targets or (
        (event,) if event else tuple(name for name in usual if name and name not in given)
    )
    if not chosen or set(chosen) & set(given):
        raise UsageError(
            f"{listed(given)} cannot be both the event and given; leave something to model"
        )
    shaped = [name for name in chosen if schema.field(name).space.shape]
    if shaped and len(chosen) > 1:
        raise UsageError(
            f"{shaped[0]} is not a single value and cannot be a target beside others; "
            "give one target"
        )
    schema = with_targets(schema, targets)
    free = [name for name in known if name not in {each.name for each in schema.derived}]
    others = schema.inputs if targets == (schema.target,) and schema.inputs else free
    beside = [name for name in others if name not in chosen] if targets and not given else given
    return Selection(
        schema=schema,
        event=chosen,
        predicted=bool(targets),
        given=conditions(schema, targets, given, beside),
    )


def with_targets(schema: Schema, targets: Sequence[str]) -> Schema:
    """The schema in which an empty cell of a target is unknown rather than a value of its own:
    rows without a value of it are not modelled."""
    if not any(schema.field(name).space.optional for name in targets):
        return schema
    fields = (as_target(field) if field.name in targets else field for field in schema.fields)
    return replace(schema, fields=tuple(fields))


def as_target(field: Field) -> Field:
    if not field.space.optional:
        return field
    codec, space = field.codec, replace(field.space, optional=False, missing=True)
    if isinstance(codec, Categorical):
        codec = replace(codec, names=tuple(name for name in codec.names if name != MISSING))
        size = len(codec.names)
        space = replace(space, size=size, high=(float(size - 1),))
    return replace(field, codec=codec, space=space)


def parse_targets(target: str | Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """The names of the targets, given one by one or separated by commas."""
    entries = [target] if isinstance(target, str) else target or []
    return tuple(
        dict.fromkeys(
            name for word in entries for name in ([word] if word in known else word.split(","))
        )
    )


def conditions(
    schema: Schema, targets: Sequence[str], given: Sequence[str], beside: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The conditions: one per field, but all columns beside a target form one condition."""
    if targets and not beside:
        raise UsageError(
            f"{schema.name} has nothing beside {listed(targets)!r} to predict it from"
        )
    if targets and not given and schema.table:  # except text, which must be named
        names = tuple(name for name in beside if schema.field(name).space.kind != "tokens")
        if not names:
            raise UsageError(
                f"expected numbers or names beside {listed(targets)!r} to predict it from, found "
                f"only text ({listed(beside)}); condition on it with --given {beside[0]}"
            )
        return {INPUTS: names}
    return {name: (name,) for name in beside}


def is_class(space: Space) -> bool:
    return not space.shape and space.kind in ("label", "binary")


def read_selection(stored: Mapping[str, Any]) -> Selection:
    """The saved selection of a run; all of the event if a schema alone is saved."""
    found = read(stored)
    if isinstance(found, Selection):
        return found
    schema = Schema.from_dict(stored)
    return Selection(schema=schema, event=schema.main, given={})


def with_missing_marks(schema: Schema, name: str, tensors: Mapping[str, FieldRows]) -> Schema:
    fields = tuple(
        replace(field, space=mark_missing(field.space, tensors[field.name]))
        for field in schema.fields
    )
    columns = single_columns(tensors)
    differences = tuple(
        replace(each, space=mark_missing(each.space, each.subtract(columns)))
        for each in schema.differences
    )
    return replace(schema, name=name, fields=fields, differences=differences)


def mark_missing(space: Any, kept: FieldRows) -> Any:
    """The space, with `missing` set where a cell of any split is unknown: empty, in a column where
    that is no value of its own."""
    missing = space.missing and not space.optional
    unknown = not space.optional and not missing and has_missing(kept)
    return replace(space, missing=missing or unknown)
