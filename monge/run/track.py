"""Progress of a fit in TensorBoard, MLflow or Weights & Biases, as it is made.

A tracker takes the numbers of each report: the terms of the loss, the held-out metric, learning
rate, epoch and speed; at the end it takes the held-out metric of the weights that are kept. The
log of the run has them too (`run.history`).
"""

from __future__ import annotations

import importlib
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from ..core.errors import RunError, UsageError, nearest
from ..train.loop import Progress

if TYPE_CHECKING:
    from collections.abc import Generator

    from .run import Run

PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
"""The package of each tracker."""
Write = Callable[[Mapping[str, float], int], None]


def check_tracker(name: str) -> None:
    """Refuse a tracker that is not known or whose package is not installed."""
    if name not in PACKAGES:
        raise UsageError(f"expected a tracker, found {name!r}{nearest(name, PACKAGES)}")
    try:
        importlib.import_module(PACKAGES[name])
    except ImportError as error:
        how = "install monge[track]" if name == "tensorboard" else f"pip install {PACKAGES[name]}"
        raise UsageError(
            f"expected the package {PACKAGES[name]} to track with {name}, found none; {how}"
        ) from error


def tracked(
    steps: Generator[Progress, None, None] | Iterator[Progress], run: Run, name: str
) -> Iterator[Progress]:
    """The steps of a fit, each written to the tracker before it is passed on."""
    with closing(steps) as steps, ExitStack() as stack:  # type: ignore[type-var]
        try:
            write = stack.enter_context(TRACKERS[name](run))
        except Exception as error:  # of a client, whatever it raises
            raise RunError(
                f"{name} cannot track {run.folder} ({textwrap.shorten(str(error), 200)}); set it "
                f"up, then continue with --resume {run.folder}, or fit without --track"
            ) from error
        step = None
        for progress in steps:
            step = progress.step
            write(values(progress), step)
            yield progress
        if step is not None and (best := run.result["held_out"]):
            write({f"best/{best['kind']}": best["value"]}, step)


def values(progress: Progress) -> dict[str, float]:
    """The numbers of a report by name."""
    found = {"lr": progress.lr, "epoch": progress.epoch, "steps_per_second": progress.speed}
    found |= {f"loss/{name}": value for name, value in progress.terms.items()}
    found |= {f"gradient_norm/{name}": value for name, value in progress.norms.items()}
    if progress.held_out is not None:
        found[f"held_out/{progress.held_out.kind}"] = progress.held_out.value
    return found


def settings(run: Run) -> dict[str, Any]:
    """The settings of a run by name."""
    config, train = run.metadata["config"], run.metadata["train"]
    named = {name: value for name, value in config.items() if name != "is"}
    named |= {f"train.{name}": value for name, value in train.items() if name != "is"}
    return {"model": run.metadata["model"], "data": run.metadata["data"]["name"]} | named


@contextmanager
def tensorboard(run: Run) -> Iterator[Write]:
    """Event files in the folder of the run: `tensorboard --logdir runs`."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(logdir=str(run.folder / "tensorboard"))

    def write(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    try:
        yield write
    finally:
        writer.close()


@contextmanager
def mlflow(run: Run) -> Iterator[Write]:
    """A run of MLflow, where its own settings (MLFLOW_TRACKING_URI) say."""
    client = importlib.import_module("mlflow")
    with client.start_run(run_name=run.folder.name):
        client.log_params({name: str(value)[:500] for name, value in settings(run).items()})
        yield lambda numbers, step: client.log_metrics(dict(numbers), step=step)


@contextmanager
def wandb(run: Run) -> Iterator[Write]:
    """A run of Weights & Biases in the project `monge`, or in that of WANDB_PROJECT."""
    client = importlib.import_module("wandb")
    project = os.environ.get("WANDB_PROJECT", "monge")
    found = client.init(name=run.folder.name, project=project, config=settings(run))
    try:
        yield lambda numbers, step: found.log(dict(numbers), step=step)
    finally:
        found.finish()


TRACKERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
