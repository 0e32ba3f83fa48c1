"""Forecasts of a series: sampled given its past, or by completing a window.

Beyond a model's horizon, blocks are sampled one after another, each given the one before. Values
beyond the natural bounds of a channel (0, or a share of 1 or of 100) are set to the bound: models
of series have no bounds of their own. With range=observed, blocks that leave the range of the
series are sampled again; of one that leaves it every time, as after a trend, the values beyond it
are set to its ends, and a note says how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ..core.abilities import CanComplete, CanSample
from ..core.batch import Batch
from ..core.errors import DataError, UsageError
from ..core.memory import require_memory
from ..core.metric import Metric
from ..core.model import device_of
from ..core.rng import make_generator
from ..data.codecs.scalar import EXACT_FLOAT64, decimals_of
from ..data.codecs.time_index import TimeIndex
from ..data.codecs.window import Series, Window
from ..data.dataset import Dataset
from ..data.loading import open_series
from ..data.packed import Ragged
from ..data.schema_fit import natural_bounds
from ..evaluate.forecasts import forecast_scores, is_forecast
from ..evaluate.likelihood import row_subset
from .where import MAX_REPEATS, OBSERVED, observed_range

if TYPE_CHECKING:
    import pandas as pd

    from .run import Run


PAST_HORIZONS = 3
"""Past steps that are plotted, in horizons."""
COPIES = 3
"""Trajectories held at once: those so far, the new block, and their values in the data's units."""


