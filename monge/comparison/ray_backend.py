"""Run the fits of a comparison or of a search on several machines with Ray.

Each fit is a task that starts processes on its machine and asks Ray for their CPU threads, and for
a GPU each if the cluster has any. All machines see the folder of the comparison and the data under
the same path. If a machine is lost, Ray starts its tasks again on another, and their fits go on
from their checkpoints; finished fits are not repeated.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir
from pathlib import Path
from typing import Any

from ..core.errors import RunError, UsageError
from ..run import storage
from .runner import RESULTS, STOP_SECONDS, Comparison, FitProcesses, Outcome, cores

LOCAL = "local"
RETRIES = 5
"""Machines that a fit may lose before it counts as failed."""
LOCK_SECONDS = STOP_SECONDS + 10
"""Seconds that a fit has to leave its folder after the task that started it was lost."""


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to Ray, and the tasks started on it; `address` is that of a cluster, auto for
    the one this machine is part of, local for this machine alone."""

    def __init__(self, address: str, threads: int, workers: int = 1) -> None:
        self.ray, self.address = library(), address
        self.cpus, self.workers = threads * workers, workers
        self.tasks: list[Any] = []
        self.empty = tempfile.TemporaryDirectory()
        connect(self.ray, self.address, self.empty.name)
        known = self.resources
        self.gpus = self.workers if known.get("GPU", 0) else 0
        if self.cpus > known.get("CPU", 0) or self.gpus > known.get("GPU", 0):
            found, gpus = known.get("CPU", 0), f" and {self.gpus} GPUs" if self.gpus else ""
            self.__exit__()
            raise UsageError(
                f"expected a cluster with {self.cpus} CPUs{gpus} for each fit, found {found:g} "
                f"CPUs and {known.get('GPU', 0):g} GPUs at {self.address}; use fewer --threads or "
                "--workers, or add machines"
            )

    def __exit__(self, *error: object) -> None:
        for task in self.tasks:
            self.ray.cancel(task, force=True)
        self.ray.shutdown()
        self.empty.cleanup()

    @property
    def resources(self) -> dict[str, float]:
        return dict(self.ray.cluster_resources())

    @property
    def slots(self) -> int:
        """Fits that the machines of the cluster can run at a time, at least 1."""
        found = self.resources
        by_gpu = found.get("GPU", 0) // self.gpus if self.gpus else float("inf")
        return max(int(min(found.get("CPU", 0) // self.cpus, by_gpu)), 1)

    def submit(self, arguments: Sequence[str], run: Path) -> Any:
        """Start a fit in the folder `run`; `arguments` are those of its process."""
        task = self.ray.remote(run_task).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES
        )
        known = {name: value for name, value in os.environ.items() if name.startswith("MONGE_")}
        started = task.remote([*arguments], str(run.resolve()), os.getcwd(), known)
        self.tasks.append(started)
        return started

    def wait(self, tasks: Sequence[Any], seconds: float | None = None) -> list[Any]:
        """Those of the tasks that have ended, once one has or the seconds are over."""
        ended, _ = self.ray.wait([*tasks], num_returns=1, timeout=seconds)
        return list(ended)

    def failure(self, task: Any) -> str | None:
        """Why a task that has ended failed, if it did."""
        self.tasks.remove(task)
        try:
            found: str | None = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            return f"its machine was lost ({first_line(error)}); run the same command again"
        return found


def run(
    comparison: Comparison, address: str, threads: int = 1, workers: int = 1
) -> Generator[Outcome, None, None]:
    """Run all fits of a comparison and yield each as it ends."""
    with Cluster(address, threads, workers) as cluster:
        waiting = {}
        for model, seed in comparison.plan.jobs:
            folder = comparison.run_folder(model, seed)
            if (folder / RESULTS).exists():
                yield Outcome(model, seed, folder)
                continue
            arguments = comparison.arguments(model, seed, threads, workers)
            waiting[cluster.submit(arguments, folder)] = Outcome(model, seed, folder)
        while waiting:
            for task in cluster.wait(list(waiting)):
                ended = waiting.pop(task)
                yield Outcome(ended.model, ended.seed, ended.run, cluster.failure(task))


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


def stop_file(run: Path) -> Path:
    """A file that asks the fit in the folder `run` to stop, on whatever machine it is."""
    return run.with_name(f".{run.name}.stop")


def run_task(
    arguments: list[str], run: str, cwd: str, environment: Mapping[str, str]
) -> str | None:
    """Run the process of one fit on this machine, in the folder `cwd` if it exists; returns why it
    failed, if it did."""
    folder, processes = Path(run), FitProcesses()
    wait_until_free(folder)
    found: list[str | None] = []
    here = cwd if os.path.isdir(cwd) else None
    fit = threading.Thread(
        target=lambda: found.append(processes.run(arguments, cwd=here, environment=environment))
    )
    fit.start()
    while fit.is_alive():
        fit.join(0.2)
        if stop_file(folder).exists():
            processes.stop()
    return found[0]


def wait_until_free(folder: Path) -> None:
    """Wait for a fit whose task was lost, which stops by itself and saves a checkpoint."""
    end = time.monotonic() + LOCK_SECONDS
    while storage.is_locked(folder / ".lock") and time.monotonic() < end:
        time.sleep(0.2)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
