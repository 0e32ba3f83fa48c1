"""Write an HTML report of a run or a comparison"""

from __future__ import annotations

from pathlib import Path

import click

from ._output import Console, Output, common


@click.command("report")
@click.argument("run")
@click.option(
    "-o",
    "--out",
    type=Output(".html"),
    help="File of the report; by default report.html in the run directory.",
)
@common
def command(console: Console, run: str, out: Path | None) -> None:
    """Write one self-contained HTML page about RUN (or the directory of a comparison)."""
    from ..report.run import write_report

    path = write_report(run, out)
    console.result({"report": str(path)}, str(path))
