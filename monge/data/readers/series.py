"""What a series is read from: a table with a column of times, an array, or sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.errors import DataError, UsageError, nearest
from ..codecs import time_index
from ..codecs.scalar import finite, listed
from ..codecs.sequence import is_uneven
from ..codecs.sound import Sound, amplitude
from ..codecs.time_index import TimeIndex
from ..codecs.window import Series, Window, since
from ..dataset import Schema
from ..options import Options
from . import tables
from .raw import RawData
from .series_grid import Regular, regular, whole

WORDS = ("lookback", "horizon", "season", "time", "known", "borders", "calendar")
"""Words of which any makes a series of what is read."""
OPTIONS = Options()
NONE = "none"
"""The word data.time=none: a table whose rows are no steps."""


def is_series(raw: RawData, options: Options, schema: Schema | None) -> bool:
    """The terms of a run decide, then the words, then whether a table is numbers beside times."""
    if schema is not None:
        return any(isinstance(field.codec, Window) for field in schema.fields)
    if options.time == NONE:
        return False
    if any(getattr(options, word) != getattr(OPTIONS, word) for word in WORDS):
        return True
    return raw.table and raw.split is None and found(raw) is not None and not singly(raw, options)


def singly(raw: RawData, options: Options) -> str:
    """Why the rows of a table with a column of times are no series, where that is so."""
    name = found(raw) if raw.table else None
    if name is None or raw.split is not None or options.time == NONE:
        return ""
    words = next(
        (
            other
            for other, column in raw.values.items()
            if other != name and not is_numbers(column)
        ),
        None,
    )
    if words is not None:
        return f"{words!r} beside the dates of {name!r} is text"
    times, _ = time_index.read(tables.cells(raw.values[name], raw.at(name)), name)
    falls = options.gaps == OPTIONS.gaps and bool((np.diff(times) < np.timedelta64(0)).any())
    return f"the dates of {name!r} are in no order" if falls else ""


def noted(raw: RawData, options: Options, schema: Schema | None) -> RawData:
    """A table with dates that is no series, which says so."""
    why = singly(raw, options) if schema is None else ""
    return (
        replace(
            raw,
            notes=(
                *raw.notes,
                f"rows are read one by one, since {why}; "
                f"data.time={found(raw)} reads them as a series",
            ),
        )
        if why
        else raw
    )


def is_numbers(column: Any) -> bool:
    """Whether no cell is text."""
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column.dtype) or column.isna().all())


def found(raw: RawData) -> str | None:
    """The column of times, where there is one beside others."""
    names = [
        name
        for name, column in raw.values.items()
        if (column.dtype.kind == "M" and column.nunique() > len(column) / 2)
        or (column.dtype.kind == "O" and time_index.is_dates(column.to_numpy(object)))
    ]
    return names[0] if names and len(raw.values) > 1 else None


def read(raw: RawData, options: Options, schema: Schema | None) -> Series:
    if raw.table:
        return from_table(raw, options, schema)
    for word in ("time", "known"):
        if getattr(options, word):
            raise UsageError(
                f"data.{word} names a column, and {raw.name} is no table; leave it out"
            )
    values = raw.values[raw.main[0]]
    codec = raw.codecs.get(raw.main[0])
    return from_sound(raw, codec) if isinstance(codec, Sound) else from_array(raw, values)


def from_table(raw: RawData, options: Options, schema: Schema | None) -> Series:
    """Every column but that of times is a channel, or known beforehand."""
    column = time_column(raw, options, schema)
    known, channels = columns(raw, options, schema, column)
    values = np.stack([numbers(raw, name) for name in (*channels, *known)], 1)
    rows = Regular(TimeIndex(origin="0.0"), values, ())
    if column is not None:
        name = f"column {column!r}"
        times, form = time_index.read(tables.cells(raw.values[column], raw.at(column)), column)
        rows = regular(times, form, values, name, options)
    here = np.flatnonzero(~np.isnan(rows.values[:, : len(channels)]).all(1))
    if not len(here):
        raise DataError(f"{raw.name} has no value in {listed(channels)}; give it some")
    end = int(here[-1]) + 1 if known else len(rows.values)
    fills = options.gaps == "fill"
    steps, notes = whole(rows.values[:end, : len(channels)], channels, rows.clock, fills)
    beside, more = whole(rows.values[:, len(channels) :], known, rows.clock, fills)
    return Series(
        raw.name,
        single(steps, raw, channels),
        channels,
        rows.clock,
        single(beside, raw, known),
        known,
        column or "time",
        (end,),
        (*rows.notes, *notes, *more),
    )


def time_column(raw: RawData, options: Options, schema: Schema | None) -> str | None:
    if options.time and options.time not in raw.values:
        raise UsageError(
            f"data.time={options.time}: there is no such column{nearest(options.time, raw.values)}"
        )
    if options.time:
        return options.time
    key = None if schema is None else str(schema.field("time").key)
    return key if key in raw.values else found(raw)


def columns(
    raw: RawData, options: Options, schema: Schema | None, time: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that are known beforehand, and the channels."""
    if schema is not None:
        codecs = {field.name: field.codec for field in schema.fields}
        known, own = (
            (codec.channels if isinstance(codec := codecs.get(name), Window) else ())
            for name in ("known", "past")
        )
    else:
        known = options.known
        own = tuple(name for name in raw.values if name != time and name not in known)
    absent = [name for name in (*known, *own) if name not in raw.values]
    if absent and schema is not None:
        raise DataError(
            f"{raw.name} lacks {listed(absent)}, which the run was fitted on; it has "
            f"{listed(raw.values)}"
        )
    if absent:
        raise UsageError(
            f"data.known={absent[0]}: there is no such column{nearest(absent[0], raw.values)}"
        )
    if not own:
        raise UsageError(
            f"{raw.name} has no column besides {listed([*known, time])} to forecast; give it one"
        )
    return known, own


