"""Run a comparison: each model is fitted with the same budget on the same rows and evaluated on
test rows.

A comparison is a folder: compare.json holds its plan, each fit is a run folder in it, and
report.html describes all. Every fit is a process of its own, so that a failure does not affect the
others; finished fits are not repeated, so that an interrupted comparison can be continued.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import RunError, shown
from ..core.metric import Metric
from ..run import storage
from ..run.saved import naming_file
from ..train.loop import terminable
from .plan import ComparisonPlan, with_tuples

FILE = "compare.json"
RESULTS = "metrics.json"
"""Metrics in the folder of a fit, once it is fitted and evaluated."""
BUDGET = "60s"
STOP_SECONDS = 20.0
"""Seconds that a process has to save a checkpoint once it is asked to stop."""
COMMAND = (sys.executable, "-P", "-m", "monge.comparison.worker")
"""With -P files of the current folder are not imported as modules; PYTHONPATH still applies."""


@dataclass(frozen=True)
class JobStarted:
    """A fit is about to start, with its estimated cost."""

    model: str
    seed: int
    cost: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fit: its run folder, or why it failed."""

    model: str
    seed: int
    run: Path
    failure: str | None = None


Report = Callable[[JobStarted], None]


KEYS: dict[str, tuple[type, ...]] = {
    "data": (str,),
    "settings": (list,),
    "models": (list,),
    "budget": (str,),
    "seeds": (int,),
    "given": (list,),
    "target": (list,),
    "refused": (dict,),
    "fingerprint": (str,),
}
"""What compare.json holds, with its types."""
MAX_SEEDS, MAX_TITLE = 10**4, 240
"""The most fits per model, and bytes of a folder's name."""


def read_results(run: Path) -> dict[str, Any]:
    """What is saved about a fit: its metrics, seconds and cost."""
    found = storage.read(run, RESULTS)
    storage.check_types(run / RESULTS, found, {"metrics": (dict,), "seconds": (float, int)})
    storage.check_types(run / RESULTS, {"cost": {}, **found}, {"cost": (dict,)})
    with naming_file(run / RESULTS):
        metrics = {name: Metric.from_dict(saved) for name, saved in found["metrics"].items()}
    return {**found, "metrics": metrics}


class FitProcesses:
    """Processes of `monge.comparison.worker`, which stop together."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[str]] = set()
        self.guard, self.stopping = threading.Lock(), False

    def run(
        self,
        arguments: Sequence[str],
        on_line: Callable[[str], None] = lambda _: None,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str | None:
        """Run one to its end; why it failed, if it did. `cwd` is the folder that relative paths
        start from, `environment` adds to that of this process."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
            with self.guard:
                if self.stopping:
                    return "stopped before it started"
                child = subprocess.Popen(
                    [*COMMAND, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                    cwd=cwd,
                    env={**os.environ, **(environment or {})},
                )
                self.running.add(child)
            assert child.stdout
            for line in child.stdout:
                on_line(line)
            code = child.wait()
            self.running.discard(child)
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"ended with code {code}"]
        return lines[-1] if code else None

    def stop(self) -> None:
        """Ask running fits to save and exit: they do when their standard input ends, which also
        happens if this process is killed. A fit that does not exit in time is killed."""
        with self.guard:
            self.stopping = True
        for child in list(self.running):
            assert child.stdin
            child.stdin.close()
        for child in list(self.running):
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()


