"""Fit many models to one data set with the same budget, rank them, write a report"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._cost import describe_cost_dict, duration
from ._output import Console, common

if TYPE_CHECKING:
    from ..comparison.leaderboard import Leaderboard, LeaderboardRow
    from ..comparison.runner import Comparison, Outcome, Started
    from ..core.metric import Metric


COLUMNS = {
    "energy_distance": "distance",
    "c2st": "c2st",
    "coverage": "coverage",
    "accuracy": "accuracy",
    "rmse": "rmse",
    "parameters": "parameters",
    "samples_per_second": "samples/s",
}
"""What else the leaderboard shows of the measures, where any model has it."""


@click.command("compare")
@click.argument("data")
@click.argument("models", nargs=-1, metavar="[MODEL ...] [data.WORDS ...]")
@click.option("--budget", help="Of each model: 90s, 5m, 500steps, 3epochs.  [default: 60s]")
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Fits of each model."
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Fits at a time; they share the cores.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Fit on the machines of a Ray cluster that share "
    "this folder: its address, auto, or local.",
)
@click.option("--one", is_flag=True, help="One model of each family instead of all.")
@click.option(
    "--given", multiple=True, metavar="FIELD", help="Condition on this field; may be repeated."
)
@click.option(
    "--target", multiple=True, metavar="FIELD", help="The event is this field given all others."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the comparison; one that was cut goes on.",
)
@common
def command(
    console: Console,
    data: str,
    models: tuple[str, ...],
    budget: str | None,
    seeds: int,
    jobs: int,
    ray: str | None,
    one: bool,
    given: tuple[str, ...],
    target: tuple[str, ...],
    out: Path | None,
) -> None:
    """Fit every model that takes DATA, or the MODELs named, and rank them on test rows.

    The baselines are always among them. A comparison that was stopped goes on where it stood.
    """
    from ..comparison.api import compare
    from ..comparison.runner import BUDGET
    from ..core.errors import RunError

    crier = ProgressReporter(console, jobs, ray)
    try:
        found = compare(
            data,
            *models,
            budget=BUDGET if budget is None else budget,
            seeds=seeds,
            jobs=jobs,
            one=one,
            given=given,
            target=target,
            out=out,
            ray=ray,
            tell=crier.tell,
        )
    except KeyboardInterrupt:
        raise RunError("stopped; what was done is kept, and the same command goes on") from None
    console.result(found.to_dict(), f"{text(console, found)}\n\n{found.report}")
    if not found.rows:
        raise click.exceptions.Exit(1)


class ProgressReporter:
    """Says what is about to happen and what it costs, and what has come of each entrant."""

    def __init__(self, console: Console, jobs: int, ray: str | None) -> None:
        self.console, self.jobs, self.ray = console, jobs, ray
        self.ended, self.of, self.budget = 0, 0, ""

    def tell(self, event: Comparison | Started | Outcome) -> None:
        from ..comparison.runner import Comparison, Outcome

        if isinstance(event, Comparison):
            self.announce(event)
        elif isinstance(event, Outcome):
            self.ended += 1
            self.console.note(f"[{self.ended}/{self.of}] {told(event)}")
        else:
            self.console.note(f"{named(event)}: {describe_cost_dict(event.cost, self.budget)}")

    def announce(self, comparison: Comparison) -> None:
        from ..train.budget import Budget

        plan = comparison.plan
        self.of, self.budget = len(plan.entrants), plan.budget
        seconds = Budget.read(plan.budget).seconds * self.of / self.jobs
        pace = f"{self.jobs} at a time"
        if self.ray:
            pace = f"on the Ray cluster {self.ray}"
        elif seconds < float("inf"):
            pace += f", at most {duration(seconds)} of training"
        self.console.note(
            f"{len(plan.models)} models on {plan.data}, {plan.seeds} seed"
            f"{'s' * (plan.seeds > 1)}, {plan.budget} each, {pace}; each is then "
            f"judged on test rows; in {comparison.folder}"
        )
        if self.console.verbose:
            for name, reason in plan.refused.items():
                self.console.note(f"left out {name}: {reason}")
        elif holes := [name for name, why in plan.refused.items() if "missing values" in why]:
            self.console.note(
                f"{len(holes)} models do not train on missing values and are left "
                "out; data.missing=drop leaves out such rows instead"
            )


def named(event: Started | Outcome) -> str:
    return f"{event.model} (seed {event.seed})" if event.seed else event.model


def told(outcome: Outcome) -> str:
    if outcome.failure:
        return f"{named(outcome)} failed: {outcome.failure}"
    return f"{named(outcome)} is fitted and judged"


def text(console: Console, found: Leaderboard) -> str:
    """The leaderboard for people."""
    rows = found.rows
    shown = {name: head for name, head in COLUMNS.items() if any(name in r.measures for r in rows)}
    seeds = any(row.interval for row in rows)
    head = (
        "",
        "model",
        "nats",
        "±",
        "kind",
        "bits/dim",
        "behind",
        "±",
        *(["95% over seeds"] if seeds else []),
        *shown.values(),
        "seconds",
    )
    body = [
        [
            place,
            row.model,
            *likelihood(row),
            *(row.behind or (None, None)),
            *([interval(row)] if seeds else []),
            *cells(row.measures, shown),
            row.seconds,
        ]
        for place, row in enumerate(rows, 1)
    ]
    if any(name in found.reference for name in shown):
        blank = [None] * (6 + seeds)
        body.append(["", "training rows", *blank, *cells(found.reference, shown), None])
    table = console.table(head, body, keys=2)
    return table + "".join(f"\n{name} failed: {why}" for name, why in found.failures.items())


def cells(measures: dict[str, Metric], shown: dict[str, str]) -> list[float | None]:
    return [measures[name].value if name in measures else None for name in shown]


def interval(row: LeaderboardRow) -> str:
    return "{:.4g} to {:.4g}".format(*row.interval) if row.interval else ""


def likelihood(row: LeaderboardRow) -> list[Any]:
    score, bits = row.measures.get("log_likelihood"), row.measures.get("bits_per_dim")
    if score is None:
        return [None] * 4
    return [score.value, score.stderr, score.kind, bits.value if bits else None]
