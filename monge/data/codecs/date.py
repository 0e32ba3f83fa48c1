"""Dates among the columns of a table: whole days, months, minutes or seconds since the earliest.

A column holds dates if all its non-empty cells have one format, which the first cell determines;
samples are written in the same format. Rows for a run may also write them with the year first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from ...core.errors import DataError
from ...core.space import Space
from ..packed import statistics
from .base import Codec, Locator
from .date_format import find_format, parse_times
from .scalar import EXACT, blank, distinct, refuse
from .time_index import DAY, TimeIndex

LIMITS = np.array(["1000-01-01", "9999-12-01"], "datetime64[s]")
"""Samples outside these years are clipped to them."""


class Date(Codec):
    """A date or time, as ticks since the earliest one."""

    tag = "codec/date"
    clock: TimeIndex
    """The length of a tick and the format of times."""
    kind: Literal["counts", "real"] = "counts"
    """Whether ticks are whole; seconds over years exceed float32 and become days."""

    def encode(self, values: np.ndarray, at: Locator) -> np.ndarray:
        found, place = distinct(values)
        seen = np.array([not blank(value) for value in found], bool)
        known_cells = found.astype(object)
        known_cells[~seen] = None
        times = parse_times(known_cells, self.clock.form)
        if np.isnat(times[seen]).any():  # other data may write the same dates another way
            form = find_format(list(found[seen])) or ""
            if form.startswith("%Y"):  # year, month and day, which nothing else can be meant by
                times = parse_times(known_cells, form).astype(times.dtype)
        strange = np.append(seen & np.isnat(times), False)[place]  # index -1 is the last
        if strange.any():
            row = int(np.argmax(strange))
            raise DataError(
                f"{at(row)}: {values[row]!r} is not a date of the format "
                f"{self.clock.form}; fix the cell or leave it empty"
            )
        known = np.full(len(found) + 1, np.nan)
        known[:-1][seen] = self.clock.ticks(times[seen])
        ticks = known[place]
        if self.kind == "counts":
            refuse(
                ticks != np.rint(ticks),
                ticks,
                at,
                f"steps of {self.clock.step} since {self.clock.origin} is not a whole number",
            )
        return ticks.astype(np.float32)

    def decode(self, x: np.ndarray) -> np.ndarray:
        ticks = np.clip(x.astype(np.float64), *self.clock.ticks(LIMITS))
        ticks = np.rint(ticks) if self.kind == "counts" else ticks
        seen = ~np.isnan(ticks)
        written = np.full(len(ticks), None, object)
        written[seen] = self.clock.written(ticks[seen])
        return written

    def measure(self, x: np.ndarray, name: str) -> Space:
        return Space(kind=self.kind, name=name, **statistics(x, 1))


def fit(values: np.ndarray, form: str, dtype: str) -> Date:
    """The codec for the distinct cells of a column, which are dates of a format."""
    times = parse_times(values, form)
    origin = str(times.min()).replace("T", " ")
    if "d" not in form:
        every = 3.0 if "%q" in form else 1.0
        clock = TimeIndex(origin=origin, every=every, unit="month", form=form)
        return Date(clock=clock, dtype=dtype)
    second = 10**6 if "f" in form else 1  # of the unit that times are counted in
    since = (times - times.min()).astype(np.int64)
    tick = next(each for each in (DAY, 60, 1, 0.001, 1e-6) if is_grid(since, each * second))
    whole = since.max() / (tick * second) <= EXACT
    clock = TimeIndex(origin=origin, unit="second", form=form, every=float(tick if whole else DAY))
    return Date(clock=clock, kind="counts" if whole else "real", dtype=dtype)


def align(codecs: Mapping[str, Codec], values: Mapping[str, np.ndarray]) -> dict[str, Codec]:
    """Codecs whose dates are counted from one origin in one unit where the columns allow it, so
    that differences are exact: days apart from times of day."""
    dates = {
        name: codec
        for name, codec in codecs.items()
        if isinstance(codec, Date) and codec.clock.unit == "second"
    }
    aligned = dict(codecs)
    for days in (True, False):
        group = {name: codec for name, codec in dates.items() if is_days(codec) == days}
        if len(group) < 2:
            continue
        origin = min(codec.clock.origin for codec in group.values())
        whole = all(codec.kind == "counts" for codec in group.values())
        every = min(codec.clock.every for codec in group.values()) if whole else float(DAY)
        clocks = {
            name: replace(codec.clock, origin=origin, every=every) for name, codec in group.items()
        }
        if whole and any(last_tick(clocks[name], values[name]) > EXACT for name in group):
            continue
        kind: Literal["counts", "real"] = "counts" if whole else "real"
        aligned |= {
            name: replace(codec, clock=clocks[name], kind=kind) for name, codec in group.items()
        }
    return aligned


def is_days(codec: Date) -> bool:
    return codec.kind == "counts" and codec.clock.every == DAY


def last_tick(clock: TimeIndex, cells: np.ndarray) -> float:
    known = [cell for cell in distinct(cells)[0] if not blank(cell)]
    times = parse_times(np.array(known, object), clock.form)
    return float(clock.ticks(times.max()))


def is_grid(since: np.ndarray, step: float) -> bool:
    return step >= 1 and not (since % round(step)).any()