def numbers(raw: RawData, name: str) -> NDArray[np.float64]:
    cells = tables.cells(raw.values[name], raw.at(name))
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    read = np.array([np.nan if cell is None else tables.number(cell) for cell in cells])
    strange = np.flatnonzero(np.isnan(read) & np.array([cell is not None for cell in cells]))
    if len(strange):
        raise DataError(
            f"{raw.at(name)(int(strange[0]))}: {cells[strange[0]]!r} is text, and a "
            f"channel of a series is numbers; leave it out with data.drop={name}"
        )
    return read


def single(
    values: NDArray[np.float64], raw: RawData, names: tuple[str, ...]
) -> NDArray[np.float32]:
    """float32, which no value exceeds."""
    for place, name in enumerate(names):
        finite(values[:, place], raw.at(name))
    return np.ascontiguousarray(values.astype(np.float32))


def from_array(raw: RawData, values: np.ndarray) -> Series:
    """(T,) or (T, channels), or several of them."""
    pieces = list(values) if is_uneven(values) else [values]
    if pieces[0].ndim > 2 or pieces[0].dtype.kind not in "biuf":
        raise DataError(
            f"{raw.name} has the shape {values.shape}, and a series is steps, or "
            "steps by channels; reshape it"
        )
    return joined(raw, [piece.astype(np.float64) for piece in pieces], TimeIndex(origin="0.0"))


def from_sound(raw: RawData, sound: Sound) -> Series:
    """Amplitudes, 1 the loudest; every recording is a series of its own."""
    pieces = [
        amplitude(torch.from_numpy(np.ascontiguousarray(piece)), sound.bits).numpy()
        for piece in raw.values[raw.main[0]]
    ]
    return joined(raw, pieces, TimeIndex(origin="0.0", every=1 / sound.rate))


def joined(raw: RawData, pieces: list[NDArray[np.float64]], own: TimeIndex) -> Series:
    """Recordings end to end."""
    flat = np.concatenate([piece.reshape(len(piece), -1) for piece in pieces])
    names = ("x",) if flat.shape[1] == 1 else tuple(f"x{i + 1}" for i in range(flat.shape[1]))
    holes = np.flatnonzero(np.isnan(flat).any(1))
    if len(holes):
        raise DataError(f"{raw.name}: step {int(holes[0]) + 1} is missing; fill it")
    return Series(
        raw.name,
        single(flat, raw, names),
        names,
        own,
        np.empty((len(flat), 0), np.float32),
        lengths=tuple(map(len, pieces)),
    )


def reread(what: Any, words: Sequence[str], stored: Mapping[str, Any]) -> Series:
    """A series in the terms of a run, however short, and with what is known beyond its end."""
    from .. import from_python
    from ..build import prepare, stored_terms
    from ..builtin import catalogue
    from . import files

    options = Options().override(*words)
    place = catalogue.locate(str(what))[0] if isinstance(what, str | Path) else None
    if isinstance(place, str):
        raise DataError(f"{what} is no series; give a table with a column of times")
    raw = from_python(what, options) if place is None else files.read(place, options)
    schema = stored_terms(stored)[0]
    series = read(prepare(raw, options), options, schema)
    since(series, schema)  # or a sentence about steps of another length
    return series
