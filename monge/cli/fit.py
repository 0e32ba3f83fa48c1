"""Train a model on data; the result is a run folder

Ctrl-C saves and says how to resume; a run killed at any moment can be resumed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import UsageError
from ._cost import priced
from ._output import Console, common

if TYPE_CHECKING:
    from ..run.run import Run
    from ..train.loop import Progress


@click.command("fit")
@click.argument("model", required=False)
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--given", multiple=True, metavar="FIELD", help="Condition on this field; may be repeated."
)
@click.option(
    "--target",
    multiple=True,
    metavar="FIELD",
    help="The event is this field, or these columns together, given all others.",
)
@click.option(
    "--ensemble",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Train N such models as one law, the mean of theirs.",
)
@click.option("--bag", is_flag=True, help="Each of them on a bootstrap of the training rows.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run, a new one.")
@click.option("--resume", metavar="RUN", help="Go on with this run; MODEL and DATA are its own.")
@click.option(
    "--budget", help="90s, 5m, 500steps, 3epochs; +60s on top of a resumed run. Default: 2m."
)
@click.option("--seed", default=0, show_default=True, help="Same seed, same weights.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, mps.")
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp32", "bf16"]),
    default="auto",
    show_default=True,
    help="Of losses in training; auto is fp32 in a new run and that "
    "of the run with --resume. Scores are always fp32.",
)
@click.option("--threads", type=click.IntRange(0), default=0, help="On a CPU; 0: torch decides.")
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="torch.compile the losses: slow to "
    "start, worth it for long fits of elementwise-heavy networks.",
)
@common
def command(
    console: Console,
    model: str | None,
    data: str | None,
    settings: tuple[str, ...],
    given: tuple[str, ...],
    target: tuple[str, ...],
    ensemble: int,
    bag: bool,
    out: Path | None,
    resume: str | None,
    budget: str | None,
    seed: int,
    device: str,
    precision: str,
    threads: int,
    compiled: bool,
) -> None:
    """Train MODEL on DATA (a built-in name, a file or a folder).

    WORDS set fields: width=64 of the model, train.lr=1e-3 of the training, data.seed=1 of the
    data. `monge models MODEL` lists the model's.
    """
    from ..run import run as runs
    from ..train.budget import Budget
    from ..train.device import ComputeConfig

    budget = runs.BUDGET if budget is None else budget
    Budget.read(budget)
    place = ComputeConfig(device, precision, threads, compiled)
    if resume:
        if model or data or words or out or given or target or ensemble or bag:
            said = next((str(word) for word in (model, data, *words, out) if word), "the rest")
            raise UsageError(
                f"--resume {resume} goes on with a run as it is; leave out {said} and "
                "all but --budget and where to compute"
            )
        run = runs.load(resume, place)
    elif model is None or data is None:
        raise UsageError("fit needs a MODEL and DATA; `monge models` and `monge data` list them")
    else:
        run = runs.start(
            model,
            data,
            *words,
            given=given,
            target=target,
            ensemble=ensemble,
            bag=bag,
            seed=seed,
            out=out,
            compute=place,
            budget=budget,
        )
    last = watch(console, run, budget)
    report(console, run, last)


def watch(console: Console, run: Run, budget: str) -> Progress | None:
    """Train with a moving bar for a person, or a line at each held-out score for a file."""
    console.note(f"{run.title}: {run.space}, {run.space.rows} training rows")
    console.note(f"{priced(run.cost, budget)}; pictures and findings come after it")
    console.note(f"run folder {run.folder}")
    for note in run.notes:
        console.note(note)
    if console.verbose:
        settings = run.about["config"] | {f"train.{k}": v for k, v in run.about["recipe"].items()}
        console.note(
            console.table(
                ("setting", "value"),
                [[name, value] for name, value in settings.items() if not name.endswith("is")],
                err=True,
            )
        )
    last = None
    bar = Bar() if console.is_interactive else None
    try:
        for last in run.train(budget):
            if bar:
                bar.show(last)
            elif last.held_out:
                console.note(line(last))
    finally:
        if bar:
            bar.close()
    return last


def line(progress: Progress) -> str:
    """Where training stands, in one line."""
    loss = sum(progress.terms.values()) if progress.terms else float("nan")
    held = progress.held_out
    score = f"held out {held.value:.4f}{' *' if progress.best else ''}  " if held else ""
    return (
        f"step {progress.step:>7}  epoch {progress.epoch:>6.1f}  loss {loss:>10.4f}  "
        f"{score}{progress.speed:.0f} steps/s  {progress.seconds:.0f} s"
    )


class Bar:
    """A progress bar with loss, held-out score, speed and time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.bar = Progress(
            BarColumn(30),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            console=Console(file=sys.stderr),
        )
        self.task = self.bar.add_task("", total=1.0)
        self.held = "held out  --"
        self.bar.start()

    def show(self, progress: Progress) -> None:
        if progress.held_out:
            self.held = f"held out {progress.held_out.value:.3f} ({progress.held_out.kind})"
        fraction = min(progress.fraction, 1.0)
        left = progress.seconds * (1 - fraction) / max(fraction, 1e-9)
        loss = sum(progress.terms.values())
        text = (
            f"step {progress.step}  loss {loss:.3f}  {self.held}  {progress.speed:.0f} steps/s"
            f"  {left:.0f} s left"
        )
        self.bar.update(self.task, completed=fraction, description=text)

    def close(self) -> None:
        self.bar.stop()


WHY = {
    "budget": "the budget is used up",
    "patience": "the held-out score has stopped improving",
    "complete": "the fit is complete",
    "asked": "you asked",
    "refit": "the refit is complete",
}


def report(console: Console, run: Run, last: Progress | None) -> None:
    """What came of it, and what can be done with it."""
    from ..run.diagnostics import sentence
    from ..run.figures import write_figures

    result = run.result
    held: dict[str, Any] = result["held_out"] or {}
    write_figures(run)
    findings = run.diagnose()
    for finding in findings:
        console.note(sentence(finding))
    steps = f"{result['step']} step{'s' * (result['step'] != 1)}"
    console.note(
        f"stopped after {steps} and {result['seconds']:.1f} s: "
        f"{WHY.get(result['stopped'], result['stopped'])}"
    )
    if result.get("refit"):
        from ..run.model_card import retold

        console.note(retold(result["refit"]))
    if result["stopped"] == "asked":
        console.note(f"resume with: monge fit --resume {run.folder}")
    result = {
        "run": str(run.folder),
        "steps": result["step"],
        "seconds": result["seconds"],
        "stopped": result["stopped"],
        "held_out": held or None,
        "findings": [vars(finding) for finding in findings],
    }
    if result.get("refit"):
        result["refit"] = result["refit"]
    score = (
        f"held out {held['value']:.4f} ± {held['stderr']:.4f} {held['unit']} ({held['kind']})  "
        if held
        else ""
    )
    console.result(result, f"{score}{run.folder}")
