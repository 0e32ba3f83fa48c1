"""Fit several models to one data set with the same budget, rank them, write a report"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..train.cost_description import describe_cost_dict, duration
from ._output import Console, common

if TYPE_CHECKING:
    from ..comparison.leaderboard import Leaderboard, LeaderboardRow
    from ..comparison.runner import Comparison, JobStarted, Outcome
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
"""Further metrics of the leaderboard, shown if any model has them."""


@click.command("compare")
@click.argument("data")
@click.argument("models", nargs=-1, metavar="[MODEL]... [data.KEY=VALUE]...")
@click.option("--budget", help="Budget per model: 90s, 5m, 500steps or 3epochs.  [default: 60s]")
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="Fits per model."
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Parallel fits; they share the cores.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Fit on a Ray cluster whose machines share this directory: its address, auto or local.",
)
@click.option(
    "--threads",
    type=click.IntRange(0),
    default=0,
    help="CPU threads per fit; 0: the fits share the cores.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that train each model together.",
)
@click.option("--one", is_flag=True, help="One model per family instead of all.")
@click.option(
    "--given", multiple=True, metavar="FIELD", help="Condition on this field; may be repeated."
)
@click.option(
    "--target", multiple=True, metavar="FIELD", help="Model this field given all others."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory of the comparison; an interrupted one is continued. By default named after "
    "DATA; a comparison with other settings gets a number.",
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
    threads: int,
    workers: int,
    one: bool,
    given: tuple[str, ...],
    target: tuple[str, ...],
    out: Path | None,
) -> None:
    """Fit every model that supports DATA, or the MODELs named, and rank them on test rows.

    Baselines are always included. The same command continues an interrupted comparison.
    """
    from ..comparison.api import compare
    from ..comparison.runner import BUDGET
    from ..core.errors import RunError

    reporter = ProgressReporter(console, jobs, ray)
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
            threads=threads,
            workers=workers,
            on_event=reporter.report,
        )
    except KeyboardInterrupt:
        raise RunError(
            "interrupted; finished fits are saved, run the same command to continue"
        ) from None
    console.result(found.to_dict(), f"{leaderboard_table(console, found)}\n\n{found.report}")
    if not found.rows:
        raise click.exceptions.Exit(1)


class ProgressReporter:
    """Prints the plan of a comparison, the cost of each fit and its outcome."""

    def __init__(self, console: Console, jobs: int, ray: str | None) -> None:
        self.console, self.jobs, self.ray = console, jobs, ray
        self.ended, self.total, self.budget = 0, 0, ""

    def report(self, event: Comparison | JobStarted | Outcome) -> None:
        from ..comparison.runner import Comparison, Outcome

        if isinstance(event, Comparison):
            self.announce(event)
        elif isinstance(event, Outcome):
            self.ended += 1
            self.console.note(f"[{self.ended}/{self.total}] {outcome_sentence(event)}")
        else:
            self.console.note(f"{job_title(event)}: {describe_cost_dict(event.cost, self.budget)}")

    def announce(self, comparison: Comparison) -> None:
        from ..train.budget import Budget

        plan = comparison.plan
        self.total, self.budget = len(plan.jobs), plan.budget
        seconds = Budget.read(plan.budget).seconds * self.total / self.jobs
        pace = f"{self.jobs} at a time"
        if self.ray:
            pace = f"on the Ray cluster {self.ray}"
        elif seconds < float("inf"):
            pace += f", at most {duration(seconds)} of training"
        models = len(plan.models)
        self.console.note(
            f"{models} model{'s' * (models != 1)} on {plan.data}, {plan.seeds} seed"
            f"{'s' * (plan.seeds > 1)}, {plan.budget} each, {pace}; each is then "
            f"evaluated on test rows; directory {comparison.folder}"
        )
        if self.console.verbose:
            for name, reason in plan.refused.items():
                self.console.note(f"{name} is left out: {reason}")
        elif plan.refused:
            lines = "".join(f"\n  {line}" for line in plan.left_out)
            count = len(plan.refused)
            subject = "1 model is" if count == 1 else f"{count} models are"
            self.console.note(f"{subject} left out (-v says more){lines}")
            if any("missing values" in why for why in plan.refused.values()):
                self.console.note("data.missing=drop leaves out rows with missing values instead")


def job_title(event: JobStarted | Outcome) -> str:
    return f"{event.model} (seed {event.seed})" if event.seed else event.model


def outcome_sentence(outcome: Outcome) -> str:
    if outcome.failure:
        return f"{job_title(outcome)} failed: {outcome.failure}"
    return f"{job_title(outcome)} is fitted and evaluated"


def leaderboard_table(console: Console, found: Leaderboard) -> str:
    """The leaderboard as a table."""
    rows = found.rows
    shown = {name: head for name, head in COLUMNS.items() if any(name in r.metrics for r in rows)}
    seeds = any(row.interval for row in rows)
    head = (
        "",
        "model",
        "nats",
        "±",
        "kind",
        "bits/dim",
        "gap to best",
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
            *(row.gap_to_best or (None, None)),
            *([interval(row)] if seeds else []),
            *cells(row.metrics, shown),
            row.seconds,
        ]
        for place, row in enumerate(rows, 1)
    ]
    if any(name in found.reference for name in shown):
        blank = [None] * (6 + seeds)
        body.append(["", "training rows", *blank, *cells(found.reference, shown), None])
    table = console.table(head, body, keys=2)
    return table + "".join(f"\n{name} failed: {why}" for name, why in found.failures.items())


def cells(metrics: dict[str, Metric], shown: dict[str, str]) -> list[float | None]:
    return [metrics[name].value if name in metrics else None for name in shown]


def interval(row: LeaderboardRow) -> str:
    return "{:.4g} to {:.4g}".format(*row.interval) if row.interval else ""


def likelihood(row: LeaderboardRow) -> list[Any]:
    score, bits = row.metrics.get("log_likelihood"), row.metrics.get("bits_per_dim")
    if score is None:
        return [None] * 4
    return [score.value, score.stderr, score.kind, bits.value if bits else None]
