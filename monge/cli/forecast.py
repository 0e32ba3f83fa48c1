"""Tell what comes after the end of a series: median and interval of every step

Trajectories are drawn given the past; a model of whole windows completes them. Without -o the
table is printed as csv.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError
from ._output import Console, common
from ._writers import OUTPUT, write_table

if TYPE_CHECKING:
    from ..run.forecast import Forecast


SHOWN = 3
"""The past that a picture shows, in horizons."""


@click.command("forecast")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--horizon",
    type=click.IntRange(1),
    help="Steps to forecast: by default those the "
    "run was fitted for; further ones are drawn given the ones before.",
)
@click.option("-o", "--out", type=OUTPUT, help="File: .csv or .parquet.")
@click.option("--plot", type=OUTPUT, help="Picture of it: .png.")
@click.option("--paths", type=OUTPUT, help="File of all trajectories: .csv.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    help="Trajectories to draw.",
)
@click.option(
    "--interval",
    type=float,
    default=0.8,
    show_default=True,
    help="Probability of the central interval.",
)
@click.option("--seed", default=0, show_default=True, help="Same seed, same trajectories.")
@common
def command(
    console: Console,
    run: str,
    data: str | None,
    settings: tuple[str, ...],
    horizon: int | None,
    out: Path | None,
    plot: Path | None,
    paths: Path | None,
    count: int,
    interval: float,
    seed: int,
) -> None:
    """Forecast the series of DATA, or the run's own, from its last step on under RUN. WORDS say
    how DATA are read (data.gaps=fill) and how draws are made."""
    from ..run import run as runs
    from ..run.forecast import forecast

    if data is not None and "=" in data and not Path(data).exists():
        settings, data = (data, *settings), None
    if not 0 < interval < 1:
        raise UsageError(f"--interval {interval:g} must lie between 0 and 1, such as 0.8")
    for path, kinds in ((out, (".csv", ".parquet")), (plot, (".png",)), (paths, (".csv",))):
        if path and path.suffix not in kinds:
            raise UsageError(
                f"cannot write {path.suffix or 'a file without a suffix'} here; use "
                f"{' or '.join(kinds)}"
            )
    found = runs.load(run)
    told = forecast(found, horizon, data, settings, count, seed)
    table, files = told.table(interval), [path for path in (out, plot, paths) if path]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    if out:
        write_table(table, out)
    if plot:
        draw(result, plot, interval)
    if paths:
        write_table(told.drawn(), paths)
    about = {
        "run": str(found.folder),
        "horizon": len(table),
        "interval": interval,
        "channels": list(told.series.channels),
        "files": list(map(str, files)),
        "forecast": table.to_dict("records"),
    }
    console.result(about, "\n".join(map(str, files)) or table.to_csv(index=False).rstrip())


def draw(told: Forecast, path: Path, interval: float) -> None:
    """The end of the series and what comes after it."""
    import numpy as np

    from ..plot.forecast import write_forecast

    series, times = told.series, told.times
    shown = min(len(series), max(SHOWN * len(times), 12))
    first = series.clock.written(np.array([float(len(series) - shown)]))[0]
    write_forecast(
        path,
        series.values[-shown:],
        told.paths,
        series.channels,
        [first, times[0], times[-1]],
        interval,
    )
