"""What the pages read: run folders, their models and data, opened once and kept for a while."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..comparison.runner import FILE as COMPARISON
from ..core.errors import MongeError, RunError, UsageError
from ..data import loading
from ..data.builtin import catalogue
from ..data.dataset import Dataset
from ..data.description import Problem, describe
from ..run import storage
from ..run.run import Run
from ..run.saved import ComputeConfig
from ..serve.security import check_name, resolve_below
from ..train import checkpoint
from ..train.budget import Budget
from . import jobs, uploads

Found = TypeVar("Found")
MAX_MODELS, MAX_DATASETS = 4, 6
"""Models and datasets that stay in memory."""
COMPUTE = threading.RLock()
"""One computation with a model at a time: they share the cores anyway."""
WAIT_SECONDS = 120.0
LOG_BYTES = 64 << 20


@contextmanager
def computing() -> Iterator[None]:
    """Hold the models for a computation; a sentence if another one takes too long."""
    if not COMPUTE.acquire(timeout=WAIT_SECONDS):
        raise RunError(
            f"another computation has been going on for {WAIT_SECONDS:g} s; try again later, or "
            "ask for less"
        )
    try:
        yield
    finally:
        COMPUTE.release()


class Cache:
    """The values used last, each made once for a key."""

    def __init__(self, most: int) -> None:
        self.most, self.values, self.guard = most, OrderedDict[Any, Any](), threading.RLock()

    def get(self, key: Any, make: Callable[[], Found]) -> Found:
        with self.guard:
            if key in self.values:
                self.values.move_to_end(key)
                return self.values[key]
            value = make()
            self.values[key] = value
            while len(self.values) > self.most:
                self.values.popitem(last=False)
            return value


MODELS, DATASETS = Cache(MAX_MODELS), Cache(MAX_DATASETS)
SUMMARIES: dict[Path, tuple[Any, Summary]] = {}


def folder_of(name: str) -> Path:
    """The folder of a run: its name, or that of its comparison, a colon and its own."""
    return resolve_below(storage.home(), *name.split(":")[:3])


def place_of(name: str) -> Path:
    """Where the folder of a run is or will be; UsageError for a name that leads elsewhere."""
    path = storage.home().joinpath(*map(check_name, name.split(":")[:3]))
    return folder_of(name) if os.path.lexists(path) else path


def name_of(folder: Path) -> str:
    """The name of a run folder in addresses."""
    place = Path(os.path.realpath(folder.parent), folder.name)
    inside = place.relative_to(os.path.realpath(storage.home()))
    return ":".join(inside.parts)


def stamp(*paths: Path) -> tuple[float, ...]:
    """When files were last changed; 0 for those that are not there."""
    found = []
    for path in paths:
        try:
            found.append(os.stat(path).st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


def load(name: str) -> Run:
    """The run with its best weights or, while it has none, those of its last checkpoint."""
    folder = folder_of(name)
    best, last = folder / "best.safetensors", folder / "last.safetensors"
    if best.exists() and stamp(best) >= stamp(last):
        latest = False
    else:
        latest = last.exists() and (not best.exists() or is_training(folder))
    key = (folder, latest, stamp(folder / "run.json", last if latest else best))

    def make() -> Run:
        run = Run(folder, ComputeConfig())
        if latest:
            run.__dict__["model"], run.__dict__["latest_step"] = run.latest_model()
        return run

    return MODELS.get(key, make)


def with_data(run: Run) -> Run:
    """The run with its own data open."""
    if run.opened is None:
        run.opened = run.open_view()
    return run


def is_training(folder: Path) -> bool:
    return storage.is_locked(folder / ".lock")


@dataclass(frozen=True)
class Summary:
    """A run or a comparison in a list; `error` is the sentence about what is damaged."""

    name: str
    model: str = ""
    data: str = ""
    step: int | None = None
    seconds: float | None = None
    held_out: float | None = None
    stderr: float | None = None
    kind: str = ""
    unit: str = ""
    stopped: str = ""
    made: float | None = None
    fingerprint: str = ""
    error: str = ""
    models: int = 0  # of a comparison

    @property
    def family(self) -> str:
        return self.model.partition(".")[0]


def summary(folder: Path) -> Summary:
    """What a list shows of a run; read again only where a file has changed."""
    key = stamp(folder / "run.json", folder / "best.safetensors")
    known = SUMMARIES.get(folder)
    if known is None or known[0] != key:
        known = (key, read_summary(folder))
        SUMMARIES[folder] = known
    return known[1]


def read_summary(folder: Path) -> Summary:
    name = name_of(folder)
    if not folder.resolve().is_relative_to(storage.home().resolve()):
        return Summary(
            name,
            error=f"{name} is a link to a folder outside the runs; copy the run into "
            f"{storage.home()}",
        )
    made = stamp(folder / "run.json")[0] / 1e9 or None
    try:
        about = storage.read_metadata(folder)
        origin = about["data"]
        known: dict[str, Any] = {
            "model": str(about["model"]),
            "data": str(origin["name"]),
            "fingerprint": str(origin["fingerprint"]),
            "made": made,
        }
        if not (folder / "best.safetensors").exists():
            return Summary(name, **known)
        result = checkpoint.about(folder / "best.safetensors")
        held = result["held_out"] or {}
        value = held.get("value")
        return Summary(
            name,
            step=int(result["step"]),
            seconds=float(result["seconds"]),
            stopped=str(result["stopped"]),
            held_out=value if isinstance(value, float) and math.isfinite(value) else None,
            stderr=held.get("stderr"),
            kind=str(held.get("kind") or ""),
            unit=str(held.get("unit") or ""),
            **known,
        )
    except (MongeError, OSError) as error:
        return Summary(name, made=made, error=str(error))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return Summary(
            name,
            made=made,
            error=f"expected the metadata of a run, found none ({error}); restore its files "
            "from a backup",
        )


def summaries() -> list[Summary]:
    """Every run, the newest first."""
    return [summary(folder) for folder in reversed(storage.listing())]


def comparisons() -> list[Summary]:
    """Every comparison, the newest first."""
    found = []
    for path in storage.home().glob(f"*/{COMPARISON}"):
        if path.parent.name[0] == ".":
            continue
        made = path.stat().st_mtime
        try:
            plan = storage.read(path.parent, COMPARISON)
            title = Path(str(plan["data"])).name
            found.append(
                Summary(path.parent.name, data=title, made=made, models=len(plan["models"]))
            )
        except (MongeError, KeyError, TypeError, OSError) as error:
            found.append(Summary(path.parent.name, made=made, error=str(error)))
    return sorted(found, key=lambda each: -(each.made or 0))


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a training log that can be read."""
    path = folder / "log.jsonl"
    try:
        if path.stat().st_size > LOG_BYTES:
            raise RunError(f"{path} has more than {LOG_BYTES >> 20} MB and is not shown")
    except FileNotFoundError:
        return []
    lines = []
    for line in storage.Log(path):
        if isinstance(line, dict) and {"step", "seconds", "terms", "held_out"} <= set(line):
            lines.append(line)
    return lines


