"""One fit of a comparison or of a search as a process, or as several that train together.

    python -m monge.comparison.worker FOLDER MODEL SEED THREADS WORKERS
    python -m monge.comparison.worker --trial FOLDER NUMBER THREADS WORKERS SETTING...

The first fits a model of a comparison, evaluates it and saves the metrics; the second fits a trial
of a search. It prints its cost as a line of JSON before training, and stops when its standard
input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np

from .. import registry
from ..core.abilities import HasLikelihood
from ..core.errors import LostWorkerError, MongeError, RunError
from ..core.files import replacing
from ..core.memory import is_out_of_memory
from ..run import storage
from ..run.figures import write_figures
from ..run.run import Run, load, start
from ..run.saved import ComputeConfig
from ..train.distributed import (
    LAUNCHED,
    join_workers,
    launch,
    stop_with_launcher,
    watch_parent,
)
from .runner import COMMAND, RESULTS, Comparison

ROWS = "rows.npy"
"""log p of every test row, so that models can be compared row by row."""


def run_job(where: Path, model: str, seed: int, threads: int, out: IO[str]) -> None:
    """Start or resume the fit of this model, then evaluate it."""
    plan = Comparison.read(where).plan
    compute, folder = ComputeConfig(threads=threads), where / plan.title(model, seed)
    registry.find(model)  # imports a model file of the user, so that its run can be loaded
    if (folder / "run.json").exists():
        run = load(folder, compute)
    else:
        run = start(
            model,
            plan.data,
            *plan.settings,
            given=plan.given,
            target=plan.target or None,
            seed=seed,
            out=folder,
            compute=compute,
            budget=plan.budget,
        )
    first = join_workers().is_first
    if first:
        out.write(json.dumps(run.cost.to_dict()) + "\n")
        out.flush()
    for _ in run.train(plan.budget):
        pass
    if not first:
        return
    if run.result["stopped"] == "asked":
        raise RunError(
            f"stopped after {run.result['step']} steps; run the same command to continue"
        )
    evaluate(run)


def evaluate(run: Run) -> None:
    """Save every metric on test rows, the log-likelihood of each row, plots and diagnostics."""
    started = time.monotonic()
    write_figures(run)
    run.diagnose()
    scored = run.log_likelihood() if isinstance(run.model, HasLikelihood) else None
    if scored:
        with replacing(run.folder / ROWS) as fresh:
            np.save(fresh, scored.value)
    metrics = run.evaluate(scored=scored)
    per_step = run.result["seconds"] / max(run.result["step"], 1)
    results = {
        "metrics": {name: metric.to_dict() for name, metric in metrics.items()},
        "seconds": run.result["seconds"],
        "steps": run.result["step"],
        "cost": replace(run.cost, seconds_per_step=per_step).to_dict(),
        "judging": time.monotonic() - started,
    }
    storage.write(run.folder / RESULTS, json.dumps(storage.with_format(results), indent=1) + "\n")


def run_trial(where: Path, number: int, threads: int, settings: Sequence[str]) -> None:
    """Start or resume the fit of a trial with these settings."""
    from . import tuning

    plan = tuning.read_plan(where)
    if not plan:
        raise RunError(f"expected {tuning.FILE} in {where}, found none; start the search again")
    folder = tuning.trial_folder(where, number)
    run = tuning.open_run(plan, folder, settings, ComputeConfig(threads=threads))
    for _ in run.train(plan["budget"]):
        pass


def main(args: list[str]) -> int:
    is_trial = args[0] == "--trial"
    where, name, *rest = args[is_trial:]
    threads, workers = map(int, rest[:2] if is_trial else rest[1:3])
    stop_with_parent()
    try:
        if workers > 1 and LAUNCHED not in os.environ:
            return launch([*COMMAND, *args], workers, threads)
        if is_trial:
            run_trial(Path(where), int(name), threads, rest[2:])
        else:
            run_job(Path(where), name, int(rest[0]), threads, sys.stdout)
    except Exception as error:  # its last line is the reason that the comparison gives
        if not isinstance(error, MongeError | OSError) and not is_out_of_memory(error):
            traceback.print_exc()
        if not isinstance(error, LostWorkerError) or join_workers().is_first:  # one says it
            sys.stderr.write(f"{reason(error)}\n")
        return 1
    return 0


def stop_with_parent() -> None:
    """Stop when the standard input ends; of several processes the first stops all."""
    if LAUNCHED in os.environ:
        stop_with_launcher()
    else:
        threading.Thread(target=watch_parent, args=(sys.stdin,), daemon=True).start()


def reason(error: Exception) -> str:
    """Why a fit failed, in one line."""
    if isinstance(error, MongeError):
        return str(error)
    if isinstance(error, OSError):
        return f"cannot open or write {error.filename or 'a file'} ({error.strerror or error})"
    if is_out_of_memory(error):
        return "the system gives no more memory; use fewer --jobs, or a smaller train.batch_size"
    return f"internal error ({' '.join(str(error).split())})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
