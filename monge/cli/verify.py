"""Check the identities of the theory on models and runs

Each row shows what of the library is examined, the residual of an identity and its tolerance; a
common error also shows the residual of the wrong statement. Rows that are mathematics only are
counted apart. `-v` and `--json` add the work that each one is cited from. `--mutants` injects
faults into the library in memory and shows which check catches each.
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
from ..verify.mutants import MUTANTS, Mutant, MutantResult, attempt_all
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
@click.option(
    "--mutants",
    "faults",
    is_flag=True,
    help="Inject known faults in memory, in a child process, and show the check that catches "
    "each; NAME is a fault or the id of its check.",
)
@common
def command(console: Console, names: tuple[str, ...], every: bool, faults: bool) -> None:
    """Check identities on models. NAME is a model, a run, an identity (X52), a common error (R36)
    or a group (latent, errata).

    A model is checked on small spaces with random weights, a run with its own weights on held-out
    rows. If neither is named, each identity is checked on the first model that it applies to.
    -v also prints the paper or book section that each identity is cited from.
    """
    import torch

    torch.set_num_threads(1)  # small problems: a second thread only waits for the first
    if faults:
        check_mutants(console, names)
        return
    choice = choose(names)
    rows = []
    for row in check_all(console, choice, every):
        rows.append(row)
        show_progress(console, f"{row.id} {row.member}")
    show_progress(console)
    if not rows:
        raise UsageError("none of these identities applies to these models; see `monge models`")
    result = {"rows": [row.to_dict() for row in rows], "counts": count(rows)}
    console.result(result, text(console, rows))
    if any(row.passed is False for row in rows):
        raise click.exceptions.Exit(1)


def show_progress(console: Console, now: str = "") -> None:
    if console.is_interactive:
        click.echo(f"\r\033[K{now}", nl=False, err=True)


def check_mutants(console: Console, names: Sequence[str]) -> None:
    """Hold the chosen mutants against their checks and show a row for each."""
    chosen = choose_mutants(names)
    found = []
    for result in attempt_all(chosen):
        found.append(result)
        show_progress(console, result.name)
    show_progress(console)
    caught = sum(result.caught for result in found)
    table = console.table(
        ("fault", "check", "examines", "without", "with", "tolerance", ""),
        [mutant_line(result) for result in found],
        keys=2,
    )
    if console.verbose:
        table += "\n\n" + console.table(
            ("fault", "where", "statement"),
            [(each.name, each.where, each.statement) for each in found],
        )
    console.result(
        {"mutants": [each.to_dict() for each in found], "caught": caught, "of": len(found)},
        f"{table}\n{caught} of {len(found)} faults are caught",
    )
    if caught < len(found):
        raise click.exceptions.Exit(1)


def choose_mutants(names: Sequence[str]) -> list[Mutant]:
    ids = {each.name: each.id for each in listed()}
    known = {mutant: {mutant.name, mutant.check, ids[mutant.check]} for mutant in MUTANTS}
    words = dict.fromkeys(word for each in known.values() for word in sorted(each))
    for name in names:
        if not {name, name.upper()} & set(words):
            raise UsageError(
                f"expected a fault or the id of a check that catches one, found {name!r}"
                + nearest(name, words)
            )
    wanted = {word for name in names for word in (name, name.upper())}
    return [mutant for mutant, own in known.items() if not names or own & wanted]


def mutant_line(result: MutantResult) -> list[Any]:
    verdict = "caught" if result.caught else "NOT CAUGHT"
    side = result.member if result.member != ITSELF else result.where.partition(":")[0]
    return [
        result.name,
        f"{result.id} {result.check.partition('_')[2]}",
        side,
        result.without,
        result.with_fault,
        result.tolerance,
        f"{verdict}: {result.reason}" if result.reason else verdict,
    ]


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
        ("id", "examines", "statement", "residual", "tolerance", ""),
        [line(row) for row in shown],
        keys=2,
    )
    if console.verbose:
        cited = dict.fromkeys((row.id, row.source) for row in shown)
        table += "\n\n" + console.table(("id", "source"), [*cited]) + "\n"
    found = count(rows)
    reasons = " (-v shows why)" if len(shown) < len(rows) else ""
    counts = f"{found['hold']} hold, {found['fail']} fail, {found['skipped']} skipped{reasons}"
    alone = found["mathematics_only"]
    return f"{table}\n{counts}" + (f", {alone} are mathematics only" if alone else "")


def count(rows: Sequence[IdentityResult]) -> dict[str, int]:
    """How many rows hold, fail and are skipped, and how many examine no code of the library;
    these are counted apart."""
    about = [row for row in rows if not row.is_mathematics]
    return {
        "hold": sum(row.passed is True for row in about),
        "fail": sum(row.passed is False for row in rows),
        "skipped": sum(row.skipped is not None for row in about),
        "mathematics_only": sum(row.is_mathematics and row.passed is True for row in rows),
    }


def line(row: IdentityResult) -> list[Any]:
    side = row.member if row.member != ITSELF else ", ".join(row.examines)
    return [row.id, side, row.statement, row.residual, row.tolerance, outcome(row)]


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
