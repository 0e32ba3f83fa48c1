"""Series from a table with a column of times, an array, or sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.deferred import torch
from ...core.errors import DataError, UsageError, nearest
from ..codecs import time_index
from ..codecs.base import Codec
from ..codecs.scalar import finite, listed
from ..codecs.sequence import is_uneven
from ..codecs.sound import Sound, amplitude
from ..codecs.time_index import TimeIndex
from ..codecs.window import Series, Window, WindowSpec
from ..options import Options
from ..schema import Schema
from . import tables
from .base import RawData, RowLocations
from .series_grid import Regular, regular, whole
from .series_table import is_dates, is_numbers, joined_time, own_clock, panel_of, widened

SETTINGS = ("lookback", "horizon", "season", "time", "known", "borders", "calendar", "series")
"""Settings that make any input a series."""
NONE = "none"
"""The value of data.time for a table whose rows are not a series."""
SEASONS, MOST = 14, 672
"""The default lookback: a number of seasons, and the largest number of steps."""
HORIZON = 24
"""The default horizon if times have no season."""


def is_series(raw: RawData, options: Options, schema: Schema | None) -> bool:
    """Decided by the schema of a run, then the settings, then whether the table is numbers and
    times."""
    if schema is not None:
        return any(isinstance(field.codec, Window) for field in schema.fields)
    if options.time == NONE:
        return False
    named = [name for name in SETTINGS if getattr(options, name) != getattr(Options, name)]
    if named == ["time"] and raw.table and options.time in raw.values:
        return text_beside(raw, options.time) is None
    if named:
        return True
    return raw.table and raw.split is None and found(raw) is not None and not singly(raw, options)


def singly(raw: RawData, options: Options) -> str:
    """Why the rows of a table with a column of times are not a series; empty if they are."""
    name = found(raw) if raw.table else None
    if name is None or raw.split is not None or options.time:
        return ""
    text = text_beside(raw, name)
    if text is not None and is_dates(raw.values[text]):
        return f"{text!r} holds dates as {name!r} does"
    if text is not None:
        return f"{text!r} beside the dates of {name!r} is text"
    times, _ = time_index.read(tables.cells(raw.values[name], raw.at(name)), name)
    falls = options.gaps == Options.gaps and bool((np.diff(times) < np.timedelta64(0)).any())
    return f"the dates of {name!r} are not in order" if falls else ""


def text_beside(raw: RawData, time: str) -> str | None:
    """The first column besides that of times which is not numbers."""
    others = (name for name, column in raw.values.items() if not is_numbers(column))
    return next((name for name in others if name != time), None)


def noted(raw: RawData, options: Options, schema: Schema | None) -> RawData:
    """The table, with a note if it has dates but is not a series."""
    if schema is None and not options.time and (panel := panel_of(raw)):
        series, time = panel
        note = (
            f"rows are read as independent, as each time of {time!r} has a row for each name of "
            f"{series!r}; set data.series={series} to read one series a name"
        )
        return replace(raw, panel=series, notes=(*raw.notes, note))
    why = singly(raw, options) if schema is None else ""
    return (
        replace(
            raw,
            notes=(
                *raw.notes,
                f"rows are read as independent, as {why}; "
                f"set data.time={found(raw)} to "
                + ("read them as a series" if why.endswith("order") else "split them by time"),
            ),
        )
        if why
        else raw
    )


def found(raw: RawData) -> str | None:
    """The column of times; None if there is none or no other column."""
    names = [
        name
        for name, column in raw.values.items()
        if (column.dtype.kind == "M" and column.nunique() > len(column) / 2)
        or (column.dtype.kind == "O" and time_index.is_dates(column.to_numpy(object)))
    ]
    return names[0] if names and len(raw.values) > 1 else None


def arranged(raw: RawData, options: Options, schema: Schema | None) -> RawData:
    """The table with one column of times, and one for each series of a panel; what a run on a
    series is given is read as a panel if it is one."""
    wanted = None if schema is None else str(schema.field("time").key)
    raw = joined_time(raw, options, wanted)
    if schema is not None and not options.series and (panel := panel_of(raw)):
        options = replace(options, series=panel[0])
    return widened(raw, options)


def read(raw: RawData, options: Options, schema: Schema | None) -> Series:
    """The series of a table that is `arranged`, an array or sound."""
    if raw.table:
        return from_table(raw, options, schema)
    for word in ("time", "known", "series"):
        if getattr(options, word):
            raise UsageError(
                f"data.{word} names a column, but {raw.name} is not a table; remove it"
            )
    values = raw.values[raw.main[0]]
    codec = raw.codecs.get(raw.main[0])
    return from_sound(raw, codec) if isinstance(codec, Sound) else from_array(raw, values)


def from_table(raw: RawData, options: Options, schema: Schema | None) -> Series:
    """Every column except the times is a channel or known in advance."""
    column = time_column(raw, options, schema)
    known, channels = columns(raw, options, schema, column)
    values = np.stack([numbers(raw, name) for name in (*channels, *known)], 1)
    rows = Regular(TimeIndex(origin="0.0"), values, ())
    if column is not None:
        name, given = f"column {column!r}", raw.values[column]
        shown, told = own_clock(given, column)
        times, form = time_index.read(tables.cells(shown, raw.at(column)), column)
        rows = regular(times, form, values, name, options)
        if given.dtype.kind == "M":
            own = replace(rows.clock, dtype=str(given.dtype), is_local=shown is not given)
            rows = replace(rows, clock=own)
        rows = replace(rows, notes=(*told, *rows.notes))
    here = np.flatnonzero(~np.isnan(rows.values[:, : len(channels)]).all(1))
    if not len(here):
        raise DataError(f"{raw.name} has no value in {listed(channels)}; give it some")
    end = int(here[-1]) + 1 if known else len(rows.values)
    fills = options.gaps == "fill"
    steps, notes = whole(
        rows.values[:end, : len(channels)], channels, rows.clock, fills, rows.absent
    )
    beside, more = whole(rows.values[:, len(channels) :], known, rows.clock, fills, rows.absent)
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
    """The columns known in advance, and the channels."""
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
            f"{raw.at(name)(int(strange[0]))}: {cells[strange[0]]!r} is text, but a "
            f"channel of a series must be numbers; drop it with data.drop={name}, or set "
            "data.time=none if the rows are not a series",
            "time=none",
        )
    return read


def single(
    values: NDArray[np.float64], raw: RawData, names: tuple[str, ...]
) -> NDArray[np.float32]:
    """As float32; DataError for values that exceed it."""
    for place, name in enumerate(names):
        finite(values[:, place], raw.at(name))
    return np.ascontiguousarray(values.astype(np.float32))


def from_array(raw: RawData, values: np.ndarray) -> Series:
    """From (T,) or (T, channels), or several of them."""
    pieces = list(values) if is_uneven(values) else [values]
    if pieces[0].ndim > 2 or pieces[0].dtype.kind not in "biuf":
        raise DataError(
            f"{raw.name} has the shape {values.shape}, but a series is (steps,) or "
            "(steps, channels); reshape it"
        )
    return joined(raw, [piece.astype(np.float64) for piece in pieces], TimeIndex(origin="0.0"))


def from_sound(raw: RawData, sound: Sound) -> Series:
    """Amplitudes in -1..1; every recording is a separate series."""
    pieces = [
        amplitude(torch.from_numpy(np.ascontiguousarray(piece)), sound.bits).numpy()
        for piece in raw.values[raw.main[0]]
    ]
    return joined(raw, pieces, TimeIndex(origin="0.0", every=1 / sound.rate))


def joined(raw: RawData, pieces: list[NDArray[np.float64]], own: TimeIndex) -> Series:
    """Recordings, concatenated."""
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


def windows(raw: RawData, options: Options, schema: Schema | None = None) -> RawData:
    """Cut the data into windows if it is a series: by a setting, a column of times or the schema
    of an earlier run."""
    raw = arranged(raw, options, schema)
    if not is_series(raw, options, schema):
        return noted(raw, options, schema)
    series = read(raw, options, schema)
    cut = window_spec(series, options) if schema is None else cut_of(schema)
    start, split = divided(series, cut, options) if schema is None else (every(series, cut), None)
    codecs, values = fields(series, cut, options, schema)
    parts: dict[str, Any] = {name: (flat, start) for name, flat in values.items()}
    parts["time"] = start + cut.lookback + first_tick(series, schema)
    note = (
        ()
        if schema is not None
        else (
            f"windows of {cut.lookback} past and {cut.horizon} future steps, season {cut.season}",
        )
    )
    inputs = tuple(name for name in ("past", "known", "calendar") if name in values)
    return RawData(
        series.name,
        parts,
        ("series",),
        RowLocations.count(len(start)),
        "future",
        inputs,
        codecs=codecs,
        split=split,
        notes=raw.notes + series.notes + note,
        keys={"time": series.column},
    )


def first_tick(series: Series, schema: Schema | None) -> float:
    """The tick of the first step on the clock of a run; the steps must have the same length."""
    own = series.clock if schema is None else schema.field("time").codec
    assert isinstance(own, TimeIndex), "a series has a clock"
    if (own.unit, own.every) != (series.clock.unit, series.clock.every):
        raise DataError(
            f"{series.name} has steps of {series.clock.step} where the run has "
            f"{own.step}; resample it"
        )
    return float(own.ticks(series.clock.start))


def fields(
    series: Series, cut: WindowSpec, options: Options, schema: Schema | None
) -> tuple[dict[str, Codec], dict[str, NDArray[np.float32]]]:
    """The codec of each field, and the steps of its windows."""
    own = Window(
        channels=series.channels,
        steps=cut.steps,
        season=cut.season,
        vector=len(series.channels) > 1,
    )
    codecs: dict[str, Codec] = {
        "series": own,
        "past": replace(own, steps=cut.lookback, after=cut.horizon),
        "future": replace(own, before=cut.lookback, steps=cut.horizon),
        "time": series.clock,
    }
    values = dict.fromkeys(("series", "past", "future"), series.values)
    if series.covariates:
        values["known"] = series.known
    wanted = (
        options.calendar
        if schema is None
        else any(field.name == "calendar" for field in schema.fields)
    )
    if wanted:
        values["calendar"] = series.clock.calendar(np.arange(len(series), dtype=np.float64))
    for name in ("known", "calendar"):
        if name in values:
            names = (
                series.covariates
                if name == "known"
                else tuple(f"phase{place + 1}" for place in range(values[name].shape[1]))
            )
            codecs[name] = Window(
                channels=names,
                before=cut.lookback,
                steps=cut.horizon,
                season=cut.season,
                vector=True,
            )
    return codecs, values


def cut_of(schema: Schema) -> WindowSpec:
    """How an earlier run cut its series."""
    past, future = (schema.field(name).codec for name in ("past", "future"))
    assert isinstance(past, Window), "a series has a past"
    assert isinstance(future, Window), "a series has a future"
    return WindowSpec(past.steps, future.steps, past.season)


def window_spec(series: Series, options: Options) -> WindowSpec:
    """The window of the settings, or the default for these times and this length."""
    steps = min(series.lengths)
    training = round(steps * (1 - options.valid - options.test))
    season = options.season or series.clock.season
    horizon = options.horizon or max(1, min(season if season > 1 else HORIZON, steps // 10))
    wish = min(SEASONS * season if season > 1 else 4 * horizon, MOST, training // 3)
    return WindowSpec(options.lookback or max(1, wish // season * season or wish), horizon, season)


def every(series: Series, cut: WindowSpec) -> NDArray[np.int64]:
    """The first step of each window."""
    starts, offset = [], 0
    for steps in series.lengths:
        starts.append(offset + np.arange(steps - cut.steps + 1))
        offset += steps
    found = np.concatenate(starts)
    if not len(found):
        raise DataError(
            f"{series.name} has {max(series.lengths)} steps where a window takes "
            f"{cut.steps} (lookback {cut.lookback} and horizon {cut.horizon}); give "
            "more steps"
        )
    return found


def divided(
    series: Series, cut: WindowSpec, options: Options
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first step of each window, and the split it belongs to."""
    starts, splits, offset = [], [], 0
    for steps in series.lengths:
        start = np.arange(max(steps - cut.steps + 1, 0))
        first, last = start + cut.lookback, start + cut.steps  # of the future
        split, low = np.full(len(start), -1), 0
        for code, high in enumerate(borders(steps, cut, options)):
            split[(first >= low) & (last <= high)] = code
            low = high
        starts.append(offset + start[split >= 0])
        splits.append(split[split >= 0])
        offset += steps
    found = np.concatenate(splits)
    if len(np.unique(found)) < 3:
        raise DataError(
            f"{series.name} has {max(series.lengths)} steps, too few for windows of lookback "
            f"{cut.lookback} and horizon {cut.horizon} in training, validation and test; shorten "
            "data.lookback or data.horizon, give more steps, or set data.time=none if the rows "
            "are not a series",
            "time=none",
        )
    return np.concatenate(starts), found


def borders(steps: int, cut: WindowSpec, options: Options) -> NDArray[np.int64]:
    """The step at which each split ends: from data.borders, or by fractions; no split is shorter
    than the horizon."""
    sizes = options.borders
    if sizes and (len(sizes) != 3 or min(sizes) < 1 or sum(sizes) > steps):
        raise UsageError(
            f"data.borders={','.join(map(str, sizes))} must be the steps of training, "
            f"validation and test, {steps} together at most"
        )
    if not sizes:
        valid, test = (
            max(round(part * steps), cut.horizon) for part in (options.valid, options.test)
        )
        sizes = (max(steps - valid - test, 0), valid, test)
    return np.cumsum(sizes)
