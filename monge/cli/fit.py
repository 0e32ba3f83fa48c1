"""Train a model on data and save it as a run

Ctrl-C saves a checkpoint and prints how to resume; a run killed at any moment can be resumed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import UsageError
from ._cost import describe_cost
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
    help="Model this field (or these columns jointly) given all others.",
)
@click.option(
    "--ensemble",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Train an ensemble of N models and average their densities.",
)
@click.option(
    "--bag", is_flag=True, help="Train each member on a bootstrap sample of the training rows."
)
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the new run.")
@click.option("--resume", metavar="RUN", help="Resume this run; MODEL and DATA come from it.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Measure parameters, memory and time per step, print what the budget allows, and stop: "
    "nothing is trained or saved.",
)
@click.option(
    "--budget", help="90s, 5m, 500steps or 3epochs; +60s adds to a resumed run.  [default: 2m]"
)
@click.option("--seed", default=0, show_default=True, help="Same seed, same weights.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp32", "bf16"]),
    default="auto",
    show_default=True,
    help="Precision of the losses; auto is fp32 for a new run and the run's own with --resume. "
    "Log-likelihoods are always fp32.",
)
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: torch decides."
)
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="Use torch.compile for the losses: slow to start, faster for long fits.",
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
    dry_run: bool,
    budget: str | None,
    seed: int,
    device: str,
    precision: str,
    threads: int,
    compiled: bool,
) -> None:
    """Train MODEL on DATA (a built-in name, a file or a folder).

    Override any setting with KEY=VALUE: width=64 (model), train.lr=1e-3 (training), data.seed=1
    (data). `monge models MODEL` lists the settings of a model.
    """
    from ..run import run as runs
    from ..train.budget import Budget
    from ..train.device import ComputeConfig

    budget = runs.BUDGET if budget is None else budget
    Budget.read(budget)
    compute = ComputeConfig(device, precision, threads, compiled)
    if resume:
        extra = [*filter(None, (model, data, *settings)), *given, *target]
        extra += ["--out"] * bool(out) + ["--ensemble"] * bool(ensemble) + ["--bag"] * bag
        if extra:
            raise UsageError(
                f"--resume takes the model and data from the run; remove {str(extra[0])!r} "
                "(only --budget and device options are allowed)"
            )
        run = runs.load(resume, compute)
    elif model is None or data is None:
        raise UsageError("fit needs MODEL and DATA; `monge models` and `monge data` list them")
    else:
        options: dict[str, Any] = {
            "given": given,
            "target": target,
            "ensemble": ensemble,
            "bag": bag,
            "seed": seed,
            "compute": compute,
        }
        if dry_run:
            with tempfile.TemporaryDirectory() as scratch:
                out = Path(scratch) / "run"
                trial = runs.start(model, data, *settings, **options, out=out, budget=budget)
                print_cost(console, trial, budget)
            return
        run = runs.start(model, data, *settings, **options, out=out, budget=budget)
    if dry_run:
        print_cost(console, run, budget)
        return
    train(console, run, budget)
    report(console, run)


def print_cost(console: Console, run: Run, budget: str) -> None:
    """The measured cost of a fit: parameters, memory, time, and what the budget allows."""
    from ..train.budget import Budget

    cost = run.estimate_cost(timed=True)
    steps = cost.steps(Budget.read(budget))
    result = cost.to_dict() | {
        "budget": budget,
        "steps": steps,
        "epochs": steps / cost.epoch_steps,
    }
    console.result(result, describe_cost(cost, budget))


def train(console: Console, run: Run, budget: str) -> None:
    """Train with a progress bar on a terminal, or a line per held-out evaluation elsewhere."""
    console.note(f"{run.title}: {run.space}, {run.space.rows} training rows")
    if not console.quiet:
        console.note(describe_cost(run.cost, budget))
    console.note(f"budget {budget}, plus plots and diagnostics; run directory {run.folder}")
    for note in run.notes:
        console.note(note)
    if console.verbose:
        settings = run.metadata["config"] | {
            f"train.{k}": v for k, v in run.metadata["train"].items()
        }
        console.note(
            console.table(
                ("setting", "value"),
                [[name, value] for name, value in settings.items() if not name.endswith("is")],
                err=True,
            )
        )
    bar = ProgressBar() if console.is_interactive else None
    try:
        for progress in run.train(budget):
            if bar:
                bar.show(progress)
            elif progress.held_out:
                console.note(line(progress))
    finally:
        if bar:
            bar.close()


def line(progress: Progress) -> str:
    """The progress of training in one line."""
    loss = sum(progress.terms.values()) if progress.terms else float("nan")
    held = progress.held_out
    score = f"held out {held.value:.4f}{' *' if progress.best else ''}  " if held else ""
    return (
        f"step {progress.step:>7}  epoch {progress.epoch:>6.1f}  loss {loss:>10.4f}  "
        f"{score}{progress.speed:.0f} steps/s  {progress.seconds:.0f} s"
    )


class ProgressBar:
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


STOP_REASONS = {
    "budget": "the budget is used up",
    "patience": "the held-out score stopped improving",
    "complete": "the fit is complete",
    "asked": "interrupted",
    "refit": "the refit is complete",
}


def report(console: Console, run: Run) -> None:
    """Write the plots and print diagnostics, the reason for stopping and the held-out score."""
    from ..run.diagnostics import sentence
    from ..run.figures import write_figures

    result = run.result
    held: dict[str, Any] = result["held_out"] or {}
    write_figures(run)
    findings = run.diagnose()
    for finding in findings:
        console.note(sentence(finding))
    steps = f"{result['step']} step{'s' * (result['step'] != 1)}"
    if (epochs := max((entry["epoch"] for entry in run.log), default=1.0)) < 1:
        steps += f", {epochs:.2g} of an epoch,"
    console.note(
        f"stopped after {steps} and {result['seconds']:.1f} s: "
        f"{STOP_REASONS.get(result['stopped'], result['stopped'])}"
    )
    if result.get("refit"):
        from ..run.model_card import refit_summary

        console.note(refit_summary(result["refit"]))
    if result["stopped"] == "asked":
        console.note(f"resume with: monge fit --resume {run.folder}")
    summary = {
        "run": str(run.folder),
        "steps": result["step"],
        "seconds": result["seconds"],
        "stopped": result["stopped"],
        "held_out": held or None,
        "findings": [vars(finding) for finding in findings],
    }
    if result.get("refit"):
        summary["refit"] = result["refit"]
    score = (
        f"held out {held['value']:.4f} ± {held['stderr']:.4f} {held['unit']} ({held['kind']})  "
        if held
        else ""
    )
    console.result(summary, f"{score}{run.folder}")
