"""Jobs of the studio: fits and comparisons, each a process that closing the page does not stop.

A job is a folder in `.jobs` beside the runs, named by its number and what it makes. All studios on
these runs see the same jobs; a job that ended well is forgotten with its folder, as the run tells
the rest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..core.errors import RunError, UsageError
from ..run import storage
from .job import ENDED, LOCK, OUTPUT, RECORD, STARTED

FOLDER = ".jobs"
COMMAND = (sys.executable, "-P", "-m", "monge.studio.job")
"""With -P files of the current folder are not imported as modules; PYTHONPATH still applies."""
ASKED = "asked"
"""A file that says what was asked of a running job: pause or stop."""
STARTING = 15.0
"""Seconds that a new process has to take the lock of its job."""
State = Literal["queued", "running", "ending", "paused", "failed", "lost", "done"]


def home() -> Path:
    return storage.home() / FOLDER


@dataclass(frozen=True)
class Job:
    """A job and its folder."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        return json.loads((self.folder / RECORD).read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        """The folder among the runs that it makes."""
        return self.about["name"]

    @property
    def is_alive(self) -> bool:
        return storage.is_locked(self.folder / LOCK)

    @property
    def state(self) -> State:
        asked = self.read(ASKED)
        if self.is_alive:
            if not (self.folder / STARTED).exists():
                return "queued"
            return "ending" if asked else "running"
        if (self.folder / ENDED).exists():
            code = json.loads((self.folder / ENDED).read_text(encoding="utf-8"))["code"]
            if asked == "pause":
                return "paused"
            return "failed" if code else "done"
        starting = time.time() - self.about["created"] < STARTING
        if starting and not asked and not (self.folder / STARTED).exists():
            return "queued"
        return "paused" if asked == "pause" else "lost"

    @property
    def output(self) -> str:
        return self.read(OUTPUT)

    def read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def sentence(self) -> str:
        """Why it failed, as `monge` says it."""
        lines = [line.removeprefix("monge: ") for line in self.output.splitlines() if line.strip()]
        if self.state == "lost":
            return "the process ended without a word, such as when it is killed; start it again"
        return lines[-1] if lines else "the process ended without a word; start it again"

    def ask(self, what: Literal["pause", "stop"]) -> None:
        """Ask the process to save its state and end; a queued one is forgotten."""
        if self.state == "queued":
            self.kill()
            self.forget()
            return
        if not self.is_alive:
            raise RunError(f"{self.name} is not being fitted; reload the page")
        (self.folder / ASKED).write_text(what, encoding="utf-8")
        self.kill()

    def kill(self) -> None:
        pid = int(self.read("pid") or 0)
        if pid and self.is_alive:
            os.kill(pid, signal.SIGTERM)

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def listing() -> list[Job]:
    """Every job, oldest first; those that ended well are removed."""
    try:
        folders = sorted(path for path in home().iterdir() if (path / RECORD).is_file())
    except OSError:
        return []
    found = []
    for folder in folders:
        job = Job(folder)
        try:
            done = job.state == "done"
        except (OSError, ValueError, KeyError):  # removed or half-written in this instant
            continue
        if done:
            job.forget()
        else:
            found.append(job)
    return found


def find(name: str) -> Job | None:
    """The job that makes this run or comparison."""
    return next((job for job in listing() if job.name == name), None)


def free_name(title: str) -> str:
    """A name for a new folder among the runs, from what it will hold."""
    taken = {job.name for job in listing()}
    for path in storage.candidates(storage.default_path(title)):
        if not path.exists() and path.name not in taken:
            return path.name
    raise AssertionError("there is always another name")


def submit(name: str, args: Sequence[str], **about: Any) -> Job:
    """Start the process of a job; it waits for a slot."""
    for job in listing():
        if job.name == name:
            if job.is_alive or job.state == "queued":
                raise UsageError(f"{name} is being fitted already; wait for it, or stop it")
            job.forget()
    number = f"{time.time_ns():020d}"
    folder = home() / f"{number}-{re.sub(r'[^A-Za-z0-9._+-]', '_', name)[:100]}"
    try:
        folder.mkdir(parents=True)
        record = {"name": name, "args": list(args), "created": time.time(), **about}
        (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
        with open(folder / OUTPUT, "w", encoding="utf-8") as output:
            child = subprocess.Popen(
                [*COMMAND, str(folder.resolve())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        (folder / "pid").write_text(str(child.pid), encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"cannot start a job in {home()} ({error.strerror}); check that you may write there"
        ) from error
    CHILDREN.append(child)
    return Job(folder)


CHILDREN: list[subprocess.Popen[bytes]] = []
"""Processes that this studio started, so that those which ended are not left as zombies."""


def reap() -> None:
    CHILDREN[:] = [child for child in CHILDREN if child.poll() is None]


def submit_fit(
    name: str,
    model: str,
    data: str,
    settings: Sequence[str],
    budget: str,
    *options: str,
) -> Job:
    out = str(storage.home().resolve() / name)
    args = ["fit", "--budget", budget, "--out", out, *options, "--", model, data, *settings]
    return submit(name, args, kind="fit", model=model, data=data, budget=budget)


def submit_resume(folder: Path, budget: str, *options: str) -> Job:
    name = folder.name
    before = find(name)
    model, data = ("", "") if before is None else (before.about["model"], before.about["data"])
    args = ["fit", "--budget", budget, "--resume", str(folder.resolve()), *options]
    return submit(name, args, kind="resume", model=model, data=data, budget=budget)


def submit_compare(name: str, data: str, models: Sequence[str], budget: str, *options: str) -> Job:
    out = str(storage.home().resolve() / name)
    args = ["compare", "--budget", budget, "--out", out, *options, "--", data, *models]
    return submit(name, args, kind="compare", model="", data=data, budget=budget)


def mine() -> list[Job]:
    """The jobs that this studio started and that still run or wait."""
    pids = {str(child.pid) for child in CHILDREN if child.poll() is None}
    return [job for job in listing() if job.read("pid") in pids]
