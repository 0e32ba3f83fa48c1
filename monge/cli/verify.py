"""Check the identities of the theory on models and runs

Each row shows the residual of an identity and its tolerance; a common error also shows the
residual of the wrong statement. `-v` and `--json` add the work that each one is cited from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import registry
from ..core.errors import MongeError, UsageError, nearest
from ..run import storage
from ..verify.errata.uncomputable import PROSE
from ..verify.framework import ITSELF, IdentityResult, Listing, hold, listed, load
from ._output import Console, common

if TYPE_CHECKING:
    from ..verify.subjects import Subject


ERRATA = "errata"
"""The group of common errors."""
MAX_ROWS = 1024
"""Held-out rows of a run that are searched for rows without missing values."""


@dataclass(frozen=True)
class VerifySelection:
    """The identities, models and runs that the names of a command line select; no name: all."""

    listings: tuple[Listing, ...]
    prose: tuple[str, ...]  # common errors that cannot be computed
    models: tuple[str, ...]
    runs: tuple[Path, ...]

    @property
    def members(self) -> bool:
        """Whether a model or a run is named."""
        return bool(self.models or self.runs)


@click.command("verify")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Check every model that an identity applies to, not only the first.",
)
@common
def command(console: Console, names: tuple[str, ...], every: bool) -> None:
    """Check identities on models. NAME is a model, a run, an identity (X52), a common error (R36)
    or a group (latent, errata).

    A model is checked on small spaces with random weights, a run with its own weights on held-out
    rows. If neither is named, each identity is checked on the first model that it applies to.
    -v also prints the paper or book section that each identity is cited from.
    """
    import torch

    torch.set_num_threads(1)  # small problems: a second thread only waits for the first
    choice = choose(names)
    rows = []
    for row in check_all(console, choice, every):
        rows.append(row)
        if console.is_interactive:
            click.echo(f"\r\033[K{row.id} {row.member}", nl=False, err=True)
    if console.is_interactive:
        click.echo("\r\033[K", nl=False, err=True)
    if not rows:
        raise UsageError("none of these identities applies to these models; see `monge models`")
    console.result({"rows": [row.to_dict() for row in rows]}, text(console, rows))
    if any(row.passed is False for row in rows):
        raise click.exceptions.Exit(1)


def choose(names: Sequence[str]) -> VerifySelection:
    """Sort names into identities, models and runs."""
    known = listed()
    labels: set[str] = set()
    models, runs = [], []
    for name in names:
        if name.upper() in {each.id for each in known} | {*PROSE} or name in {
            each.group for each in known
        }:
            labels.add(name)
        elif is_model(name):
            models.append(name if name.endswith(".py") else registry.entry(name).name)
        else:
            runs.append(run_folder(name))
    wanted = {label.upper() for label in labels} | labels
    chosen = tuple(each for each in known if not labels or {each.id, each.group} & wanted)
    prose = tuple(each for each in PROSE if wanted & {each, ERRATA})
    return VerifySelection(chosen, prose, tuple(models), tuple(runs))


def is_model(name: str) -> bool:
    """Whether a name is a model's; a run's folder of the same name comes first."""
    if (Path(name) / "run.json").is_file():
        return False
    names = {part for entry in registry.entries() for part in (entry.name, short(entry.name))}
    return name in names or name.endswith(".py")


def run_folder(name: str) -> Path:
    for place in (Path(name), storage.home() / name):
        if (place / "run.json").is_file():
            return place
    known = [short(entry.name) for entry in registry.entries()]
    known += [word for each in listed() for word in (each.id, each.group)]
    known += [place.name for place in storage.listing()]
    raise UsageError(
        f"there is no model, run, identity or group {name!r}" + nearest(name, dict.fromkeys(known))
    )


def short(name: str) -> str:
    return name.rpartition(".")[2]


def check_all(console: Console, choice: VerifySelection, every: bool) -> Iterator[IdentityResult]:
    """Check the selected identities and yield their rows."""
    from ..verify.subjects import able

    named = list(subjects(console, choice))
    for listing in choice.listings:
        identity = load(listing)
        if choice.members:
            if identity.needs is not None:
                yield from hold(identity, named, True)
        else:
            yield from hold(identity, able(identity.needs or object), every)
    for name in choice.prose:
        source, statement, reason = PROSE[name]
        yield IdentityResult(name, ITSELF, statement, source, skipped=reason)


def subjects(console: Console, choice: VerifySelection) -> Iterator[Subject]:
    """The named models and runs; a run whose data cannot be read is checked on random rows."""
    import torch

    from ..core.rng import make_generator
    from ..run import run as runs
    from ..verify.subjects import random_rows, small, trained

    for name in choice.models:
        yield from small(name)
    for place in choice.runs:
        run = runs.load(place)
        try:
            rows = run.split()
            batch = rows.batch(torch.arange(min(len(rows), MAX_ROWS)))
        except MongeError as error:
            console.note(f"{error}; using random rows instead")
            batch = random_rows(run.space, MAX_ROWS, make_generator(0))
        yield trained(str(place), run.model, batch)


def text(console: Console, rows: list[IdentityResult]) -> str:
    """The table, and a line of counts."""
    shown = [row for row in rows if console.verbose or row.skipped is None] or rows
    table = console.table(
        ("id", "model", "statement", "residual", "tolerance", ""),
        [line(row) for row in shown],
        keys=2,
    )
    if console.verbose:
        cited = dict.fromkeys((row.id, row.source) for row in shown)
        table += "\n\n" + console.table(("id", "source"), [*cited]) + "\n"
    held, failed, skipped = (
        sum(found)
        for found in zip(
            *((row.passed is True, row.passed is False, row.skipped is not None) for row in rows),
            strict=True,
        )
    )
    reasons = " (-v shows why)" if len(shown) < len(rows) else ""
    return f"{table}\n{held} hold, {failed} fail, {skipped} skipped{reasons}"


def line(row: IdentityResult) -> list[Any]:
    return [row.id, row.member, row.statement, row.residual, row.tolerance, outcome(row)]


def outcome(row: IdentityResult) -> str:
    if row.skipped:
        return f"skipped: {row.skipped}"
    if row.error:
        return f"FAIL {row.error}"
    verdict = "ok" if row.passed else "FAIL"
    return (
        verdict
        if row.wrong is None
        else f"{verdict}, the wrong statement is off by {row.wrong:.3g}"
    )