class Comparison:
    """A plan and the folder of its runs."""

    def __init__(self, plan: ComparisonPlan, where: Path) -> None:
        self.plan, self.folder = plan, where
        self.processes = FitProcesses()

    @classmethod
    def create(
        cls, plan: ComparisonPlan, out: Path | None = None, wanted: Path | None = None
    ) -> Comparison:
        """In a new folder, or in that of the same comparison if it was interrupted. Without `out`
        it has the name `wanted`, by default that of the data, and a number if that holds another
        comparison."""
        if out is not None:
            where = out
            if why := cls.refusal(plan, where):
                raise RunError(f"{why}; choose another --out")
        else:
            first = wanted or storage.default_path(f"compare-{Path(plan.data).stem or plan.data}")
            where = next(
                place for place in storage.candidates(first) if not cls.refusal(plan, place)
            )
        storage.check_writable_name(where)
        where.mkdir(parents=True, exist_ok=True)
        with storage.locked(where):
            content = json.dumps(storage.with_format(asdict(plan)), indent=1) + "\n"
            storage.write(where / FILE, content)
        return cls(plan, where)

    @classmethod
    def refusal(cls, plan: ComparisonPlan, where: Path) -> str:
        """Why a comparison cannot go on in a folder: it holds another; empty if it can."""
        if (where / "run.json").exists():
            return f"{where} is a run"
        if not (where / FILE).exists():
            return ""
        known = cls.read(where).plan
        if not known.is_compatible(plan):
            return (
                f"{where} holds a comparison on {known.data} with budget {known.budget} and other "
                "settings"
            )
        if known.fingerprint and known.fingerprint != plan.fingerprint:
            return f"{plan.data} has changed since the comparison in {where} started"
        return ""

    @classmethod
    def read(cls, where: Path) -> Comparison:
        """The comparison in a folder; RunError if its file is none that this version writes."""
        saved = storage.read(where, FILE)
        storage.check_types(where / FILE, saved, KEYS)
        with naming_file(where / FILE):
            lists = [saved[key] for key, kinds in KEYS.items() if list in kinds]
            words = [*chain(*lists), *saved["refused"].values()]
            if not all(isinstance(word, str) for word in words):
                raise ValueError("expected text in its lists")
            if not 1 <= saved["seeds"] <= MAX_SEEDS:
                raise ValueError(f"expected 1 to {MAX_SEEDS} seeds, found {shown(saved['seeds'])}")
            plan = ComparisonPlan(**with_tuples(saved))
            for model in plan.models:
                title = plan.title(model, 0)
                if Path(title).name != title or len(os.fsencode(title)) > MAX_TITLE:
                    raise ValueError(f"expected the name of a model, found {shown(model)}")
        return cls(plan, where)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of finished fits."""
        every = [
            Outcome(model, seed, self.run_folder(model, seed)) for model, seed in self.plan.jobs
        ]
        return [outcome for outcome in every if (outcome.run / RESULTS).exists()]

    def run_folder(self, model: str, seed: int) -> Path:
        return self.folder / self.plan.title(model, seed)

    def run(
        self, jobs: int = 1, threads: int = 0, workers: int = 1
    ) -> Generator[JobStarted | Outcome, None, None]:
        """Run all fits and yield each as it starts and ends; `jobs` at a time have `workers`
        processes each with `threads` CPU threads, or share the cores if that is 0, with as many
        threads as OMP_NUM_THREADS allows.
        Ctrl-C, SIGTERM and closing the iterator stop the running fits, which save a checkpoint."""
        threads = threads or threads_each(jobs * workers)
        self.processes = FitProcesses()
        events: queue.Queue[JobStarted | Future[Outcome]] = queue.Queue()
        with terminable(), ThreadPoolExecutor(jobs) as pool:
            try:
                left = [
                    pool.submit(self.run_job, model, seed, threads, workers, events.put)
                    for model, seed in self.plan.jobs
                ]
                for each in left:
                    each.add_done_callback(events.put)
                while left:
                    event = next_event(events)
                    if isinstance(event, JobStarted):
                        yield event
                    else:
                        left.remove(event)
                        yield event.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.processes.stop()

    def run_job(
        self,
        model: str,
        seed: int,
        threads: int,
        workers: int = 1,
        on_start: Report = lambda _: None,
    ) -> Outcome:
        """Fit and evaluate one model in processes of its own, unless that is done."""
        run = self.run_folder(model, seed)
        if (run / RESULTS).exists():
            return Outcome(model, seed, run)

        def read_cost(line: str) -> None:  # the first line is its cost; others are ignored
            if line.startswith("{"):
                on_start(JobStarted(model, seed, json.loads(line)))

        failure = self.processes.run(self.arguments(model, seed, threads, workers), read_cost)
        return Outcome(model, seed, run, failure)

    def arguments(self, model: str, seed: int, threads: int, workers: int) -> list[str]:
        """What the process of one fit is told."""
        return [str(self.folder.resolve()), model, str(seed), str(threads), str(workers)]


def next_event(events: queue.Queue[Any]) -> Any:
    """The next event; waits in short intervals so that signals are handled."""
    while True:
        try:
            return events.get(timeout=0.5)
        except queue.Empty:
            continue


def threads_each(processes: int) -> int:
    """CPU threads of each of some processes at a time: they share the cores, with as many threads
    as OMP_NUM_THREADS allows."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    most = int(allowed) if allowed.isdecimal() and int(allowed) else cores()
    return max(min(most, cores() // processes), 1)


def cores() -> int:
    """Number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
