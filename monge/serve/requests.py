"""Requests and answers in JSON, made from the schema of a run.

A row of a table is an object with a value for each column, null where a cell is empty; other rows
are numbers, nested lists or texts, in the form in which the run samples them; if a run has
conditions beside its event, a row is an object of both. What does not fit is refused with one
sentence and the status 422, what is too large with 413.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    get_args,
    get_origin,
)

import numpy as np
from annotated_types import Ge, Gt, Le, Len
from pydantic import BaseModel, ConfigDict, StringConstraints, create_model, model_validator
from pydantic import Field as About
from typing_extensions import TypedDict

from ..core.config import Range, hints
from ..core.config_help import help_of
from ..core.errors import DataError, UsageError, shown
from ..data import loading
from ..data.codecs.array import Array
from ..data.codecs.base import Codec
from ..data.codecs.date import Date
from ..data.codecs.scalar import MISSING, Binary, Categorical, Number, Offset
from ..data.codecs.sequence import SequenceCodec, pack
from ..data.codecs.time_index import TimeIndex
from ..data.codecs.tokens import Text
from ..data.codecs.window import Window
from ..data.dataset import Dataset, View
from ..data.options import Options
from ..data.readers.base import RawData, RowLocations
from ..data.readers.tables import from_frame
from ..data.schema import Field

if TYPE_CHECKING:
    import pandas as pd

    from ..run.run import Run

MAX_ROWS = 10_000
"""Most rows, codes, texts or samples of one request."""
MAX_TEXT = 100_000
"""Most characters of one text."""
MAX_SETTING = 1000
"""Most of a whole number among the options (steps, passes, samples), and of the product of those
that a request gives, with which its work grows: it cannot be ended before it is done."""
MAX_SEED = 2**63 - 1
LARGEST = float(np.finfo(np.float32).max)
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

Number32 = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
Whole = Annotated[int, Ge(-(2**53)), Le(2**53)]
String = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
Seed = Annotated[int, Ge(0), Le(MAX_SEED), About(description="Same seed, same answer.")]
Count = Annotated[int, Ge(1), Le(MAX_ROWS)]


class Strict(BaseModel):
    """A body in which every name is known and every value has its type."""

    model_config = STRICT


class Refusal(BaseModel):
    """Why a request was refused."""

    error: str = About(description="One sentence: what was expected, what was found, what to do.")


@dataclass(frozen=True)
class RowForm:
    """How the rows of a run are written in JSON, for one kind of request."""

    view: View
    unknown: bool = False  # whether null stands for a value to be filled in
    whole: bool = True  # whether the event is needed, as for log-likelihoods
    supports_missing: bool = False

    @cached_property
    def stored(self) -> dict[str, Any]:
        return self.view.to_dict()

    @cached_property
    def required(self) -> set[str]:
        event = {*self.view.selection.event} if self.whole else set()
        return self.view.selection.required | event

    @property
    def is_table(self) -> bool:
        return self.view.selection.schema.table

    @cached_property
    def is_series(self) -> bool:
        return any(isinstance(field.codec, Window) for field in self.view.selection.schema.fields)

    @cached_property
    def fields(self) -> list[Field]:
        """The fields that a row may have."""
        schema, event = self.view.selection.schema, {*self.view.selection.event}
        computed = {each.name for each in schema.derived} if schema.table else set()
        return [
            field
            for field in schema.fields
            if field.name in event | self.view.selection.conditions | self.required | computed
        ]

    @cached_property
    def type(self) -> Any:
        """The pydantic type of one row."""
        if self.is_series:
            return series_step(self.view)
        if not self.is_table and len(self.fields) == 1:
            return self.value_type(self.fields[0])
        columns: dict[str, Any] = {}
        for field in self.fields:
            kind = self.value_type(field)
            columns[self.key(field)] = kind if field.name in self.required else NotRequired[kind]
        for key in self.view.selection.schema.row_keys:
            cell = Whole | Number32 | String | None
            columns[str(key.key or key.name)] = NotRequired[cell]
        return record(columns)

    def key(self, field: Field) -> str:
        """The name of a field in a row."""
        return str(field.key or field.name) if self.is_table else field.name

    def value_type(self, field: Field) -> Any:
        """The type of one value of a field, null included if it may be empty."""
        codec, inside = field.codec, field.name in self.view.selection.event
        kind = value_type(codec, field, inside, self.unknown and inside)
        empty = field.space.optional or field.space.missing
        empty |= inside and (self.unknown or self.supports_missing)
        single = not isinstance(codec, Array | SequenceCodec)
        spare = field.name not in self.required
        return kind | None if single and (empty or spare) else kind

    def dataset(self, rows: Sequence[Any]) -> Dataset:
        """The rows as data of the run; DataError in a sentence if they do not fit."""
        return loading.build(self.raw(rows), Options(), stored=self.stored, whole=True)

    def raw(self, rows: Sequence[Any]) -> RawData:
        if self.is_table or self.is_series:
            return from_frame(self.frame(rows), "the rows")
        schema, places = self.view.selection.schema, RowLocations.count(len(rows))
        values, codecs = {}, {}
        for field in self.fields:
            own = [row[field.name] for row in rows] if len(self.fields) > 1 else list(rows)
            if any(value is None for value in own) and field.name not in self.required:
                if any(value is not None for value in own):
                    raise DataError(
                        f"expected {field.name!r} in every row or in none, found it in some; "
                        "send these rows apart"
                    )
                continue
            values[field.name] = as_values(field.codec, own, places.at(field.name))
            if isinstance(field.codec, Array | SequenceCodec):
                codecs[field.name] = as_sampled(field.codec)
        target = schema.target if schema.target in values else None
        return RawData("the rows", values, schema.main, places, target, codecs=codecs)

    def frame(self, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        """Rows of a table as a frame; a column that no row has is left out."""
        import pandas as pd

        names = [*dict.fromkeys(name for row in rows for name in row)]
        return pd.DataFrame(
            {name: pd.Series([row.get(name) for row in rows], dtype=object) for name in names}
        )


def record(columns: Mapping[str, Any]) -> Any:
    """An object with these names, which need not be Python's."""
    kind = TypedDict("Row", dict(columns))  # type: ignore[misc] # noqa: UP013
    kind.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    return kind


