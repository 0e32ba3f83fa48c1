"""Rows unlike the data of a run: likelihood, typicality, ratio and Mahalanobis distance

How well each score tells the rows of DATA from held-out rows of the run, and a p-value per row.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..core.metric import with_error
from ..run.writers import write_table
from ._output import SEED, Console, Output, common


@click.command("detect")
@click.argument("run")
@click.argument("data")
@click.option(
    "--background",
    metavar="RUN",
    help="Run on the same columns that knows what is common to all data; adds the ratio to it.",
)
@click.option(
    "-o",
    "--out",
    type=Output(".csv", ".parquet"),
    help="File with a line per row: its scores, and how probable scores as large are for rows "
    "like those of the run.",
)
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="Seed of the noise of a bound or estimate.",
)
@common
def command(
    console: Console, run: str, data: str, background: str | None, out: Path | None, seed: int
) -> None:
    """Find rows of DATA that are unlike the data of RUN.

    AUROC is the share of pairs of a row of DATA and a held-out row of RUN in which the former has
    the larger score: 0.5 is chance, 1 a perfect separation, below 0.5 the score prefers DATA. A
    high likelihood alone does not make a row usual, so compare the scores.
    """
    from ..run import run as runs
    from ..run.detect import ALARM

    found = runs.load(run)
    other = None if background is None else runs.load(background)
    detection = found.detect(data, other, seed=seed)
    for note in found.notes:
        console.note(note)
    if out:
        write_table(detection.table(), out)
    result, lines = {}, []
    for name in detection.names:
        area, alarms = detection.auroc(name), detection.false_alarms(name)
        share = float((detection.p_values(name) < ALARM).mean())
        result[name] = {
            "auroc": area.value,
            "stderr": area.stderr,
            "false_alarms": alarms,
            "unusual": share,
        }
        lines.append(
            [name, f"{area.value:.4f}{with_error(area.stderr)}", f"{alarms:.1%}", f"{share:.1%}"]
        )
    head = ("score", "AUROC", "false alarms at 95 % found", f"rows with p < {ALARM:g}")
    shown = console.table(head, lines)
    console.result(result, shown + (f"\n{out}" if out else ""))