@dataclass(frozen=True)
class ForecastPaths:
    """Sampled trajectories after the end of a series."""

    series: Series
    paths: NDArray[np.float64]  # (n, horizon, C)
    notes: tuple[str, ...] = ()

    @property
    def times(self) -> NDArray[Any]:
        return self.series.clock.written(len(self.series) + np.arange(self.paths.shape[1]) * 1.0)

    def table(self, interval: float) -> pd.DataFrame:
        """Median and central interval of each channel, one row per step."""
        import pandas as pd

        columns: dict[str, Any] = {self.series.column: self.times}
        levels = (0.5, (1 - interval) / 2, (1 + interval) / 2)
        middle, low, high = np.quantile(self.paths, levels, axis=0)  # (H, C) each
        for place, name in enumerate(self.series.channels):
            columns |= {
                name: self.written(middle[:, place], place),
                f"{name}_low": self.written(low[:, place], place),
                f"{name}_high": self.written(high[:, place], place),
            }
        return pd.DataFrame(columns)

    def sampled(self) -> pd.DataFrame:
        """Every trajectory, one row per step."""
        import pandas as pd

        n, steps, _ = self.paths.shape
        columns: dict[str, Any] = {
            "path": np.repeat(np.arange(1, n + 1), steps),
            self.series.column: np.tile(self.times, n),
        }
        for place, name in enumerate(self.series.channels):
            columns[name] = self.written(self.paths[:, :, place].reshape(-1), place)
        return pd.DataFrame(columns)

    def plot(self, path: Path, interval: float) -> None:
        """Plot the end of the series and the forecast."""
        from ..plot.forecast import write_forecast

        series, times = self.series, self.times
        shown = min(len(series), max(PAST_HORIZONS * len(times), 12))
        first = series.clock.written(np.array([float(len(series) - shown)]))[0]
        write_forecast(
            path,
            series.values[-shown:],
            self.paths,
            series.channels,
            [first, times[0], times[-1]],
            interval,
        )

    def in_type(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of these with times of the type that those of the data have."""
        import pandas as pd

        clock, column = self.series.clock, self.series.column
        if not clock.dtype.startswith("datetime64["):
            return table
        kind: Any = pd.api.types.pandas_dtype(clock.dtype)
        moments = pd.to_datetime(table[column], format=clock.form)
        if isinstance(kind, pd.DatetimeTZDtype):
            zone = kind.tz if clock.is_local else "UTC"
            # days on which the clock skips or repeats that time begin an hour later or earlier
            moments = moments.dt.tz_localize(zone, ambiguous=True, nonexistent="shift_forward")
        return table.assign(**{column: moments.astype(kind)})

    def written(self, values: NDArray[np.float64], place: int) -> NDArray[Any]:
        """Numbers with the decimals that those of a channel have, whole where they are."""
        decimals = decimals_of(self.series.values[:, place])
        if decimals is None:
            return values
        found = np.round(values, decimals)
        whole = not decimals and np.abs(found).max(initial=0) < EXACT_FLOAT64
        return found.astype(np.int64) if whole else found


def window_of(run: Run, name: str) -> Window:
    """The window codec of a field of the run."""
    schema = run.view.selection.schema
    codec = next((field.codec for field in schema.fields if field.name == name), None)
    if not isinstance(codec, Window):
        raise UsageError(
            f"{run.folder} was not fitted on a series; `monge forecast` needs a run "
            "on a table with a column of times, such as `monge fit forecast x.csv`"
        )
    return codec


def series_of(run: Run, what: Any, settings: Sequence[str]) -> Series:
    """The series to forecast: the run's own, or other data read with its fields."""
    codec = window_of(run, "past")
    if what is not None:
        return open_series(what, settings, run.view.to_dict())
    source = run.opened.dataset if run.opened is not None else run.source()
    values, clock = steps(source, "series"), source.fields["time"]
    assert isinstance(clock.codec, TimeIndex), "a series has a clock"
    known = steps(source, "known") if "known" in source.fields else values[:, :0]
    covariates = window_of(run, "known").channels if "known" in source.fields else ()
    return Series(
        source.name,
        values,
        codec.channels,
        clock.codec,
        known,
        covariates,
        str(clock.key),
        (len(values),),
    )


def steps(source: Dataset, name: str) -> NDArray[np.float32]:
    """All steps that the windows of a field are cut from, (T, C)."""
    packed = source.tensors[name]
    assert isinstance(packed, Ragged), "windows are views of one array"
    return packed.flat.reshape(len(packed.flat), -1).numpy()


def forecast(
    run: Run, horizon: int | None, what: Any, settings: Sequence[str], n: int, seed: int
) -> ForecastPaths:
    """n trajectories of `horizon` steps after the end of the series."""
    past, future = window_of(run, "past"), window_of(run, "future")
    chosen, observed = observed_range([w for w in settings if not w.startswith("data.")])
    sampling = [word.removeprefix("sample.") for word in chosen]
    options = run.require(CanSample).sampling_defaults().override(*sampling)
    data_options = [word.removeprefix("data.") for word in settings if word.startswith("data.")]
    series, wanted = series_of(run, what, data_options), horizon or future.steps
    if len(series) < past.steps:
        raise DataError(
            f"{series.name} has {len(series)} steps and the model needs "
            f"{past.steps}; give more steps"
        )
    require_memory(
        f"a forecast of {n} trajectories of {wanted} steps",
        COPIES * 8.0 * n * wanted * series.values.shape[1],
        "give a smaller --horizon or fewer trajectories",
    )
    model, generator = run.model, make_generator(seed, device_of(run.model))
    if not is_forecast(model):
        run.require(CanComplete)
    known = torch.from_numpy(series.values[len(series) - past.steps :].astype(np.float32))
    limits = Limits.of(run, series, known.to(device_of(model)), observed)
    paths = known.expand(n, *known.shape).to(device_of(model))  # (n, L + sampled, C)
    while (done := paths.shape[1] - past.steps) < wanted:
        place = len(series) + done

        def sample(before: Tensor, place: int = place) -> Tensor:
            block = following(run, series, before, place, options, generator)
            return block[:, : wanted + len(series) - place].to(before)

        paths = torch.cat([paths, limits.keep(paths[:, -past.steps :], sample)], 1)
    found = paths[:, past.steps :].double().cpu().numpy()
    return ForecastPaths(series, found, limits.notes)


@dataclass
class Limits:
    """The natural bounds of each channel, with range=observed also the range it was seen in, and
    how much lay beyond them."""

    lower: Tensor  # (C,), infinite where there is none
    upper: Tensor
    low: Tensor | None
    high: Tensor | None
    names: Sequence[str]
    tried: int = 0
    kept: int = 0
    values: int = 0
    moved: int = 0
    size: int = 0  # values of the forecast
    held: int = 0  # of them, set to the ends of the observed range

    @classmethod
    def of(cls, run: Run, series: Series, like: Tensor, observed: bool) -> Limits:
        space = run.view.selection.schema.field("future").space
        low, high, scale = (
            space.statistic(name).reshape(-1).expand(len(series.channels))
            for name in ("low", "high", "scale")
        )
        own = series.values.astype(np.float32)
        low = torch.fmin(low, torch.from_numpy(np.fmin.reduce(own)))
        high = torch.fmax(high, torch.from_numpy(np.fmax.reduce(own)))
        plain = "space=plain" in run.metadata["data"]["overrides"]
        ends = [
            (None, None) if plain else natural_bounds(torch.stack([a, b]).numpy(), float(s))
            for a, b, s in zip(low, high, scale, strict=True)
        ]
        lower = torch.tensor([-math.inf if a is None else a for a, _ in ends])
        upper = torch.tensor([math.inf if b is None else b for _, b in ends])
        return cls(
            lower.to(like),
            upper.to(like),
            low.to(like) if observed else None,
            high.to(like) if observed else None,
            series.channels,
        )

    def keep(self, past: Tensor, sample: Callable[[Tensor], Tensor]) -> Tensor:
        """A block (n, H, C) after each past, within the limits."""
        paths = self.bounded(sample(past))
        self.tried, self.kept = self.tried + len(paths), self.kept + len(paths)
        self.size += paths.numel()
        if self.low is None or self.high is None:
            return paths
        for _ in range(MAX_REPEATS):
            outside = ((paths < self.low) | (paths > self.high)).flatten(1).any(1)
            wrong = outside.nonzero()[:, 0]
            if not len(wrong):
                return paths
            paths[wrong] = self.bounded(sample(past[wrong]))
            self.tried += len(wrong)
        inside = paths.clamp(self.low, self.high)
        self.held += int((inside != paths).sum())
        self.kept -= int((inside != paths).flatten(1).any(1).sum())
        return inside

    def bounded(self, paths: Tensor) -> Tensor:
        inside = paths.clamp(self.lower, self.upper)
        self.values, self.moved = (
            self.values + paths.numel(),
            self.moved + int((inside != paths).sum()),
        )
        return inside

    @property
    def notes(self) -> tuple[str, ...]:
        found = []
        if self.moved:
            ends = [
                f"{name} {sign} {float(end):g}"
                for name, a, b in zip(self.names, self.lower, self.upper, strict=True)
                for sign, end in ((">=", a), ("<=", b))
                if end.isfinite()
            ]
            found.append(
                f"{100 * self.moved / self.values:.3g} % of the sampled values lay beyond the "
                f"natural bounds ({', '.join(ends)}) and are set to them; data.space=plain "
                "switches bounds off"
            )
        if self.low is not None:
            found.append(
                f"{self.kept} of {self.tried} sampled trajectories lie in the observed range "
                f"({100 * self.kept / self.tried:.3g} %); {OBSERVED}: these samples are not of "
                "the distribution that is scored"
            )
        if self.held:
            found.append(
                f"{100 * self.held / self.size:.3g} % of the forecast lay beyond the observed "
                f"range in each of {MAX_REPEATS} samples and is set to its ends: the series "
                "continues beyond them, so leave out range=observed"
            )
        return tuple(found)


def following(
    run: Run, series: Series, past: Tensor, place: int, options: Any, generator: Generator
) -> Tensor:
    """Sample the block after pasts (n, L, C), (n, H, C); its first step has index `place`."""
    model, size = run.model, window_of(run, "future").steps
    shaped = past if window_of(run, "past").vector else past[..., 0]
    if is_forecast(model):
        rest = {
            name: Batch(beside(series, name, place, size).to(past).expand(len(past), -1, -1))
            for name in model.space.given
            if name != "past"
        }
        sampled = run.require(CanSample).sample(
            len(past), {"past": Batch(shaped), **rest}, options, generator
        )
        return sampled.reshape(len(past), size, -1)
    x = torch.cat([shaped, shaped[:, -1:].expand(-1, size, *shaped.shape[2:])], 1)
    seen = torch.ones_like(x, dtype=torch.bool)
    seen[:, -size:] = False
    sampled = run.require(CanComplete).complete(Batch(x, observed=seen), options, generator)
    return sampled[:, -size:].reshape(len(past), size, -1)


def beside(series: Series, name: str, place: int, steps: int) -> Tensor:
    """Known covariates of the steps from `place` on, (steps, K)."""
    if name == "calendar":
        ticks = place + np.arange(steps, dtype=np.float64)
        return torch.from_numpy(series.clock.calendar(ticks))
    if name != "known":
        raise UsageError(
            f"the run is conditioned on {name!r}, whose future values are unknown; fit on past, "
            "known and calendar alone"
        )
    there = series.known[place : place + steps]
    if len(there) < steps:
        last = series.clock.written(np.array([place + steps - 1.0]))[0]
        raise DataError(
            f"{', '.join(series.covariates)} must be known up to {last}, and "
            f"{series.name} ends {steps - len(there)} steps before; add rows that "
            "hold them and leave the other columns empty"
        )
    return torch.from_numpy(there)


def forecast_metrics(run: Run, what: Any = None, split: str | None = None) -> dict[str, Metric]:
    """Forecast metrics of a run on windows of a series."""
    schema, event = run.view.selection.schema, run.view.selection.event
    codecs = {field.name: field.codec for field in schema.fields}
    future = codecs.get("future")
    whole = event == ("series",) and isinstance(run.model, CanComplete)
    if not isinstance(future, Window) or not (whole or is_forecast(run.model)):
        return {}
    return forecast_scores(
        run.model,
        run.split(what, split),
        row_subset(run.split(None, "train")),
        future.season,
        future.steps,
    )