@dataclass(frozen=True)
class Status:
    """What happens to a run now."""

    state: str  # queued, running, ending, paused, failed, lost, elsewhere, stopped, done, new
    sentence: str = ""
    budget: str = ""
    fraction: float | None = None
    left: float | None = None  # seconds
    position: int = 0  # in the queue, from 1

    @property
    def is_live(self) -> bool:
        return self.state in ("queued", "running", "ending", "elsewhere")

    @property
    def word(self) -> str:
        return WORDS[self.state]


WORDS = {
    "queued": "waiting",
    "running": "in training",
    "ending": "saving",
    "paused": "paused",
    "failed": "failed",
    "lost": "ended",
    "elsewhere": "in training elsewhere",
    "stopped": "stopped",
    "done": "fitted",
    "new": "not fitted",
    "damaged": "damaged",
}


def status(name: str, known: Sequence[jobs.Job] | None = None) -> Status:
    """The state of a run, by its job and its lock."""
    listed = jobs.listing() if known is None else known
    job = next((each for each in listed if each.name == name), None)
    folder = place_of(name)
    if job is None:
        if is_training(folder):
            return Status("elsewhere", "a process outside this studio trains it")
        stopped = summary(folder).stopped if (folder / "run.json").exists() else ""
        if not stopped:
            return Status("new")
        return Status("stopped" if stopped == "asked" else "done")
    state, budget = job.state, str(job.about.get("budget", ""))
    if state == "queued":
        waiting = [each.name for each in listed if each.state == "queued"]
        return Status(state, budget=budget, position=waiting.index(name) + 1)
    if state in ("failed", "lost"):
        return Status(state, job.sentence, budget)
    if state == "running":
        fraction, left = progress(folder, budget, job)
        return Status(state, budget=budget, fraction=fraction, left=left)
    return Status(state, budget=budget)


