"""List runs with held-out log-likelihood and size, or delete or compact some

A deleted run is moved to the directory .trash beside it and can be restored; a compacted one keeps
its weights and cannot be resumed.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..core.errors import RunError, UsageError
from ..run import storage
from ..train.cost_description import size
from ._output import Console, common

HEAD = ("run", "model", "data", "date", "step", "held_out", "kind", "bytes")
SHOWN = ("run", "model", "data", "date", "step", "held out", "kind", "size")


@click.command("runs")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "--delete",
    multiple=True,
    metavar="RUN",
    help="Move this run, or all that a pattern such as 'vae-*' matches, to the trash; may be "
    "repeated.",
)
@click.option(
    "--compact",
    is_flag=True,
    help="Delete from finished runs what only resuming needs, such as the optimiser state.",
)
@click.option("--yes", is_flag=True, help="Delete or compact without asking.")
@common
def command(
    console: Console, runs: tuple[str, ...], delete: tuple[str, ...], compact: bool, yes: bool
) -> None:
    """List the runs in ./runs (or MONGE_RUNS), oldest first, or only RUN and those that a pattern
    such as 'vae-*' matches; damaged ones with their error."""
    if delete:
        unwanted = [name for pattern in delete for name in matching(pattern)]
        discard(console, list(dict.fromkeys(map(deletable, unwanted))), yes)
    chosen = [storage.locate(name) for pattern in runs for name in matching(pattern)]
    places = list(dict.fromkeys(chosen)) if runs else list(storage.listing())
    if compact:
        compact_finished(console, places, yes)
    rows = [describe_run(place) for place in places]
    good = [
        [size(row[key] or 0) if key == "bytes" else row[key] for key in HEAD]
        for row in rows
        if not row["error"]
    ]
    text = [console.table(SHOWN, good)] if good else []
    text += [f"{row['run']} is damaged: {row['error']}" for row in rows if row["error"]]
    console.result(
        rows,
        "\n".join(text)
        if rows
        else f"no runs in {storage.home()}; start one with `monge fit MODEL DATA`",
    )


def matching(pattern: str) -> list[str]:
    """The names of the runs that a pattern matches; a name without wildcards is one."""
    if not any(mark in pattern for mark in "*?["):
        return [pattern]
    found = [place.name for place in storage.listing()]
    if not (names := fnmatch.filter(found, pattern)):
        raise RunError(f"no run matches {pattern!r}; `monge runs` lists them")
    return names


def compact_finished(console: Console, chosen: Sequence[Path], yes: bool) -> None:
    """Delete what only resuming needs from those runs that have ended, after confirmation."""
    places = [place for place in chosen if is_resumable(place)]
    if not places:
        console.note("no finished run has anything that only resuming needs")
        return
    confirm(
        f"Compact {', '.join(map(str, places))}? They can then not be resumed.", yes, "compact"
    )
    for place in places:
        with storage.locked(place):
            freed = storage.compact(place)
        console.note(f"compacted {place}: {size(freed)} freed")


def is_resumable(place: Path) -> bool:
    """Whether a run has ended and can still be resumed; a damaged or interrupted one is not
    touched."""
    from ..train import checkpoint

    if not (place / "last.safetensors").exists() or not (place / "best.safetensors").exists():
        return False
    try:
        return checkpoint.about(place / "best.safetensors")["stopped"] != "asked"
    except (RunError, OSError, KeyError, TypeError):
        return False


def confirm(question: str, yes: bool, option: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"--{option} asks for confirmation, which needs a terminal; add --yes")
    if not click.confirm(question, err=True):
        raise RunError(f"nothing was {'deleted' if option == 'delete' else 'compacted'}")


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
    confirm(f"Delete {', '.join(map(str, places))}?", yes, "delete")
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
        started = os.stat(place / "run.json").st_mtime
        row["date"] = time.strftime("%Y-%m-%d %H:%M", time.localtime(started))
        about = storage.read_metadata(place)
        row |= {"model": about["model"], "data": storage.data_name(about), "kind": "not fitted"}
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
