"""Search the settings of a model for the best held-out log-likelihood

The same command continues an interrupted search.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._output import SEED, THREADS, Console, common

if TYPE_CHECKING:
    from ..comparison.tuning import TrialResult, Tuning, TuningResult


SHOWN = 5
"""Trials in the table, the best first."""


@click.command("tune")
@click.argument("model")
@click.argument("data")
@click.argument("settings", nargs=-1, metavar="[KEY=LOW..HIGH | KEY=A|B | KEY=VALUE]...")
@click.option(
    "--trials", type=click.IntRange(1), default=20, show_default=True, help="Fits in all."
)
@click.option("--budget", help="Budget per trial: 90s, 5m, 500steps or 3epochs.  [default: 60s]")
@click.option(
    "--given", multiple=True, metavar="FIELD", help="Condition on this field; may be repeated."
)
@click.option(
    "--target", multiple=True, metavar="FIELD", help="Model this field given all others."
)
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Of the search and the fits."
)
@click.option("--threads", type=THREADS, default=0, help="CPU threads; 0: torch decides.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that train each model together.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Run trials on a Ray cluster whose machines share this directory, as many at a time as "
    "it has room for: its address, auto or local.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory of the search; an interrupted one is continued.",
)
@common
def command(
    console: Console,
    model: str,
    data: str,
    settings: tuple[str, ...],
    trials: int,
    budget: str | None,
    given: tuple[str, ...],
    target: tuple[str, ...],
    seed: int,
    threads: int,
    workers: int,
    ray: str | None,
    out: Path | None,
) -> None:
    """Fit MODEL to DATA with different settings and keep the best run.

    width=32..512 varies a setting, activation=relu|tanh chooses one, depth=2 keeps it at a value.
    If none is varied, the learning rate, the batch size and every setting of the model that has a
    range or choices are. The first trial has the default settings; a trial that is worse than the
    median of the others at the same part of its budget is stopped.
    """
    from ..comparison.tuning import BUDGET, TrialResult, tune
    from ..core.errors import RunError

    def report(event: Tuning | TrialResult) -> None:
        if isinstance(event, TrialResult):
            console.note(trial_sentence(event))
        else:
            plan = event.plan
            varied = " ".join(plan["varied"])
            console.note(
                f"{plan['model']} on {plan['data']}, {trials} trials of {plan['budget']}; "
                f"directory {event.folder}\nvaried: {varied}"
            )

    try:
        found = tune(
            model,
            data,
            *settings,
            trials=trials,
            budget=BUDGET if budget is None else budget,
            given=given,
            target=target,
            seed=seed,
            out=out,
            threads=threads,
            workers=workers,
            ray=ray,
            on_event=report,
        )
    except KeyboardInterrupt:
        raise RunError(
            "interrupted; the trials so far are saved, run the same command to continue"
        ) from None
    console.result(found.to_dict(), f"{table(console, found)}\n\n{summary(found)}\n{found.run}")


def trial_sentence(trial: TrialResult) -> str:
    chosen = " ".join(f"{name}={short(value)}" for name, value in trial.settings.items())
    if trial.state == "failed":
        return f"trial {trial.number} failed: {trial.failure}  {chosen}"
    held = f"{trial.held_out.value:.4f}" if trial.held_out else "none"
    stopped = " (stopped)" if trial.state == "stopped" else ""
    return f"trial {trial.number}: held out {held}{stopped}  {chosen}"


def short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(console: Console, found: TuningResult) -> str:
    """The best trials, and the settings by importance."""
    names = list(found.importances) or list(found.best.settings)
    scored = [trial for trial in found.trials if trial.held_out]
    lower = found.best.held_out is not None and found.best.held_out.kind in ("distance", "loss")
    scored.sort(key=lambda t: t.held_out.value if t.held_out else 0.0, reverse=not lower)
    rows = [
        [
            trial.number,
            trial.held_out.value if trial.held_out else None,
            trial.held_out.stderr if trial.held_out else None,
            *(trial.settings.get(name) for name in names[:6]),
        ]
        for trial in scored[:SHOWN]
    ]
    return console.table(["trial", "held out", "±", *names[:6]], rows)


def summary(found: TuningResult) -> str:
    """Whether the search found something better than the default settings."""
    best, default = found.best, found.default
    assert best.held_out is not None
    if default is None or default.held_out is None:
        return f"best: trial {best.number}; the trial with default settings has no result"
    unit = default.held_out.unit
    if best.number == default.number:
        return (
            f"no trial of {len(found.trials)} was better than the default settings "
            f"({default.held_out.value:.4f} {unit}); more trials or other ranges may be"
        )
    gain = abs(best.held_out.value - default.held_out.value)
    return (
        f"trial {best.number} is better than the default settings by {gain:.4f} {unit} held out; "
        "these rows chose it, so measure it on test rows with `monge evaluate`"
    )