def series_step(view: View) -> Any:
    """A step of a series: its time and channels; columns that are known ahead beside them."""
    fields = {field.name: field for field in view.selection.schema.fields}
    columns: dict[str, Any] = {}
    for field in fields.values():
        if isinstance(field.codec, TimeIndex):
            columns[str(field.key or field.name)] = String | Number32
        elif isinstance(field.codec, Window) and field.name in ("past", "known"):
            columns |= dict.fromkeys(field.codec.channels, Number32 | None)
    return record(columns)


def value_type(codec: Codec, field: Field, inside: bool, unknown: bool) -> Any:
    """The type of one value; `inside` the event, where bounds hold and names are known."""
    if isinstance(codec, Text):
        return Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT)]
    if isinstance(codec, Categorical):
        return name_type([n for n in codec.names if n != MISSING], codec.typed.dtype.kind, inside)
    if isinstance(codec, Binary):
        if codec.is_text:
            return name_type(list(codec.values), "O", inside)
        return Literal[0, 1] | bool
    if isinstance(codec, Date | TimeIndex):
        return String
    if isinstance(codec, Array):
        rows = {"HW": codec.shape[1:], "HWC": (*codec.shape[1:], codec.shape[0])}
        return nested(number_type(codec), rows.get(codec.layout, codec.shape), unknown)
    if isinstance(codec, SequenceCodec):
        least = 1 if codec.varies else codec.longest
        step = nested(number_type(codec), codec.step, unknown)
        return Annotated[list[step], Len(least, codec.longest)]  # type: ignore[valid-type]
    if isinstance(codec, Number):
        kind = Whole if codec.kind == "counts" else Number32
        if not inside or isinstance(codec, Offset):
            return kind
        limits = [Ge(field.space.lower)] if field.space.lower is not None else []
        limits += [Le(field.space.upper)] if field.space.upper is not None else []  # type: ignore[list-item]
        for limit in limits:
            kind = Annotated[kind, limit]  # type: ignore[assignment]
        return kind
    raise UsageError(f"expected numbers, names or text in {field.name}, found {codec.tag}")


def name_type(names: list[str], kind: str, inside: bool) -> Any:
    """One of the names of a category, which may be written as numbers if they are numbers. A
    condition may have a name that was not in training, which is read as an empty cell."""
    others: Any = {"i": Whole, "u": Whole, "f": Number32, "b": bool}.get(kind)
    if not inside:
        return String if others is None else String | others
    texts: Any = Literal[tuple(names)]
    if others is None:
        return texts
    if kind == "b":
        return texts | bool
    return texts | Literal[tuple(int(name) for name in names)] if kind in "iu" else texts | others


def number_type(codec: Array | SequenceCodec) -> Any:
    if codec.kind == "real":
        return Number32
    if codec.kind == "counts":
        return Annotated[int, Ge(-(2**24)), Le(2**24)]
    sizes = as_sampled(codec)
    top = sizes.top if isinstance(sizes, Array) else max(codec.size - 1, 1)
    return Annotated[int, Ge(0), Le(top)]


def nested(kind: Any, shape: Sequence[int], unknown: bool) -> Any:
    """Lists of lists in this shape."""
    found = kind | None if unknown else kind
    for size in reversed(shape):
        found = Annotated[list[found], Len(size, size)]  # type: ignore[valid-type]
    return found


def as_values(codec: Codec, values: Sequence[Any], at: Any) -> np.ndarray:
    """Values of a field as its reader would give them; null is 0 here."""
    if isinstance(codec, Text):
        return codec.codes(list(values), at)
    if isinstance(codec, SequenceCodec):
        return pack([filled(value) for value in values])
    if isinstance(codec, Array):
        return np.stack([filled(value) for value in values])
    return np.array(list(values), object)


