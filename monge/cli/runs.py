"""Every run with its score and size; or delete some

A deleted run goes to the folder .trash beside it, from where it can be brought back.
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
def command(voice: Console, delete: tuple[str, ...], yes: bool) -> None:
    """List the runs in ./runs (or MONGE_RUNS), oldest first; damaged ones with their error."""
    if delete:
        discard(voice, list(dict.fromkeys(map(deletable, delete))), yes)
    rows = [described(place) for place in storage.listing()]
    good = [[row[key] for key in HEAD] for row in rows if not row["error"]]
    text = [voice.table(HEAD, good)] if good else []
    text += [f"{row['run']} is damaged: {row['error']}" for row in rows if row["error"]]
    voice.result(
        rows,
        "\n".join(text)
        if rows
        else f"no runs in {storage.home()}; `monge fit MODEL DATA` makes one",
    )


def deletable(name: str) -> Path:
    """The folder of a run that can be deleted."""
    place = Path(os.path.abspath(storage.locate(name)))
    if place.is_symlink():
        raise RunError(
            f"{place} is a link to {os.path.realpath(place)}; delete that, or remove the link"
        )
    if place.parent.name == storage.TRASH:
        raise RunError(
            f"{place} is in the trash already; empty it with "
            f"`rm -r {shlex.quote(str(place.parent))}`"
        )
    storage.described(place)
    return place


def discard(voice: Console, places: Sequence[Path], yes: bool) -> None:
    """Move runs to the trash, once it is sure that they are meant."""
    from ..run.storage import locked

    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "--delete asks before it deletes, and there is no terminal to ask in; add --yes"
            )
        if not click.confirm(f"Delete {', '.join(map(str, places))}?", err=True):
            raise RunError("nothing is deleted")
    for place in places:
        with locked(place):
            moved = storage.discard(place)
        voice.note(
            f"moved {place} to the trash; bring it back with `{shell('mv', moved, place)}`,"
            f" or empty the trash with `{shell('rm -r', moved.parent)}`"
        )


def shell(command: str, *paths: Path) -> str:
    return " ".join([command, *(shlex.quote(str(path)) for path in paths)])


def described(compute: Path) -> dict[str, Any]:
    """One line about a run; `error` is the sentence about what is damaged."""
    from ..train import checkpoint

    row: dict[str, Any] = dict.fromkeys((*HEAD, "error"))
    row["run"] = str(compute)
    try:
        row["bytes"] = storage.size(compute)
        about = storage.described(compute)
        row |= {"model": about["model"], "data": about["data"]["name"], "kind": "not fitted"}
        if not (compute / "best.safetensors").exists():
            return row
        result = checkpoint.about(compute / "best.safetensors")
        held = result["held_out"] or {}
        row |= {"step": result["step"], "held_out": held.get("value"), "kind": held.get("kind")}
    except (RunError, OSError) as error:
        row |= {"kind": None, "error": str(error)}
    except (KeyError, TypeError, AttributeError) as error:  # JSON, but not what a run holds
        row |= {
            "kind": None,
            "error": f"expected the entries of a run, found none ({error}); "
            "restore its files from a copy",
        }
    return row
