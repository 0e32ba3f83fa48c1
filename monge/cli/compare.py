"""Fit many models to one data set with the same budget, rank them, write a report"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._say import Voice, common

if TYPE_CHECKING:
    from ..compare import Comparison, Outcome
    from ..leaderboard import Row

COLUMNS = {"energy_distance": "distance", "c2st_accuracy": "c2st", "coverage": "coverage",
           "accuracy": "accuracy", "rmse": "rmse", "parameters": "parameters",
           "samples_per_second": "samples/s"}
"""What else the leaderboard shows of the measures, where any model has it."""


@click.command("compare")
@click.argument("data")
@click.argument("models", nargs=-1, metavar="[MODEL ...] [data.WORDS ...]")
@click.option("--budget", help="Of each model: 90s, 5m, 500steps, 3epochs.  [default: 60s]")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True,
              help="Fits of each model.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True,
              help="Fits at a time; they share the cores.")
@click.option("--one", is_flag=True, help="One model of each family instead of all.")
@click.option("--given", multiple=True, metavar="FIELD", help="Condition on this field.")
@click.option("--target", multiple=True, metavar="FIELD", help="The event is this field given all "
              "others.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the comparison; one that "
              "was cut goes on.")
@common
def command(voice: Voice, data: str, models: tuple[str, ...], budget: str | None, seeds: int,
            jobs: int, one: bool, given: tuple[str, ...], target: tuple[str, ...],
            out: Path | None) -> None:
    """Fit every model that takes DATA, or the MODELs named, and rank them on test rows.

    The baselines are always among them. A comparison that was stopped goes on where it stood.
    """
    from ..compare import BUDGET, Comparison, plan
    from ..leaderboard import leaderboard
    from ..reporting import report

    words = [word for word in models if "=" in word]
    names = [word for word in models if "=" not in word]
    found = plan(data, names, words, budget or BUDGET, seeds, given, target, one)
    comparison = Comparison.begin(found, out)
    announce(voice, comparison, jobs)
    outcomes = []
    for outcome in comparison.run(jobs):
        outcomes.append(outcome)
        voice.note(f"[{len(outcomes)}/{len(found.entrants)}] {told(outcome)}")
    rows = leaderboard(outcomes)
    path = report(comparison.folder, outcomes)
    failures = {f"{o.model} (seed {o.seed})": o.failure for o in outcomes if o.failure}
    value = {"rows": [row.to_dict() for row in rows], "failures": failures,
             "refused": found.refused, "report": str(path)}
    voice.result(value, text(voice, rows, failures) + f"\n\n{path}")
    if not rows:
        raise click.exceptions.Exit(1)


def announce(voice: Voice, comparison: Comparison, jobs: int) -> None:
    """What is about to happen, and what it costs."""
    plan = comparison.plan
    voice.note(f"{len(plan.models)} models on {plan.data}, {plan.seeds} seed"
               f"{'s' * (plan.seeds > 1)}, {plan.budget} each, {jobs} at a time, in "
               f"{comparison.folder}")
    if voice.verbose:
        for name, reason in plan.refused.items():
            voice.note(f"left out {name}: {reason}")


def told(outcome: Outcome) -> str:
    if outcome.failure:
        return f"{outcome.model} failed: {outcome.failure}"
    return f"{outcome.model} is fitted and judged"


def text(voice: Voice, rows: list[Row], failures: dict[str, Any]) -> str:
    """The leaderboard for people."""
    shown = {name: head for name, head in COLUMNS.items() if any(name in r.measures for r in rows)}
    head = ("model", "nats", "±", "kind", "bits/dim", "behind", "±", *shown.values(), "seconds")
    body = [[row.model, *likelihood(row), *(row.behind or (None, None)),
             *(row.measures[name].value if name in row.measures else None for name in shown),
             row.seconds] for row in rows]
    table = voice.table(head, body)
    return table + "".join(f"\n{name} failed: {reason}" for name, reason in failures.items())


def likelihood(row: Row) -> list[Any]:
    score, bits = row.measures.get("log_likelihood"), row.measures.get("bits_per_dim")
    if score is None:
        return [None] * 4
    return [score.value, score.stderr, score.kind, bits.value if bits else None]
