"""One data set, many laws: each fitted with the same budget on the same rows, and judged on rows
that none has seen.

A comparison is a folder: compare.json says what is compared, each entrant is a run folder in it,
and report.html tells of all. An entrant is a process of its own, so that one that fails takes
nobody with it; what is done is never done again, so that a comparison that was cut goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import data, folder, registry
from .admit import admit
from .core.error import DataError, RunError, WordError
from .core.space import Space
from .core.words import Words
from .outset import aim
from .train.budget import Budget

FILE = "compare.json"
JUDGED = "judged.json"
"""In an entrant's folder, once it is fitted and judged."""
BUDGET = "60s"


@dataclass(frozen=True)
class Plan:
    """What is compared, and which models were left out and why."""

    data: str
    words: tuple[str, ...]
    models: tuple[str, ...]
    budget: str
    seeds: int = 1
    given: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def entrants(self) -> list[tuple[str, int]]:
        return [(model, seed) for model in self.models for seed in range(self.seeds)]

    def title(self, model: str, seed: int) -> str:
        """The name of an entrant's folder."""
        name = Path(model).stem if model.endswith(".py") else model
        return f"{name}-{seed}" if self.seeds > 1 else name

    def same(self, other: Plan) -> bool:
        """Whether the two compare the same in the same way; models may differ."""
        return (self.data, self.words, self.budget, self.given, self.target) == (
            other.data, other.words, other.budget, other.given, other.target)


def plan(what: str, models: Sequence[str], words: Sequence[str], budget: str, seeds: int,
         given: Sequence[str], target: Sequence[str], one: bool) -> Plan:
    """The models that take this data: those named, or all, or one of each family; the baselines
    always."""
    Budget.read(budget)
    spoken = Words.sort(words)
    if spoken.model or spoken.train or spoken.how:
        word = (*spoken.model, *spoken.train, *spoken.how)[0]
        raise WordError(f"{word} would not concern every model alike; compare takes words of "
                        "data.* alone")
    named = [Candidate.of(name) for name in models]
    source = data.open(what, *spoken.data)
    if not target and (first := next((c for c in named if c.entry.predicts), None)):
        target = [aim(first.name, source)]
    view = source.view(None, given, tuple(target) or None)
    if target:
        view.vary()
    known = [Candidate(entry.name, entry) for entry in registry.entries()]
    baselines = [c for c in known if c.entry.family == "baseline" and c not in named]
    others = named or [c for c in known if c.entry.family != "baseline"]
    taken, refused = sift(others, view.space, bool(target))
    if refused and (named or not taken):
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in refused.items())
        raise DataError(next(iter(refused.values())) if named else
                        f"no model takes {source.name}:{reasons}")
    always, _ = sift(baselines, view.space, bool(target))
    chosen = leading(taken) if one and not named else taken
    names = tuple(candidate.name for candidate in [*always, *chosen])
    return Plan(what, tuple(words), names, budget, seeds, tuple(given), tuple(target), refused)


@dataclass(frozen=True)
class Candidate:
    """A model by the name that finds it, `family.name` or a file, with what it says of itself."""

    name: str
    entry: registry.Entry

    @classmethod
    def of(cls, name: str) -> Candidate:
        entry = registry.describe(name)
        return cls(name if name.endswith(".py") else entry.name, entry)


def sift(candidates: Sequence[Candidate], space: Space, predicting: bool
         ) -> tuple[list[Candidate], dict[str, str]]:
    """Those that are laws of this event, and why the others are not."""
    taken, refused = [], {}
    for candidate in candidates:
        name, entry = candidate.name, candidate.entry
        try:
            if not {"CanSample", "HasLikelihood"} & set(entry.abilities):
                raise DataError(f"{name} is no law: it neither samples nor scores")
            if entry.predicts and not predicting:
                raise DataError(f"{name} predicts a field from the others; name it with --target "
                                "to compare such models")
            admit(entry.name.partition(".")[2], registry.find(name), space)
            taken.append(candidate)
        except DataError as error:
            refused[name] = str(error)
    return taken, refused


def leading(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of each family the one that leads it."""
    first: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.entry.leads):
        first.setdefault(candidate.entry.family, candidate)
    return [candidate for candidate in candidates if candidate in first.values()]


@dataclass(frozen=True)
class Outcome:
    """What came of one entrant: where its run is, or the sentence of its failure."""

    model: str
    seed: int
    run: Path
    failure: str | None = None


class Comparison:
    """A plan and the folder where it is carried out."""

    def __init__(self, plan: Plan, where: Path) -> None:
        self.plan, self.folder = plan, where

    @classmethod
    def begin(cls, plan: Plan, out: Path | None) -> Comparison:
        """In a new folder, or where the same comparison was cut."""
        source = Path(plan.data).stem or plan.data
        where = out or folder.home() / f"compare-{source}"
        if (where / FILE).exists():
            known = Plan(**tupled(folder.read(where, FILE)))
            if not known.same(plan):
                raise RunError(f"{where} compares {known.data} with budget {known.budget} and "
                               "other words; give --out another name")
        where.mkdir(parents=True, exist_ok=True)
        folder.write(where / FILE, json.dumps(asdict(plan), indent=1) + "\n")
        return cls(plan, where)

    @classmethod
    def read(cls, where: Path) -> Comparison:
        return cls(Plan(**tupled(folder.read(where, FILE))), where)

    def run(self, jobs: int = 1) -> Iterator[Outcome]:
        """Each entrant as it ends; `jobs` at a time share the machine's cores."""
        threads = max((os.cpu_count() or 1) // jobs, 1)
        with ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(self.enter, model, seed, threads)
                       for model, seed in self.plan.entrants]
            try:
                for done in as_completed(waiting):
                    yield done.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def enter(self, model: str, seed: int, threads: int) -> Outcome:
        """Fit and judge one in a process of its own, unless that is done."""
        run = self.folder / self.plan.title(model, seed)
        if (run / JUDGED).exists():
            return Outcome(model, seed, run)
        words = [sys.executable, "-m", "monge.entrant", str(self.folder), model, str(seed),
                 str(threads)]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            return Outcome(model, seed, run)
        said = ended.stderr.strip().splitlines() or [f"ended with code {ended.returncode}"]
        return Outcome(model, seed, run, said[-1])


def tupled(told: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value
            for name, value in told.items()}
