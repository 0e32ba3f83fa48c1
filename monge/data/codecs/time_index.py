"""Times at equal steps: the length of a step, the season, and the format.

Times are counted in ticks from an origin: multiples of seconds, working days or calendar months,
or plain numbers. Times off this grid are irregular.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.space import Space
from ..packed import statistics
from .base import Codec, Locator
from .date_format import find_format, parse_times, write_times

DAY = 86_400
UNITS = ((7 * DAY, "week"), (DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
"""Seconds of the units that a step is given in, the longest first."""
Times = Any
"""Arrays of datetime64[s], or of float64 if times are numbers."""


class TimeIndex(Codec):
    """The time of a step as the number of ticks since the origin."""

    tag = "codec/time_index"
    origin: str
    """The first time, as text."""
    every: float = 1.0
    """Seconds, days, months or numbers between two ticks."""
    unit: Literal["number", "second", "business", "month"] = "number"
    """Unit of `every`."""
    form: str = ""
    """Format of times for strftime; empty for numbers."""
    is_local: bool = False
    """Whether times with a zone are as its clock shows them; otherwise they are in UTC."""

    def encode(self, values: np.ndarray, at: Locator) -> np.ndarray:
        """values: ticks, already counted by the code that makes windows."""
        return np.asarray(values, np.float64)

    def decode(self, x: np.ndarray) -> np.ndarray:
        return self.written(x.astype(np.float64))

    def measure(self, x: np.ndarray, name: str) -> Space:
        return Space(kind="real", name=name, **statistics(x, 1))

    @property
    def step(self) -> str:
        """The time between two ticks, as text."""
        if self.unit == "number":
            return f"{self.every:g}"
        long, noun = 1, "working day" if self.unit == "business" else str(self.unit)
        if self.unit == "second":
            long, noun = next(each for each in UNITS if self.every % each[0] == 0 or each[0] == 1)
        return f"{self.every / long:g} {noun}{'s' * (self.every != long)}"

    @property
    def start(self) -> Times:
        """The origin as a time."""
        if self.unit == "number":
            return np.float64(self.origin)
        unit: Literal["us", "s"] = "us" if "f" in self.form else "s"
        return np.datetime64(self.origin.replace(" ", "T"), unit)

    def times(self, ticks: np.ndarray) -> Times:
        """Ticks as times."""
        if self.unit == "second" and "f" in self.form:
            return self.start + np.rint(ticks * self.every * 1e6).astype("timedelta64[us]")
        steps = np.rint(ticks * self.every).astype(np.int64)
        match self.unit:
            case "second":
                return self.start + steps
            case "business":
                return np.busday_offset(self.start.astype("datetime64[D]"), steps).astype(
                    "datetime64[s]"
                )
            case "month":
                month = self.start.astype("datetime64[M]")
                rest = self.start - month.astype("datetime64[s]")
                last = day_of(self.start + np.timedelta64(DAY, "s")) == 1  # end of month
                moved = (month + steps + last).astype("datetime64[s]")
                return moved - np.timedelta64(DAY, "s") if last else moved + rest
        return self.start + ticks * self.every

    def ticks(self, times: Times) -> NDArray[np.float64]:
        """Times as ticks; those off the grid have a fraction."""
        match self.unit:
            case "second":
                if "f" in self.form:
                    return (times - self.start) / np.timedelta64(1, "us") / (self.every * 1e6)
                return (times - self.start) / np.timedelta64(1, "s") / self.every
            case "business":
                first, later = (each.astype("datetime64[D]") for each in (self.start, times))
                return np.busday_count(first, later) / self.every
            case "month":
                months = [
                    each.astype("datetime64[M]").astype(np.int64) for each in (self.start, times)
                ]
                found = (months[1] - months[0]) / self.every
                return np.where(self.times(found) == times, found, np.nan)
        return (times - self.start) / self.every

    def written(self, ticks: np.ndarray) -> NDArray[Any]:
        """Ticks as text, or as numbers if times are numbers."""
        times = self.times(ticks)
        if self.unit == "number":
            return times
        return write_times(times, self.form)

    @property
    def season(self) -> int:
        """Ticks per natural cycle: a year for months, weeks or quarters, a week for days, a day
        for hours and minutes, a minute for seconds; 1 for plain numbers."""
        if self.unit == "number":
            return 1
        if self.unit == "business":
            return 5
        if self.unit == "month":
            return max(1, round(12 / self.every))
        cycle = next((long for long in (60, DAY, 7 * DAY) if 2 * self.every <= long), 365 * DAY)
        return max(1, round(cycle / self.every))

    def calendar(self, ticks: np.ndarray) -> NDArray[np.float32]:
        """Phase of each tick in the day, the week and the year, as sine and cosine, (T, K)."""
        if self.unit == "number":
            raise DataError(
                "data.calendar needs a column of dates, but the times are numbers; remove it"
            )
        seconds = self.times(ticks).astype(np.int64)
        cycles = [(7 * DAY, 3 * DAY), (365.2425 * DAY, 0)]  # 1 January 1970 was a Thursday
        if self.unit == "second" and self.every < DAY:
            cycles.insert(0, (DAY, 0))
        if self.unit == "month":
            cycles = cycles[-1:]
        angle = np.stack([2 * np.pi * (seconds + shift) / long for long, shift in cycles], 1)
        return np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)


def day_of(time: Times) -> int:
    """The day of the month."""
    return int((time.astype("datetime64[D]") - time.astype("datetime64[M]")).astype(int)) + 1


def is_dates(cells: np.ndarray) -> bool:
    """Whether a column of text holds times, most of them different."""
    if not all(isinstance(cell, str) for cell in cells):
        return False
    different = list(dict.fromkeys(cells))
    return 2 * len(different) > len(cells) and find_format(different) is not None


def read(cells: np.ndarray, name: str) -> tuple[Times, str]:
    """A column of times, and their format."""
    if cells.dtype.kind in "iuf":
        return cells.astype(np.float64), ""
    empty = np.array([cell is None for cell in cells])
    if empty.any():
        raise DataError(
            f"column {name!r}, row {int(np.argmax(empty)) + 1}: the time is missing "
            f"({int(empty.sum())} of {len(cells)} are); fill in the cells or leave the rows out, "
            "or set data.time=none if the rows are not a series",
            "time=none",
        )
    form = find_format(list(dict.fromkeys(cells)))
    if form is None:
        raise DataError(
            f"expected dates of one format in column {name!r}, found {cells[0]!r}; write them all "
            "as 2016-07-01 00:00:00, or name another column with data.time",
            "time=none",
        )
    return parse_times(cells, form), form


def fit(times: Times, form: str) -> TimeIndex:
    """The grid that contains most of these times, which are in order."""
    gaps = np.diff(times)
    gaps = gaps[gaps > gaps.dtype.type(0)]
    if not len(gaps):
        raise DataError(
            "expected two times that differ in a series, found one; give more steps, or set "
            "data.time=none if the rows are not a series",
            "time=none",
        )
    found, count = np.unique(gaps, return_counts=True)
    if times.dtype.kind == "f":
        return TimeIndex(origin=repr(float(times[0])), every=float(found[count.argmax()]))
    usual = found[count.argmax()] / np.timedelta64(1, "s")
    origin = str(times[0]).replace("T", " ")
    months = round(usual / (365.2425 / 12 * DAY))
    if usual >= 28 * DAY and abs(usual - months * 365.2425 / 12 * DAY) < 4 * DAY:
        return TimeIndex(origin=origin, every=float(months), unit="month", form=form)
    if usual == DAY and works(times):
        return TimeIndex(origin=origin, unit="business", form=form)
    return TimeIndex(origin=origin, every=float(usual), unit="second", form=form)


def works(times: Times) -> bool:
    """Whether the times span weekends but none falls on one."""
    days = times.astype("datetime64[D]")
    return bool(np.is_busday(days).all()) and bool(np.diff(days).astype(int).max() > 2)
