"""Predict the target of each row: class and probabilities, or mean and interval

The rows of DATA need not hold the target. Without -o the table is printed as csv.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..run.writers import write_table, write_tables
from ._output import SEED, Console, Output, common, gather_files

if TYPE_CHECKING:
    import pandas as pd

    from ..run.predict import By


@click.command("predict")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--out", type=Output(".csv", ".parquet"), help="File: .csv or .parquet.")
@click.option(
    "--by",
    type=click.Choice(["mean", "mode", "sample", "vote"]),
    default="mean",
    show_default=True,
    help="Point prediction of a numeric target; sample has no interval. vote: the class that "
    "most members of an ensemble predict, with their shares as probabilities.",
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
    data, settings = gather_files(console, data, settings)
    overrides, found = Overrides.parse(settings), runs.load(run)
    if out is not None and not keep_columns:
        out.parent.mkdir(parents=True, exist_ok=True)
        asked = (*overrides.model, *overrides.sample)
        parts = found.predict_parts(data, *asked, split=split, by=by, interval=interval, seed=seed)
        for note in found.notes:
            console.note(note)
        result: dict[str, Any] = {"run": str(found.folder), "rows": 0, "columns": []}
        write_tables(counted(parts, result), out)
        console.result(result | {"file": str(out)}, str(out))
        return
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


def counted(parts: Iterator[pd.DataFrame], result: dict[str, Any]) -> Iterator[pd.DataFrame]:
    """The parts of a table, whose rows and columns are noted in `result`."""
    for part in parts:
        result |= {"rows": result["rows"] + len(part), "columns": list(part)}
        yield part
