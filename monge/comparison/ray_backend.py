"""Run the fits of a comparison on several machines with Ray.

Each fit is a task that starts a process on its machine. All machines see the comparison's folder
and the data under the same path; finished fits are not repeated.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Generator
from contextlib import chdir
from pathlib import Path
from typing import Any

from ..core.errors import RunError, UsageError
from .runner import Comparison, Outcome, cores

LOCAL = "local"


def run(comparison: Comparison, address: str, threads: int = 1) -> Generator[Outcome, None, None]:
    """Run all fits and yield each as it ends; `address` is that of a cluster, auto for the one
    this machine is part of, local for this machine alone."""
    ray = library()
    where, here = str(comparison.folder.resolve()), os.getcwd()
    with tempfile.TemporaryDirectory() as empty:
        connect(ray, address, empty)
        task = ray.remote(run_task).options(num_cpus=threads, max_retries=1)
        waiting = {
            task.remote(where, model, seed, threads, here): (model, seed)
            for model, seed in comparison.plan.jobs
        }
        try:
            while waiting:
                (done, *_), _ = ray.wait(list(waiting), num_returns=1)
                model, seed = waiting.pop(done)
                yield outcome(ray, done, comparison, model, seed)
        finally:
            for each in waiting:
                ray.cancel(each, force=True)
            ray.shutdown()


def connect(ray: Any, address: str, empty: str) -> None:
    """Connect to Ray from the folder `empty`: Ray puts the folder in which it is initialised first
    on the path of its workers, and no file of the current folder may be imported as a module."""
    options: dict[str, Any] = {"address": address}
    if address == LOCAL:
        options = {"num_cpus": cores()}
        if known := [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]:
            whole = os.pathsep.join(map(os.path.abspath, known))  # workers start in another folder
            options["runtime_env"] = {"env_vars": {"PYTHONPATH": whole}}
    try:
        with chdir(empty):
            ray.init(**options, log_to_driver=False, include_dashboard=False)
    except Exception as error:  # Ray raises Exception itself if a node does not start
        raise RunError(
            f"cannot connect to a Ray cluster at {address} ({first_line(error)}); "
            "start one with `ray start --head`, or use --jobs on this machine"
        ) from error


def library() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            "--ray needs the package ray, which is not installed; "
            "pip install 'monge[ray]', or use --jobs on this machine"
        ) from error


def run_task(where: str, model: str, seed: int, threads: int, cwd: str) -> str | None:
    """Fit and evaluate one model on this machine, in the folder `cwd` if it exists; returns
    why it failed, if it did."""
    here = cwd if os.path.isdir(cwd) else None
    return Comparison.read(Path(where)).run_job(model, seed, threads, cwd=here).failure


def outcome(ray: Any, task: Any, comparison: Comparison, model: str, seed: int) -> Outcome:
    """The outcome of a task; losing a machine fails its own fit only."""
    try:
        failure = ray.get(task)
    except ray.exceptions.RayError as error:
        failure = f"its machine was lost ({first_line(error)}); run the same command again"
    return Outcome(model, seed, comparison.run_folder(model, seed), failure)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
