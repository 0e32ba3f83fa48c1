"""Predict the target of each row: class and probabilities, or mean and interval

The rows of DATA need not hold the target. Without -o the table is printed as csv.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..run.writers import write_table
from ._output import SEED, Console, Output, common

if TYPE_CHECKING:
    from ..run.predict import By


@click.command("predict")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--out", type=Output(".csv", ".parquet"), help="File: .csv or .parquet.")
@click.option(
    "--by",
    type=click.Choice(["mean", "mode", "sample"]),
    default="mean",
    show_default=True,
    help="Point prediction of a numeric target; sample has no interval.",
)
@click.option(
    "--interval",
    type=float,
    default=0.9,
    show_default=True,
    help="Probability of the central prediction interval of a numeric target.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test", "all"]),
    help="Rows to predict: by default all of DATA, or the test rows of RUN.",
)
@click.option(
    "--keep-columns",
    is_flag=True,
    help="Write the columns of DATA before the predictions; its target becomes NAME_true.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Same seed, same samples.")
@common
def command(
    console: Console,
    run: str,
    data: str | None,
    settings: tuple[str, ...],
    out: Path | None,
    by: By,
    interval: float,
    split: str | None,
    keep_columns: bool,
    seed: int,
) -> None:
    """Predict the target of every row of DATA (by default the test rows of RUN). KEY=VALUE sets an
    option: passes=50 averages 50 networks with dropout."""
    from ..core.config import Overrides
    from ..run import run as runs

    if data is not None and "=" in data and not Path(data).exists():
        settings, data = (data, *settings), None
    overrides, found = Overrides.parse(settings), runs.load(run)
    table = found.predict(
        data,
        *overrides.model,
        *overrides.sample,
        split=split,
        by=by,
        interval=interval,
        keep_columns=keep_columns,
        seed=seed,
    )
    for note in found.notes:
        console.note(note)
    result = {"run": str(found.folder), "rows": len(table), "columns": list(table)}
    if out is None:
        text = table.to_csv(index=False).rstrip()
        console.result(result | {"predictions": table.to_dict("records")}, text)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, out)
    console.result(result | {"file": str(out)}, str(out))