def as_sampled(codec: Array | SequenceCodec) -> Codec:
    """The codec of rows in the form of samples: 0 and 1 where the data hold probabilities."""
    if isinstance(codec, Array) and codec.sampled:
        return replace(codec, sampled=False, size=0)
    return codec


def filled(value: Any) -> np.ndarray:
    """A nested list as an array, 0 where it is null."""
    found = np.array(value, np.float64)
    return np.nan_to_num(found, nan=0.0) if np.isnan(found).any() else found


def unknown_entries(value: Any) -> np.ndarray:
    """Where a nested list is null."""
    return np.isnan(np.array(value, np.float64))


def options_type(kind: Any, name: str) -> Any:
    """The options of sampling or scoring as an object; those that are no plain values, such as
    other runs, are left out."""
    helps, fields = help_of(kind), {}
    for key, hint in hints(kind).items():
        plain = plain_type(hint)
        if plain is not None:
            text = helps[key]
            fields[key] = (plain, About(None, description=text))  # null only if left out
    return create_model(name, __base__=LimitedOptions, **fields)  # type: ignore[call-overload]


class LimitedOptions(Strict):
    """Options whose whole numbers ask for no more work than a request may."""

    @model_validator(mode="after")
    def check_work(self) -> LimitedOptions:
        given = {
            name: value
            for name, value in self.model_dump(exclude_none=True).items()
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1
        }
        if math.prod(map(abs, given.values())) > MAX_SETTING:
            raise ValueError(
                f"a product of {' and '.join(given)} of at most {MAX_SETTING}"
            )  # the sentence is made of it by `refusal`
        return self


def plain_type(hint: Any) -> Any:
    """The type of a setting in JSON; None if it is no plain value."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner = plain_type(args[0])
        limits = [limit for limit in args[1:] if isinstance(limit, Range)]
        for limit in limits if inner is not None else ():
            low = (Gt if limit.open else Ge)(limit.low) if limit.low is not None else None
            high = Le(limit.high) if limit.high is not None else None
            for bound in (low, high):
                inner = Annotated[inner, bound] if bound is not None else inner
        return inner
    if origin in (typing.Union, types.UnionType):
        inner = [plain_type(arg) for arg in args if arg is not types.NoneType]
        return None if None in inner or len(inner) != 1 else inner[0]
    if origin is Literal:
        return hint
    if hint is bool:
        return bool
    if hint is int:
        return Annotated[int, Ge(-MAX_SETTING), Le(MAX_SETTING)]
    return Number32 if hint is float else None


def settings_of(options: Strict | None) -> tuple[str, ...]:
    """Options as the settings that the command line takes."""
    if options is None:
        return ()
    given = options.model_dump(exclude_none=True)
    return tuple(f"{name}={value}" for name, value in given.items())


def plain_rows(run: Run, found: Any, length: Any = None) -> list[Any]:
    """Rows in the form of the data as JSON: objects of columns, nested lists or texts."""
    if isinstance(found, np.ndarray):
        ends = [None] * len(found) if length is None else [int(end) for end in length]
        return [plain(row[:end] if end else row) for row, end in zip(found, ends, strict=True)]
    return records(found)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame as one object a row."""
    names = [str(name) for name in table.columns]
    columns = [[plain(cell) for cell in table.iloc[:, place]] for place in range(len(names))]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def plain(value: Any) -> Any:
    """A value of numpy or pandas as JSON holds it: null for NaN, infinity and empty cells."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return plain(value.tolist())
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if value is None or isinstance(value, str | bool | int):
        return value
    value = getattr(value, "item", lambda: value)()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool | int | str):
        return value
    import pandas as pd

    return None if pd.isna(value) else str(value)


TOO_LARGE = ("too_long", "string_too_long", "less_than_equal")
"""Errors of pydantic that mean that a request asks for too much at once, for its counts."""
COUNTS = ("n", "draws", "rows", "codes", "texts", "horizon", "prompt")


def refusal(errors: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    """The status and the sentence for the errors that pydantic found in a request."""
    if any(error["type"] == "json_invalid" for error in errors):
        return 422, "expected one JSON object as the body, found something else; send JSON"
    error = min(errors, key=lambda one: (-len(one["loc"]), str(one["loc"])))
    path = [str(part) for part in error["loc"] if part != "body"]
    place = ".".join(path) or "the body"
    found = shown(error.get("input"))
    limits = error.get("ctx", {})
    large = error["type"] in TOO_LARGE and len(path) == 1 and path[0] in COUNTS
    if large:
        most = limits.get("max_length", limits.get("le"))
        size = limits.get("actual_length", found)
        return 413, f"{place}: expected at most {most} in one request, found {size}; send several"
    if error["type"] == "missing":
        return 422, f"{place}: expected a value, found none; add it"
    if error["type"] == "extra_forbidden":
        return 422, f"{place}: expected only known names, found this one; remove it"
    wanted = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    wanted = wanted[:1].lower() + wanted[1:] if not wanted.startswith("'") else wanted
    return 422, f"{place}: expected {wanted}, found {found}; change it"
