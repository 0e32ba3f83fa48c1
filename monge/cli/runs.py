"""Every run with its score and size; or delete some"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from .. import folder
from ..core.error import RunError
from ._say import Voice, common


@click.command("runs")
@click.option("--delete", multiple=True, metavar="RUN", help="Remove this run; may be repeated.")
@common
def command(voice: Voice, delete: tuple[str, ...]) -> None:
    """List the runs in ./runs (or MONGE_RUNS), oldest first."""
    for place in [folder.locate(name) for name in delete]:
        shutil.rmtree(place)
        voice.note(f"deleted {place}")
    rows = [told(place) for place in folder.listing()]
    head = ("run", "model", "data", "step", "held_out", "kind", "bytes")
    body = [[row[key] for key in head] for row in rows]
    voice.result(rows, voice.table(head, body) if rows else
                 f"no runs in {folder.home()}; `monge fit MODEL DATA` makes one")


def told(place: Path) -> dict[str, Any]:
    """One line about a run; what is damaged says so instead of hiding the others."""
    from ..train import checkpoint

    row = {"run": str(place), "model": None, "data": None, "step": None, "held_out": None,
           "kind": None, "bytes": folder.size(place)}
    try:
        about = folder.read(place, "run.json")
        row |= {"model": about["model"], "data": about["data"]["name"]}
        result = checkpoint.about(place / "best.safetensors")
        held = result["held_out"] or {}
        row |= {"step": result["step"], "held_out": held.get("value"), "kind": held.get("kind")}
    except RunError as error:
        row["kind"] = "not fitted" if row["model"] else f"damaged: {error}"
    return row
