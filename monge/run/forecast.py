"""Forecasts of a series: sampled given its past, or by completing a window.

Beyond a model's horizon, blocks are sampled one after another, each given the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ..core.abilities import CanComplete, CanSample
from ..core.batch import Batch
from ..core.errors import DataError, UsageError
from ..core.metric import Metric
from ..core.model import device_of
from ..core.rng import make_generator
from ..data.codecs.time_index import TimeIndex
from ..data.codecs.window import Series, Window
from ..data.dataset import Dataset
from ..data.loading import open_series
from ..data.packed import Ragged
from ..evaluate.forecasts import forecast_scores, is_forecast
from ..evaluate.likelihood import row_subset

if TYPE_CHECKING:
    import pandas as pd

    from .run import Run


@dataclass(frozen=True)
class ForecastPaths:
    """Sampled trajectories after the end of a series."""

    series: Series
    paths: NDArray[np.float64]  # (n, horizon, C)

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
                name: middle[:, place],
                f"{name}_low": low[:, place],
                f"{name}_high": high[:, place],
            }
        return pd.DataFrame(columns)

    def sampled(self) -> pd.DataFrame:
        """Every trajectory, one row per step."""
        import pandas as pd

        n, steps, _ = self.paths.shape
        frame = pd.DataFrame(self.paths.reshape(n * steps, -1), columns=list(self.series.channels))
        frame.insert(0, self.series.column, np.tile(self.times, n))
        frame.insert(0, "path", np.repeat(np.arange(1, n + 1), steps))
        return frame


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
    sampling = [word for word in settings if not word.startswith("data.")]
    options = run.require(CanSample).SamplingConfig().override(*sampling)
    data_options = [word.removeprefix("data.") for word in settings if word.startswith("data.")]
    series, wanted = series_of(run, what, data_options), horizon or future.steps
    if len(series) < past.steps:
        raise DataError(
            f"{series.name} has {len(series)} steps and the model needs "
            f"{past.steps}; give more steps"
        )
    model, generator = run.model, make_generator(seed, device_of(run.model))
    if not is_forecast(model):
        run.require(CanComplete)
    known = torch.from_numpy(series.values[len(series) - past.steps :].astype(np.float32))
    paths = known.expand(n, *known.shape).to(device_of(model))  # (n, L + sampled, C)
    while (done := paths.shape[1] - past.steps) < wanted:
        place = len(series) + done
        block = following(run, series, paths[:, -past.steps :], place, options, generator)
        paths = torch.cat([paths, block.to(paths)], 1)
    return ForecastPaths(series, paths[:, past.steps : past.steps + wanted].double().cpu().numpy())


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
