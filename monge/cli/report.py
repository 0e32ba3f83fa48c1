"""One HTML page about a run or a comparison"""

from __future__ import annotations

from pathlib import Path

import click

from ._output import Console, common
from ._writers import OUTPUT


@click.command("report")
@click.argument("run")
@click.option(
    "-o",
    "--out",
    type=OUTPUT,
    help="Where the page goes; by default report.html in the folder itself.",
)
@common
def command(voice: Console, run: str, out: Path | None) -> None:
    """Write what RUN (or a comparison's folder) has to say as one page that needs no network."""
    from ..report.run import write_report

    path = write_report(run, out)
    voice.result({"report": str(path)}, str(path))
