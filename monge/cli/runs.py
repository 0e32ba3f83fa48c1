"""List runs with held-out log-likelihood and size, or delete some

A deleted run is moved to the directory .trash beside it and can be restored.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..core.errors import RunError, UsageError
from ..run import storage
from ._output import Console, common

HEAD = ("run", "model", "data", "step", "held_out", "kind", "bytes")


@click.command("runs")
@click.option(
    "--delete", multiple=True, metavar="RUN", help="Move this run to the trash; may be repeated."
)
@click.option("--yes", is_flag=True, help="Delete without asking.")
@common
def command(console: Console, delete: tuple[str, ...], yes: bool) -> None:
    """List the runs in ./runs (or MONGE_RUNS), oldest first; damaged ones with their error."""
    if delete:
        discard(console, list(dict.fromkeys(map(deletable, delete))), yes)
    rows = [describe_run(place) for place in storage.listing()]
    good = [[row[key] for key in HEAD] for row in rows if not row["error"]]
    text = [console.table(HEAD, good)] if good else []
    text += [f"{row['run']} is damaged: {row['error']}" for row in rows if row["error"]]
    console.result(
        rows,
        "\n".join(text)
        if rows
        else f"no runs in {storage.home()}; start one with `monge fit MODEL DATA`",
    )


def deletable(name: str) -> Path:
    """The folder of a run, checked to be deletable."""
    place = Path(os.path.abspath(storage.locate(name)))
    if place.is_symlink():
        raise RunError(
            f"{place} is a symbolic link to {os.path.realpath(place)}; delete that run, or "
            "remove the link"
        )
    if place.parent.name == storage.TRASH:
        raise RunError(
            f"{place} is already in the trash; empty it with "
            f"`rm -r {shlex.quote(str(place.parent))}`"
        )
    storage.read_metadata(place)
    return place


def discard(console: Console, places: Sequence[Path], yes: bool) -> None:
    """Move runs to the trash after confirmation."""
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("--delete asks for confirmation, which needs a terminal; add --yes")
        if not click.confirm(f"Delete {', '.join(map(str, places))}?", err=True):
            raise RunError("nothing was deleted")
    for place in places:
        with storage.locked(place):
            moved = storage.discard(place)
        console.note(
            f"moved {place} to the trash; restore it with `{shell('mv', moved, place)}`,"
            f" or empty the trash with `{shell('rm -r', moved.parent)}`"
        )


def shell(command: str, *paths: Path) -> str:
    return " ".join([command, *(shlex.quote(str(path)) for path in paths)])


def describe_run(place: Path) -> dict[str, Any]:
    """The row of a run; `error` is the sentence about what is damaged, if anything is."""
    from ..train import checkpoint

    row: dict[str, Any] = dict.fromkeys((*HEAD, "error"))
    row["run"] = str(place)
    try:
        row["bytes"] = storage.size(place)
        about = storage.read_metadata(place)
        row |= {"model": about["model"], "data": about["data"]["name"], "kind": "not fitted"}
        if not (place / "best.safetensors").exists():
            return row
        result = checkpoint.about(place / "best.safetensors")
        held = result["held_out"] or {}
        row |= {"step": result["step"], "held_out": held.get("value"), "kind": held.get("kind")}
    except (RunError, OSError) as error:
        row |= {"kind": None, "error": str(error)}
    except (KeyError, TypeError, AttributeError) as error:  # valid JSON that is not a run
        row |= {
            "kind": None,
            "error": f"expected the metadata of a run, found none ({error}); "
            "restore its files from a backup",
        }
    return row
