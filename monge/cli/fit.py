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
from ..train.cost_description import describe_cost
from . import _config_file
from ._output import SEED, THREADS, Console, Output, common, gather_files

if TYPE_CHECKING:
    from ..run.run import Run


def config_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Any:
    """The content of the file of settings, if one is named."""
    return _config_file.set_defaults(context, path) if path else {}


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
@click.option("--seed", type=SEED, default=0, show_default=True, help="Same seed, same weights.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp32", "bf16"]),
    default="auto",
    show_default=True,
    help="Precision of the losses; auto is fp32 for a new run and the run's own with --resume. "
    "Log-likelihoods are always fp32.",
)
@click.option("--threads", type=THREADS, default=0, help="CPU threads; 0: torch decides.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes on this machine that train together, each on its part of every batch; they "
    "share the cores. On several machines: torchrun ... -m monge fit ...",
)
@click.option(
    "--shard",
    is_flag=True,
    help="Cut weights, gradients and moments over the processes, for a model that one of them "
    "cannot hold.",
)
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="Use torch.compile for the losses: slow to start, faster for long fits.",
)
@click.option(
    "--track",
    type=click.Choice(["tensorboard", "mlflow", "wandb"]),
    help="Also write the progress there: event files in the run directory (extra track), or by "
    "the client of MLflow or Weights & Biases.",
)
@click.option(
    "--config",
    "stored",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    is_eager=True,
    callback=config_file,
    metavar="FILE",
    help="Take MODEL, DATA, options and settings from this YAML file; what is typed comes first.",
)
@click.option(
    "--save-config",
    type=Output(".yaml", ".yml"),
    metavar="FILE",
    help="Write MODEL, DATA, options and settings to this file, for --config.",
)
@common
@click.pass_context
def command(
    context: click.Context,
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
    workers: int,
    shard: bool,
    compiled: bool,
    track: str | None,
    stored: dict[str, Any],
    save_config: Path | None,
) -> None:
    """Train MODEL on DATA (a built-in name, a file or a folder).

    Override any setting with KEY=VALUE: width=64 (model), train.lr=1e-3 (training), data.seed=1
    (data). `monge models MODEL` lists the settings of a model.
    """
    from ..run import run as runs
    from ..run.saved import ComputeConfig
    from ..run.track import check_tracker
    from ..train import distributed
    from ..train.budget import Budget

    if stored and not resume:
        words = [word for word in (model, data, *settings) if word is not None]
        model, data, settings = _config_file.merge(stored, words)
    if save_config and model and data:
        given_options = {
            key: context.params[name]
            for key, name in _config_file.OPTIONS.items()
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        }
        _config_file.write(save_config, model, data, settings, given_options)
        console.note(f"settings written to {save_config}")
    if track:
        check_tracker(track)
    budget = runs.BUDGET if budget is None else budget
    Budget.read(budget)
    if workers > 1 and not dry_run:
        arguments = [*filter(None, (model, data)), *settings]
        raise click.exceptions.Exit(launch_workers(context, workers, arguments))
    distributed.stop_with_launcher()
    compute = ComputeConfig(device, precision, threads, compiled, shard)
    if resume:
        extra = [*filter(None, (model, data, *settings)), *given, *target]
        extra += ["--out"] * bool(out) + ["--ensemble"] * bool(ensemble) + ["--bag"] * bag
        extra += ["--config"] * bool(stored)
        if extra:
            raise UsageError(
                f"--resume takes the model and data from the run; remove {str(extra[0])!r} "
                "(only --budget and device options are allowed)"
            )
        run = runs.load(resume, compute)
    elif model is None or data is None:
        raise UsageError("fit needs MODEL and DATA; `monge models` and `monge data` list them")
    else:
        data, settings = gather_files(console, data, settings)
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
    if not distributed.join_workers().is_first:
        for _ in run.train(budget):
            pass
        return
    train(console, run, budget, track)
    report(console, run)


def launch_workers(context: click.Context, workers: int, arguments: list[str]) -> int:
    """Run this command with these arguments as several processes; the exit code."""
    from ..comparison.runner import cores
    from ..train.distributed import launch

    words = [sys.executable, "-P", "-m", "monge", "fit", *arguments]
    for param in context.command.params:
        value = context.params[param.name or ""]
        done = param.name in ("workers", "stored", "save_config")  # here, not in each process
        if done or isinstance(param, click.Argument) or value in (None, False, ()):
            continue
        if value is True:
            words.append(param.opts[-1])
        else:
            for each in value if isinstance(value, tuple) else [value]:
                words += [param.opts[-1], str(each)]
    return launch(words, workers, max(cores() // workers, 1))


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


def train(console: Console, run: Run, budget: str, track: str | None = None) -> None:
    """Train with a progress bar on a terminal, or a line per held-out evaluation elsewhere."""
    from ..run.session import LossUnit, follow
    from ..run.track import tracked

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
    steps = run.train(budget)
    steps = tracked(steps, run, track) if track else steps
    follow(steps, not console.quiet, LossUnit.of(run))


def report(console: Console, run: Run) -> None:
    """Write the plots and print diagnostics, the reason for stopping and the held-out score."""
    from ..run.diagnostics import sentence
    from ..run.figures import write_figures
    from ..run.session import STOP_REASONS, held_out

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
    score = f"held out: {held_out(run, held)}  " if held else ""
    console.result(summary, f"{score}{run.folder}")
