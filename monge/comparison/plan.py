"""Who takes part in a comparison: the models that are laws of these data, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import data, registry
from ..compatibility import GENERATIVE, check_compatible
from ..core.errors import DataError, UsageError
from ..core.overrides import Overrides
from ..core.space import Space
from ..run.setup import default_target
from ..train.budget import Budget


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
    fingerprint: str = ""

    @property
    def entrants(self) -> list[tuple[str, int]]:
        return [(model, seed) for model in self.models for seed in range(self.seeds)]

    def title(self, model: str, seed: int) -> str:
        """The name of an entrant's folder."""
        name = Path(model).stem if model.endswith(".py") else model
        return f"{name}-{seed}" if seed else name

    def same(self, other: Plan) -> bool:
        """Whether the two compare the same in the same way; models and seeds may differ."""
        return (self.data, self.words, self.budget, self.given, self.target) == (
            other.data,
            other.words,
            other.budget,
            other.given,
            other.target,
        )


def tupled(told: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
    }


def plan(
    what: str,
    models: Sequence[str] = (),
    words: Sequence[str] = (),
    budget: str = "60s",
    seeds: int = 1,
    given: Sequence[str] = (),
    target: Sequence[str] = (),
    one: bool = False,
) -> Plan:
    """The models that take this data: those named, or all, or one of each family; the baselines
    always."""
    Budget.read(budget)
    spoken = Overrides.parse(words)
    if spoken.model or spoken.train or spoken.sample or spoken.score:
        word = (*spoken.model, *spoken.train, *spoken.sample, *spoken.score)[0]
        raise UsageError(
            f"{word} would not concern every model alike; compare takes words of data.* alone"
        )
    named = [Candidate.of(name) for name in models]
    source = data.open(what, *spoken.data)
    if not target and (first := next((c for c in named if c.entry.is_predictor), None)):
        target = [default_target(first.name, source)]
    view = source.view(None, given, tuple(target) or None)
    if target:
        view.vary()
    names, refused = chosen(named, view.space, bool(target), one, source.name)
    return Plan(
        what,
        tuple(words),
        names,
        budget,
        seeds,
        tuple(given),
        tuple(target),
        refused,
        source.fingerprint,
    )


def chosen(
    named: Sequence[Candidate], space: Space, predicting: bool, one: bool, name: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of those that take part, the baselines first, and why others do not; `name` is
    that of the data."""
    known = [Candidate(entry.name, entry) for entry in registry.entries()]
    baselines = [c for c in known if c.entry.family == "baseline" and c not in named]
    others = named or [c for c in known if c.entry.family != "baseline"]
    taken, refused = sift(others, space, predicting)
    if refused and (named or not taken):
        reasons = "".join(f"\n  {model}: {reason}" for model, reason in refused.items())
        raise DataError(
            next(iter(refused.values())) if named else f"no model takes {name}:{reasons}"
        )
    always, _ = sift(baselines, space, predicting)
    taken = leading(taken) if one and not named else taken
    return tuple(candidate.name for candidate in [*always, *taken]), refused


@dataclass(frozen=True)
class Candidate:
    """A model by the name that finds it, `family.name` or a file, with what it says of itself."""

    name: str
    entry: registry.Entry

    @classmethod
    def of(cls, name: str) -> Candidate:
        entry = registry.describe(name)
        return cls(name if name.endswith(".py") else entry.name, entry)


def sift(
    candidates: Sequence[Candidate], space: Space, predicting: bool
) -> tuple[list[Candidate], dict[str, str]]:
    """Those that are laws of this event, and why the others are not."""
    taken, refused = [], {}
    for candidate in candidates:
        name, entry = candidate.name, candidate.entry
        try:
            if not GENERATIVE & set(entry.abilities):
                raise DataError(
                    f"{name} neither samples nor computes log-likelihoods; leave it "
                    "out of the comparison"
                )
            if entry.is_predictor and not predicting:
                raise DataError(
                    f"{name} predicts a field from the others; name it with --target "
                    "to compare such models"
                )
            check_compatible(entry.name.partition(".")[2], registry.find(name), space)
            taken.append(candidate)
        except DataError as error:
            refused[name] = str(error)
    return taken, refused


def leading(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of each family the one that leads it."""
    first: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.entry.family_priority):
        first.setdefault(candidate.entry.family, candidate)
    return [candidate for candidate in candidates if candidate in first.values()]
