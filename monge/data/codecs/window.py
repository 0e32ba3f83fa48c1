"""Series: one or several channels at equal steps of time, read as windows of past and future.

A window is `lookback` steps followed by `horizon` steps; there is one for each place where it
fits, and all of them are views of one array. The fields of a window: `series` (all of it), `past`,
`future`, `time` (of the first step of the future), and on request `known` (columns whose future is
known beforehand) and `calendar` (day, week and year), both over the steps of the future.

Splits are by time: training comes first, then validation, then test. A window belongs to the
split that holds the whole of its future; what it looks back on may lie before, since that is known
when the forecast is made. A future that straddles two splits is in neither, so nothing leaks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.config import Range
from ...core.errors import DataError, UsageError
from ...core.space import Space
from ..dataset import Schema
from ..options import Options
from ..ragged import Ragged
from ..readers.raw import RawData, RowLocations
from ..statistics import statistics
from .base import Codec, Locator
from .time_index import TimeIndex

SEASONS, MOST = 14, 672
"""The default lookback: so many seasons, and so many steps at most."""
HORIZON = 24
"""The default horizon where times have no season."""
CUSTOMARY = {
    f"ETT{kind}{number}": tuple(months * 30 * 24 * rate for months in (12, 4, 4))
    for kind, rate in (("h", 1), ("m", 4))
    for number in (1, 2)
}
"""Steps of the splits that publications agree on, by the name of the data (Zhou et al. 2021)."""


@dataclass(frozen=True)
class Series:
    """Steps in their order; recordings of their own stand end to end."""

    name: str
    values: NDArray[np.float32]  # (T, C)
    channels: tuple[str, ...]
    clock: TimeIndex
    known: NDArray[np.float32]  # (T + what is known beyond the end, K)
    covariates: tuple[str, ...] = ()
    column: str = "time"  # what the column of times is called
    lengths: tuple[int, ...] = ()  # of the recordings
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class WindowSpec:
    """How a series is cut into windows."""

    lookback: int
    horizon: int
    season: int

    @property
    def steps(self) -> int:
        return self.lookback + self.horizon


class Window(Codec):
    """Some steps of every window."""

    tag = "codec/window"
    channels: tuple[str, ...]
    """What the numbers of a step are called."""
    before: Annotated[int, Range(0)] = 0
    """Steps of a window before these."""
    steps: Annotated[int, Range(1)]
    """How many there are."""
    after: Annotated[int, Range(0)] = 0
    """Steps of a window after these."""
    season: Annotated[int, Range(1)] = 1
    """Steps of the cycle that a naive forecast repeats."""
    vector: bool
    """Whether a step is a vector, not a number."""

    @property
    def step(self) -> tuple[int, ...]:
        return (len(self.channels),) if self.vector else ()

    @property
    def entries(self) -> tuple[str, ...]:
        """What the numbers of a window are called."""
        return tuple(
            f"{name}+{step}" for step in range(1, self.steps + 1) for name in self.channels
        )

    def encode(self, values: Any, at: Locator) -> Ragged:
        """values: the steps (T, C) and where each window begins."""
        flat, start = (torch.from_numpy(part) for part in values)
        start = start + self.before
        return Ragged(flat.reshape(-1, *self.step), start, torch.full_like(start, self.steps))

    def decode(self, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float64)

    def measure(self, x: Ragged, name: str) -> Space:
        """Every step that a training window touches counts once, so that past and future are
        standardised alike."""
        edge = torch.zeros(len(x.flat) + 1, dtype=torch.long)
        edge.index_add_(0, x.start - self.before, torch.ones_like(x.start))
        edge.index_add_(0, x.start + self.steps + self.after, -torch.ones_like(x.start))
        found = statistics(x.flat[edge[:-1].cumsum(0) > 0], len(self.channels))
        found["rows"] = len(x)
        return Space(kind="real", shape=(self.steps, *self.step), name=name, **found)


def windows(raw: RawData, options: Options, schema: Schema | None = None) -> RawData:
    """What was read as windows, where it is a series: the words say so, a column of times does, or
    the terms of an earlier run."""
    from ..readers.series import is_series, noted, read

    if not is_series(raw, options, schema):
        return noted(raw, options, schema)
    series = read(raw, options, schema)
    cut = settled(series, options) if schema is None else cut_of(schema)
    start, split = divided(series, cut, options) if schema is None else (every(series, cut), None)
    codecs, values = fields(series, cut, options, schema)
    parts: dict[str, Any] = {name: (flat, start) for name, flat in values.items()}
    parts["time"] = start + cut.lookback + since(series, schema)
    told = (
        ()
        if schema is not None
        else (
            f"windows of {cut.lookback} steps and {cut.horizon} to come, a season of {cut.season}",
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
        notes=raw.notes + series.notes + told,
        keys={"time": series.column},
    )


def since(series: Series, schema: Schema | None) -> float:
    """The tick of the first step on the clock of a run, whose steps must be as long."""
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
    """The codec of each field, and the steps it is cut from."""
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


def settled(series: Series, options: Options) -> WindowSpec:
    """What the words say, or what times of this kind and a series of this length ask for."""
    steps = min(series.lengths)
    training = round(steps * (1 - options.valid - options.test))
    season = options.season or series.clock.season
    horizon = options.horizon or max(1, min(season if season > 1 else HORIZON, steps // 10))
    wish = min(SEASONS * season if season > 1 else 4 * horizon, MOST, training // 3)
    return WindowSpec(options.lookback or max(1, wish // season * season or wish), horizon, season)


def every(series: Series, cut: WindowSpec) -> NDArray[np.int64]:
    """Where windows begin."""
    starts, begun = [], 0
    for steps in series.lengths:
        starts.append(begun + np.arange(steps - cut.steps + 1))
        begun += steps
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
    """Where windows begin, and which split each belongs to."""
    starts, splits, begun = [], [], 0
    for steps in series.lengths:
        start = np.arange(max(steps - cut.steps + 1, 0))
        first, last = start + cut.lookback, start + cut.steps  # of the future
        split, low = np.full(len(start), -1), 0
        for code, high in enumerate(borders(series.name, steps, cut, options)):
            split[(first >= low) & (last <= high)] = code
            low = high
        starts.append(begun + start[split >= 0])
        splits.append(split[split >= 0])
        begun += steps
    found = np.concatenate(splits)
    if len(np.unique(found)) < 3:
        raise DataError(
            f"{series.name} has {max(series.lengths)} steps, too few for windows of lookback "
            f"{cut.lookback} and horizon {cut.horizon} in training, validation and test; shorten "
            "data.lookback or data.horizon, or give more steps"
        )
    return np.concatenate(starts), found


def borders(name: str, steps: int, cut: WindowSpec, options: Options) -> NDArray[np.int64]:
    """The step at which each split ends: as the words say, as is the custom, or by shares, of
    which none is shorter than the horizon."""
    customary = CUSTOMARY.get(name, (steps + 1,))
    sizes = options.borders or (customary if sum(customary) <= steps else ())
    if options.borders and (len(sizes) != 3 or min(sizes) < 1 or sum(sizes) > steps):
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