def progress(folder: Path, budget: str, job: jobs.Job) -> tuple[float | None, float | None]:
    """The used share of the budget and the seconds left, by the last line of the log and the time
    since."""
    lines = log_of(folder)
    try:
        limit = Budget.read(budget)
    except UsageError:
        return None, None
    started = stamp(folder / "run.json")[0] / 1e9
    if not started:  # the process reads the data
        return 0.0, None
    last = lines[-1] if lines else {"step": 0, "epoch": 0.0, "seconds": 0.0}
    changed = stamp(folder / "log.jsonl")[0] / 1e9 if lines else started
    since = max(time.time() - max(changed, job.about["created"]), 0.0)
    seconds = last["seconds"] + since
    if math.isfinite(limit.seconds):
        if limit.more:
            return None, None
        return min(seconds / limit.seconds, 1.0), max(limit.seconds - seconds, 0.0)
    done = last["step"] / limit.steps if math.isfinite(limit.steps) else None
    if done is None and math.isfinite(limit.epochs):
        done = last["epoch"] / limit.epochs
    if not done or limit.more:
        return 0.0, None
    return min(done, 1.0), max(last["seconds"] * (1 - done) / done, 0.0)


def data_roots() -> list[Path]:
    """The folders whose files the studio may read as data."""
    return [*catalogue.search_path(), uploads.home()]


def check_data(text: str) -> str:
    """A built-in name, or the path of data below MONGE_DATA or the uploads, each with transforms;
    anything else is refused."""
    for half in text.split("~"):
        for piece in half.split(","):
            place, _ = catalogue.locate(piece)
            if isinstance(place, str):
                continue
            real = Path(os.path.realpath(place))
            roots = [Path(os.path.realpath(root)) for root in data_roots()]
            if not any(real.is_relative_to(root) for root in roots):
                raise UsageError(
                    f"expected built-in data, an upload or data below MONGE_DATA, found {piece}; "
                    "upload it, or start the studio with MONGE_DATA=FOLDER"
                )
    return text


def open_data(text: str, *settings: str) -> Dataset:
    """Data that the studio may read, kept while its file does not change."""
    check_data(text)
    place, _ = catalogue.locate(text.partition("~")[0].partition(",")[0])
    key = (text, settings, stamp(place) if isinstance(place, Path) else ())
    return DATASETS.get(key, lambda: loading.open(text, *settings))


def describe_data(text: str, *settings: str) -> tuple[Dataset, list[Problem], tuple[str, ...]]:
    """Data that the studio may read with its problems, and the settings under which it is read."""
    check_data(text)
    place, _ = catalogue.locate(text.partition("~")[0].partition(",")[0])
    key = ("described", text, settings, stamp(place) if isinstance(place, Path) else ())
    return DATASETS.get(key, lambda: describe(text, *settings))


def data_title(text: str) -> str:
    """The name of data for people: an upload without its folder."""
    inside = str(uploads.home().resolve()) + os.sep
    return text.replace(inside, "")


def available_data() -> dict[str, list[tuple[str, str, str]]]:
    """Data to choose from, by where it is: name, title and summary."""
    found: dict[str, list[tuple[str, str, str]]] = {"Uploads": [], "Files": []}
    for path in uploads.listing():
        kind = "folder" if path.is_dir() else kind_of(path)
        found["Uploads"].append((str(path.resolve()), path.name, kind))
    for root in catalogue.search_path():
        found["Files"] += [(name, name, kind) for name, kind in files_below(root)]
    found["Built in"] = [(name, name, text) for name, text in catalogue.names()]
    return {place: entries for place, entries in found.items() if entries}


def files_below(root: Path, most: int = 120) -> list[tuple[str, str]]:
    """Folders of data and data files below a folder, at most two deep."""
    found: list[tuple[str, str]] = []
    try:
        inside = sorted(path for path in root.iterdir() if path.name[0] != ".")
    except OSError:
        return []
    for path in inside:
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if is_data_file(p))
            if len(files) != 1:
                found.append((path.name, f"folder of {len(list(path.iterdir()))}"))
            if len(files) <= 12:
                found += [(f"{path.name}/{p.name}", kind_of(p)) for p in files]
        elif is_data_file(path):
            found.append((path.name, kind_of(path)))
    return found[:most]


def kind_of(path: Path) -> str:
    """The suffix of a file, without that of its compression."""
    return Path(path.name.removesuffix(".gz").lower()).suffix.lstrip(".")


def is_data_file(path: Path) -> bool:
    return path.is_file() and kind_of(path) in ("csv", "tsv", "txt", "npy", "npz", "parquet")


def card_text(folder: Path) -> str:
    try:
        return (folder / "card.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def findings(folder: Path) -> list[dict[str, str]] | None:
    """The saved findings of a fit; None if it was not diagnosed."""
    try:
        saved = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
        return [
            {key: str(each[key]) for key in ("name", "sentence", "remedy")}
            for each in saved["findings"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
