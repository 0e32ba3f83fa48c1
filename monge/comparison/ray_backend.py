"""The entrants of a comparison on several machines, by Ray.

Each is a task that starts the entrant's process where it is put. All machines see the
comparison's folder and the data under the same path; what one has done, none does again.
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
    """Each entrant as it ends; `address` is that of a cluster, auto for the one this machine is
    part of, local for this machine alone."""
    ray = library()
    where, here = str(comparison.folder.resolve()), os.getcwd()
    with tempfile.TemporaryDirectory() as empty:
        join(ray, address, empty)
        task = ray.remote(entered).options(num_cpus=threads, max_retries=1)
        waiting = {
            task.remote(where, model, seed, threads, here): (model, seed)
            for model, seed in comparison.plan.entrants
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


def join(ray: Any, address: str, empty: str) -> None:
    """Begin a Ray job whose workers take no file of the current folder for a module. Ray puts the
    folder in which it is initialised first on the path of its workers, whatever they are asked:
    it is an empty one."""
    joined: dict[str, Any] = {"address": address}
    if address == LOCAL:
        joined = {"num_cpus": cores()}
        if known := [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]:
            whole = os.pathsep.join(map(os.path.abspath, known))  # workers start in another folder
            joined["runtime_env"] = {"env_vars": {"PYTHONPATH": whole}}
    try:
        with chdir(empty):
            ray.init(**joined, log_to_driver=False, include_dashboard=False)
    except Exception as error:  # Ray raises the plain class where a node does not start
        raise RunError(
            f"there is no Ray cluster at {address} ({told(error)}); "
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


def entered(where: str, model: str, seed: int, threads: int, cwd: str) -> str | None:
    """Fit and judge one entrant on the machine that this runs on, in the folder `cwd` if it has
    that; the sentence of its failure."""
    here = cwd if os.path.isdir(cwd) else None
    return Comparison.read(Path(where)).enter(model, seed, threads, cwd=here).failure


def outcome(ray: Any, task: Any, comparison: Comparison, model: str, seed: int) -> Outcome:
    """What came of a task; a machine that was lost costs its entrant alone."""
    try:
        failure = ray.get(task)
    except ray.exceptions.RayError as error:
        failure = f"its machine was lost ({told(error)}); compare again"
    return Outcome(model, seed, comparison.place(model, seed), failure)


def told(error: Exception) -> str:
    """The first line of what an error says, or what it is called where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
