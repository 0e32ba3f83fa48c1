"""Forecasts of ETTh1, sunspots and airline passengers beside published and naive figures.

    MONGE_DATA=path python -m benchmarks.forecast                 # minutes on one thread
    MONGE_DATA=path python -m benchmarks.forecast ETTh1-96 --settings net=dlinear --budget 60s

ett/ETTh1.csv.gz and series/*.csv are not part of the project. ETTh1: the first 8640 / 2880 / 2880
hours, standardised by training hours, lookback 336, every window of the test hours, all channels.
Published: NLinear and DLinear of Zeng et al. (2023), Informer of Zhou et al. (2021), mean squared
error. Series of months: the last tenth is the test. All errors in standard deviations of the
training steps; coverage is that of the central 80 % interval.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

ETT = "ett/ETTh1.csv"


@dataclass(frozen=True)
class Task:
    """A series, its windows, and published errors."""

    what: str
    settings: tuple[str, ...] = ()
    published: dict[str, float] = field(default_factory=dict)


TASKS = {
    f"ETTh1-{horizon}": Task(
        ETT,
        (f"data.horizon={horizon}", "data.lookback=336", "data.borders=8640,2880,2880"),
        dict(zip(("NLinear", "DLinear", "Informer"), mse, strict=True)),
    )
    for horizon, mse in (
        (96, (0.374, 0.375, 0.865)),
        (192, (0.408, 0.405, 1.008)),
        (336, (0.429, 0.439, 1.107)),
        (720, (0.440, 0.472, 1.181)),
    )
}
TASKS |= {
    "sunspots": Task("series/monthly-sunspots.csv", ("data.horizon=12",)),
    "airline": Task("series/airline-passengers.csv", ("data.horizon=12",)),
}
SHOWN = ("ETTh1-96", "sunspots", "airline")
BASELINES = ("naive", "seasonal_naive", "ar1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", default=list(SHOWN), metavar="|".join(TASKS))
    parser.add_argument("--models", nargs="*", default=["sequence.direct_forecast"])
    parser.add_argument("--settings", nargs="*", default=[])
    parser.add_argument("--budget", default="60s")
    chosen = parser.parse_args()
    print(
        f"{'':28}{'mse':>8}{'mae':>8}{'mase':>8}{'smape':>8}{'crps':>8}{'cover':>8}{'seconds':>9}"
    )
    for name in chosen.tasks:
        for model in chosen.models:
            measure(name, model, chosen.settings, chosen.budget)


def measure(name: str, model: str, settings: Sequence[str], budget: str) -> None:
    """Print one fit on one thread beside its references."""
    import monge
    from monge.run.saved import ComputeConfig

    task, started = TASKS[name], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(
            model,
            task.what,
            *task.settings,
            *settings,
            budget=budget,
            out=f"{folder}/run",
            compute=ComputeConfig("cpu", threads=1),
        )
        seconds = time.perf_counter() - started
        found = {key: score.value for key, score in run.evaluate().items()}
    print(name)
    print_row(
        model,
        [found.get(key) for key in ("mse", "mae", "mase", "smape", "crps", "coverage_0.8")],
        seconds,
    )
    for rival in BASELINES:
        print_row(
            rival, [found.get(f"{rival}.{key}") for key in ("mse", "mae", "mase", "smape", "crps")]
        )
    for rival, mse in task.published.items():
        print_row(f"{rival} (published)", [mse])


def print_row(name: str, values: Sequence[float | None], seconds: float | None = None) -> None:
    cells = [f"{'' if value is None else format(value, '.3f'):>8}" for value in values]
    cells += [" " * 8] * (6 - len(cells))
    print(
        f"  {name:26}{''.join(cells)}{'' if seconds is None else format(seconds, '9.1f')}",
        flush=True,
    )


if __name__ == "__main__":
    main()
