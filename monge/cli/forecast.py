"""Forecast a series: median and prediction interval per step

Trajectories are sampled given the past; a model of whole windows completes them. Without -o the
table is printed as csv.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import UsageError
from ..run.writers import write_table
from ._output import SEED, Console, Output, common


@click.command("forecast")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--horizon",
    type=click.IntRange(1),
    help="Steps to forecast: by default the horizon of the run; later steps are sampled given "
    "earlier ones.",
)
@click.option("-o", "--out", type=Output(".csv", ".parquet"), help="File: .csv or .parquet.")
@click.option("--plot", type=Output(".png"), help="File of a plot: .png.")
@click.option("--paths", type=Output(".csv"), help="File for all trajectories: .csv.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(2),
    default=1000,
    show_default=True,
    help="Trajectories to sample.",
)
@click.option(
    "--interval",
    type=float,
    default=0.8,
    show_default=True,
    help="Probability of the central prediction interval.",
)
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Same seed, same trajectories."
)
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
    """Forecast the series of DATA (by default the one of RUN) after its last step. KEY=VALUE sets
    a data option (data.gaps=fill) or a sampling option; range=observed samples trajectories anew
    that leave the range of the series. Natural bounds such as 0 are never left."""
    from ..run import run as runs
    from ..run.forecast import forecast

    if data is not None and "=" in data and not Path(data).exists():
        settings, data = (data, *settings), None
    if not 0 < interval < 1:
        raise UsageError(
            f"--interval: expected a number between 0 and 1 such as 0.8, found {interval:g}"
        )
    found = runs.load(run)
    forecasted = forecast(found, horizon, data, settings, count, seed)
    for note in forecasted.notes:
        console.note(note)
    table, files = forecasted.table(interval), [path for path in (out, plot, paths) if path]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    if out:
        write_table(table, out)
    if plot:
        forecasted.plot(plot, interval)
    if paths:
        write_table(forecasted.sampled(), paths)
    result = {
        "run": str(found.folder),
        "horizon": len(table),
        "interval": interval,
        "channels": list(forecasted.series.channels),
        "files": list(map(str, files)),
        "forecast": table.to_dict("records"),
    }
    console.result(result, "\n".join(map(str, files)) or table.to_csv(index=False).rstrip())
