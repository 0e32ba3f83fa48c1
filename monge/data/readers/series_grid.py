"""Rows with times as a series at equal steps, or an error that explains why they are not one.

Irregular rows are an error unless `data.gaps=fill` is set: then rows are sorted, the last of
equal times is used, and missing steps or cells are interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ..codecs.scalar import listed
from ..codecs.time_index import TimeIndex, Times, fit
from ..options import Options

REMEDY = "fix the rows, or set data.gaps=fill, or data.time=none if they are not a series"


@dataclass(frozen=True)
class Regular:
    """Rows at equal steps."""

    clock: TimeIndex
    values: NDArray[np.float64]  # (T, K)
    notes: tuple[str, ...]
    absent: int = 0  # steps without a row, whose values are NaN


def regular(
    times: Times, form: str, values: NDArray[np.float64], name: str, options: Options
) -> Regular:
    """Rows (T, K) at `times`, a column called `name`; empty cells stay NaN."""
    fills = options.gaps == "fill"
    times, values, notes = ordered(times, values, name, fills)
    clock = fit(times, form)
    ticks = clock.ticks(times)
    off = np.flatnonzero(np.isnan(ticks) | (np.abs(ticks - np.rint(ticks)) > 1e-6))
    if len(off):
        raise DataError(
            f"{name}: {spell(times[off[0]])} is not on the grid of {clock.step} that "
            f"most times follow, and {len(off)} of {len(times)} are not; resample the series to "
            "equal steps, or set data.time=none if the rows are not a series",
            "time=none",
        )
    place = np.rint(ticks).astype(np.int64)
    jumps = np.diff(place) - 1
    wide = np.flatnonzero(jumps > 0)
    if len(wide) and not fills:
        here = wide[0]
        raise DataError(
            f"{name} has {counted(len(wide), 'gap')}: {counted(int(jumps[here]), 'step')} "
            f"missing after {spell(times[here])}"
            + (f", {int(jumps[wide].sum())} in all" if len(wide) > 1 else "")
            + (", perhaps holidays of a series of working days" * (clock.unit == "business"))
            + f"; {REMEDY}",
            "gaps=fill",
        )
    full = np.full((int(place[-1]) + 1, values.shape[1]), np.nan)
    full[place] = values
    absent = len(full) - len(place)
    if absent:
        were = "was" if absent == 1 else "were"
        notes += (f"{absent} missing step{'s' * (absent != 1)} of {name} {were} interpolated",)
    return Regular(clock, full, notes, absent)


def ordered(
    times: Times, values: NDArray[np.float64], name: str, fills: bool
) -> tuple[Times, NDArray[np.float64], tuple[str, ...]]:
    """Rows in the order of their times."""
    notes: tuple[str, ...] = ()
    gaps = np.diff(times)
    zero = gaps.dtype.type(0)
    if (gaps < zero).any() and not fills:
        row = int(np.argmax(gaps < zero)) + 1
        raise DataError(
            f"{name}: {spell(times[row])} comes after {spell(times[row - 1])}, which is later "
            f"({counted(int((gaps < zero).sum()), 'row')} out of order); {REMEDY}",
            "gaps=fill",
        )
    if (gaps < zero).any():
        order = np.argsort(times, kind="stable")
        times, values, notes = times[order], values[order], (f"rows were sorted by {name}",)
        gaps = np.diff(times)
    same = np.flatnonzero(gaps == zero)
    if len(same) and not fills:
        raise DataError(
            f"{name}: {spell(times[same[0]])} occurs twice"
            + (f", and {len(same)} times do" if len(same) > 1 else "")
            + f"; {REMEDY}",
            "gaps=fill",
        )
    if len(same):
        last = np.append(gaps != zero, True)
        notes += (f"{len(same)} rows whose time of {name} occurs again were left out",)
        times, values = times[last], values[last]
    return times, values, notes


def whole(
    values: NDArray[np.float64],
    names: tuple[str, ...],
    clock: TimeIndex,
    fills: bool,
    absent: int,
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Columns (T, K) without empty cells; a note counts those besides the `absent` steps."""
    holes = np.isnan(values)
    if not holes.any():
        return values, ()
    row, column = (int(place) for place in np.argwhere(holes)[0])
    empty = [name for place, name in enumerate(names) if holes[:, place].any()]
    when = clock.written(np.array([float(row)]))[0]
    if not fills:
        raise DataError(
            f"column {names[column]!r} has no value at {when}, and "
            f"{counted(int(holes.sum()), 'cell')} empty in {listed(empty)}; {REMEDY}",
            "gaps=fill",
        )
    steps, filled = np.arange(len(values)), values.copy()
    for place in np.flatnonzero(holes.any(0)):
        seen = ~holes[:, place]
        if not seen.any():
            raise DataError(
                f"column {names[place]!r} has no values; drop it with data.drop={names[place]}",
                f"drop={names[place]}",
            )
        filled[:, place] = np.interp(steps, steps[seen], values[seen, place])
    cells = int(holes.sum()) - absent * len(names)
    return filled, (f"{counted(cells, 'empty cell')} interpolated",) if cells else ()


def counted(count: int, noun: str) -> str:
    """One gap, two gaps; steps, cells and rows with their verb."""
    verb = "" if noun == "gap" else " is" if count == 1 else " are"
    return f"{count} {noun}{'s' * (count != 1)}{verb}"


def spell(time: Any) -> str:
    """A time; without the time of day where that is midnight."""
    if isinstance(time, float):
        return f"{time:g}"
    return str(time).replace("T", " ").removesuffix(".000000").removesuffix(" 00:00:00")
