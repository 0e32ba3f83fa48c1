"""Tables that hold series in another form than one column of times and one of numbers each.

A panel has a row for each time and each of several series, whose name is in a column
(`data.series`): its series become columns over the time that all of them cover. A year and a
month, with or without a day, in columns of their own become one column of times. Times with a
zone are those of its clock where it shows all rows the same time of day, since the days of a zone
with summer time are no equal steps in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.errors import DataError, UsageError, nearest
from ..codecs import time_index
from ..codecs.date_format import FEW, MONTHS, find_format, is_date, without_zone
from ..codecs.scalar import listed
from ..options import Options
from . import tables
from .base import RawData, RowLocations

CALENDAR = ("year", "month", "day")
MOST_SERIES = 50
"""Names up to which a column may name the series of a panel."""


def is_dates(column: Any) -> bool:
    """Whether the first cells of a column are dates."""
    if column.dtype.kind != "O":
        return bool(column.dtype.kind == "M")
    cells = column.dropna().iloc[:FEW]
    return len(cells) > 0 and all(map(is_date, cells))


def is_numbers(column: Any) -> bool:
    """Whether no cell is text."""
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column.dtype) or column.isna().all())


def calendar_columns(raw: RawData) -> list[str]:
    """The columns called year, month and perhaps day; empty without the first two."""
    named = {name.lower(): name for name in raw.values} if raw.table else {}
    found = [named[each] for each in CALENDAR if each in named]
    return found if "year" in named and "month" in named else []


def calendar_times(raw: RawData) -> np.ndarray | None:
    """The dates that a year, a month and perhaps a day in columns of their own make, as text."""
    names = calendar_columns(raw)
    parts = [whole_numbers(raw.values[name], place == 1) for place, name in enumerate(names)]
    if not names or any(part is None for part in parts):
        return None
    year, month, *day = (part for part in parts if part is not None)
    limits = ((1000, 9999), (1, 12), (1, 31))
    for part, (low, high) in zip((year, month, *day), limits, strict=False):
        if part.min() < low or part.max() > high:
            return None
    rows = zip(year, month, *day, strict=True)
    return np.array(["-".join(f"{each:02}" for each in row) for row in rows], object)


def whole_numbers(column: Any, months: bool) -> np.ndarray | None:
    """The cells as whole numbers, names of months too; None if one is neither."""
    if months and column.dtype.kind == "O":
        numbers = {name[:size]: i + 1 for i, name in enumerate(MONTHS) for size in (3, 99)}
        column = column.map(lambda cell: numbers.get(str(cell).strip().title()))
    if not is_numbers(column) or column.isna().any():
        return None
    cells = column.to_numpy(np.float64)
    return cells.astype(np.int64) if (cells % 1 == 0).all() else None


def joined_time(raw: RawData, options: Options, wanted: str | None) -> RawData:
    """The table with one column of times in place of a year and a month. `wanted` is the column of
    times of a run, None for new data: then rows must be in the order of their times, with numbers
    beside them."""
    names = calendar_columns(raw)
    name = "-".join(names)
    if not names or options.time or (wanted is not None and wanted != name):
        return raw
    rest = [each for each in raw.values if each not in (*names, options.series)]
    if not rest or not all(is_numbers(raw.values[each]) for each in rest):
        return raw
    times = calendar_times(raw)
    if times is None or (
        wanted is None and not options.series and not (times[1:] > times[:-1]).all()
    ):
        return raw
    import pandas as pd

    values = {name: pd.Series(times), **{each: raw.values[each] for each in raw.values}}
    for each in names:
        del values[each]
    note = (
        f"{' and '.join(names)} are read as one time; set data.time=none if the rows are "
        "independent"
    )
    return replace(raw, values=values, main=tuple(values), notes=(*raw.notes, note))


def own_clock(column: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """A column of times as the clock of their zone shows them, if it shows all the same time of
    day, otherwise as it is; and a note about offsets that are lost."""
    notes: tuple[str, ...] = ()
    if getattr(column.dtype, "tz", None) is not None:
        shown = column.dt.tz_localize(None)
        times = shown.to_numpy().astype("datetime64[s]")
    elif column.dtype.kind == "O" and has_zones(column):
        shown = column.map(without_zone)
        times, _ = time_index.read(shown.to_numpy(object), name)
        notes = (
            f"the times of {name} have the offsets of a zone with summer time, which are left "
            "out: they are read and written as its clock shows them",
        )
    else:
        return column, ()
    if np.isnat(times).any() or len(np.unique(times - times.astype("datetime64[D]"))) > 1:
        return column, ()
    return shown, notes


def has_zones(column: Any) -> bool:
    """Whether this is text that holds times of several zones."""
    cells = column.to_numpy(object)
    if not all(isinstance(cell, str) for cell in cells):
        return False
    form = find_format(list(dict.fromkeys(cells)))
    return form is not None and "z" in form


def panel_of(raw: RawData) -> tuple[str, str] | None:
    """The column that names the series of a panel and that of its times, if each pair of them
    occurs once and times repeat."""
    if not raw.table or raw.split is not None:
        return None
    time = next((name for name, column in raw.values.items() if is_dates(column)), None)
    texts = [name for name, column in raw.values.items() if not is_numbers(column)]
    names = [name for name in texts if name != time]
    if time is None or len(names) != 1 or len(raw.values) < 3:
        return None
    cells = raw.values[names[0]]
    count = cells.nunique()
    several = 1 < count <= MOST_SERIES and not cells.isna().any()
    if not several or len(raw) < 2 * raw.values[time].nunique():
        return None
    import pandas as pd

    pairs = pd.DataFrame({"name": cells, "time": raw.values[time]})
    return None if pairs.duplicated().any() else (names[0], time)


def widened(raw: RawData, options: Options) -> RawData:
    """The panel with a column for each series that `data.series` names; as it is without it."""
    name = options.series
    if not name:
        return raw
    if not raw.table or name not in raw.values:
        known = nearest(name, raw.values) if raw.table else "; give a table"
        raise UsageError(f"data.series={name}: there is no such column{known}")
    dates = (each for each, column in raw.values.items() if each != name and is_dates(column))
    time = options.time or next(dates, None)
    if time is None or time not in raw.values:
        raise UsageError(
            f"data.series={name}: expected a column of times beside it, found none; name it with "
            "data.time"
        )
    rest = [each for each in raw.values if each not in (name, time)]
    if not rest:
        raise DataError(f"{raw.name} has no column of numbers beside {name} and {time}; add one")
    for each in rest:
        if not is_numbers(raw.values[each]):
            raise DataError(
                f"expected numbers in {each!r} for the series of {name!r}, found text; leave it "
                f"out with data.drop={each}",
                f"drop={each}",
            )
    return pivoted(raw, name, time, rest)


def pivoted(raw: RawData, name: str, time: str, rest: list[str]) -> RawData:
    import pandas as pd

    cells = tables.cells(raw.values[time], raw.at(time))
    times, _ = time_index.read(cells, time)
    frame = pd.DataFrame({"name": raw.values[name].astype(str), "time": times, "cell": cells})
    twice = np.flatnonzero(frame.duplicated(["name", "time"]))
    if len(twice):
        row = int(twice[0])
        raise DataError(
            f"{raw.at(time)(row)}: expected one row for each time of {frame['name'][row]}, found "
            f"a second for {cells[row]} ({len(twice)} such rows); keep one of them"
        )
    ends = frame.groupby("name", sort=False)["time"].agg(["min", "max"])
    first, last = ends["min"].max(), ends["max"].min()
    if first >= last:
        raise DataError(
            f"expected series of {name} that share a time, found none ({ends['max'].idxmin()} "
            f"ends before {ends['min'].idxmax()} begins); leave out the rows of one of them"
        )
    inside = ((frame["time"] >= first) & (frame["time"] <= last)).to_numpy()
    shown = frame[inside].drop_duplicates("time").sort_values("time")
    columns: dict[str, Any] = {time: raw.values[time].loc[shown.index].reset_index(drop=True)}
    for each in rest:
        values = frame.assign(value=raw.values[each].to_numpy(np.float64, na_value=np.nan))
        wide = values[inside].pivot(index="time", columns="name", values="value")
        for key in ends.index:
            title = str(key) if len(rest) == 1 else f"{each} {key}"
            columns[title] = wide[key].reset_index(drop=True)
    notes = [f"one series for each of the {len(ends)} names of {name} ({listed(ends.index, 4)})"]
    if not inside.all():
        notes.append(
            f"{int((~inside).sum())} rows outside the time that all of them cover, "
            f"{shown['cell'].iloc[0]} to {shown['cell'].iloc[-1]}, are left out"
        )
    return renewed(raw, columns, notes)


def renewed(raw: RawData, columns: Mapping[str, Any], notes: list[str]) -> RawData:
    """A table of other rows and columns."""
    rows = len(next(iter(columns.values())))
    return replace(
        raw,
        values=columns,
        main=tuple(columns),
        places=RowLocations.count(rows),
        target=None,
        keys={},
        notes=(*raw.notes, *notes),
    )
