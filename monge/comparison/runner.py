"""One data set, many laws: each fitted with the same budget on the same rows, and judged on rows
that none has seen.

A comparison is a folder: compare.json says what is compared, each entrant is a run folder in it,
and report.html tells of all. An entrant is a process of its own, so that one that fails takes
nobody with it; what is done is never done again, so that a comparison that was cut goes on.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.errors import RunError
from ..run import storage
from ..train.loop import terminable
from .plan import Plan, tupled

FILE = "compare.json"
RESULTS = "judged.json"
"""In an entrant's folder, once it is fitted and judged."""
BUDGET = "60s"
GRACE = 20.0
"""Seconds that an entrant has to save what it did, once it is asked to stop."""
COMMAND = (sys.executable, "-P", "-m", "monge.comparison.worker")
"""With -P no file of the current folder is mistaken for a module; PYTHONPATH counts as ever."""


@dataclass(frozen=True)
class Started:
    """An entrant is about to be trained, and that will cost this much."""

    model: str
    seed: int
    cost: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What came of one entrant: where its run is, or the sentence of its failure."""

    model: str
    seed: int
    run: Path
    failure: str | None = None


Report = Callable[[Started], None]


class Comparison:
    """A plan and the folder where it is carried out."""

    def __init__(self, plan: Plan, where: Path) -> None:
        self.plan, self.folder = plan, where
        self.running: set[subprocess.Popen[str]] = set()
        self.guard, self.stopping = threading.Lock(), False

    @classmethod
    def begin(cls, plan: Plan, out: Path | None = None) -> Comparison:
        """In a new folder, or where the same comparison was cut."""
        source = Path(plan.data).stem or plan.data
        where = out or storage.named(f"compare-{source}")
        if (where / FILE).exists():
            known = cls.read(where).plan
            if not known.same(plan):
                raise RunError(
                    f"{where} compares {known.data} with budget {known.budget} and "
                    "other words; give --out another name"
                )
            if known.fingerprint and known.fingerprint != plan.fingerprint:
                raise RunError(
                    f"{plan.data} has changed since the comparison in {where} was "
                    "started; restore it, or give --out another name"
                )
        where.mkdir(parents=True, exist_ok=True)
        storage.write(where / FILE, json.dumps(storage.stamped(asdict(plan)), indent=1) + "\n")
        return cls(plan, where)

    @classmethod
    def read(cls, where: Path) -> Comparison:
        return cls(Plan(**tupled(storage.read(where, FILE))), where)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of the entrants that are done."""
        every = [
            Outcome(model, seed, self.place(model, seed)) for model, seed in self.plan.entrants
        ]
        return [outcome for outcome in every if (outcome.run / RESULTS).exists()]

    def place(self, model: str, seed: int) -> Path:
        return self.folder / self.plan.title(model, seed)

    def run(self, jobs: int = 1) -> Generator[Started | Outcome, None, None]:
        """Each entrant as it begins and as it ends; `jobs` at a time share the machine's cores.
        Ctrl-C, SIGTERM and closing the iterator stop those that run, which keep what they did."""
        threads, self.stopping = max(cores() // jobs, 1), False
        told: queue.Queue[Started | Future[Outcome]] = queue.Queue()
        with terminable(), ThreadPoolExecutor(jobs) as pool:
            try:
                left = [
                    pool.submit(self.enter, model, seed, threads, told.put)
                    for model, seed in self.plan.entrants
                ]
                for each in left:
                    each.add_done_callback(told.put)
                while left:
                    event = awaited(told)
                    if isinstance(event, Started):
                        yield event
                    else:
                        left.remove(event)
                        yield event.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()

    def enter(
        self,
        model: str,
        seed: int,
        threads: int,
        tell: Report = lambda _: None,
        cwd: str | None = None,
    ) -> Outcome:
        """Fit and judge one in a process of its own, unless that is done; `cwd` is the folder that
        relative paths start from."""
        run = self.place(model, seed)
        if (run / RESULTS).exists():
            return Outcome(model, seed, run)
        words = [*COMMAND, str(self.folder), model, str(seed), str(threads)]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
            with self.guard:
                if self.stopping:
                    return Outcome(model, seed, run, "stopped before it began")
                child = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                    cwd=cwd,
                )
                self.running.add(child)
            assert child.stdout
            for line in child.stdout:  # the first is its cost, the others nobody waits for
                if line.startswith("{"):
                    tell(Started(model, seed, json.loads(line)))
            code = child.wait()
            self.running.discard(child)
            errors.seek(0)
            said = errors.read().strip().splitlines() or [f"ended with code {code}"]
        return Outcome(model, seed, run, said[-1] if code else None)

    def stop(self) -> None:
        """Ask those that run to save and leave: they do when their standard input ends, as it also
        does when this process is killed. Who does not in time is killed."""
        with self.guard:
            self.stopping = True
        for child in list(self.running):
            assert child.stdin
            child.stdin.close()
        for child in list(self.running):
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                child.kill()


def awaited(told: queue.Queue[Any]) -> Any:
    """What is told next; every now and then Python may look whether it was interrupted."""
    while True:
        try:
            return told.get(timeout=0.5)
        except queue.Empty:
            continue


def cores() -> int:
    """Cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
