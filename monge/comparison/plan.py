"""The plan of a comparison: the models that support the data, and why others are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import registry
from ..core.config import Overrides
from ..core.errors import DataError, UsageError
from ..core.space import Space
from ..data.loading import open as open_data
from ..run.setup import default_target
from ..train.budget import Budget


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared, and which models are left out and why."""

    data: str
    settings: tuple[str, ...]
    models: tuple[str, ...]
    budget: str
    seeds: int = 1
    given: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """A model and a seed for each fit."""
        return [(model, seed) for model in self.models for seed in range(self.seeds)]

    def title(self, model: str, seed: int) -> str:
        """The folder name of a fit."""
        name = Path(model).stem if model.endswith(".py") else model
        return f"{name}-{seed}" if seed else name

    @property
    def left_out(self) -> list[str]:
        """The models that are left out, one line a reason."""
        groups: dict[str, list[str]] = {}
        for model, why in self.refused.items():
            short = model.partition(".")[2] or model
            cause = why.partition(";")[0].removeprefix(model).removeprefix(short).lstrip(": ")
            groups.setdefault(cause, []).append(short)
        return [f"{cause}: {', '.join(names)}" for cause, names in groups.items()]

    def is_compatible(self, other: ComparisonPlan) -> bool:
        """Whether data, settings and budget are equal; models and seeds may differ."""
        return (self.data, self.settings, self.budget, self.given, self.target) == (
            other.data,
            other.settings,
            other.budget,
            other.given,
            other.target,
        )


def with_tuples(saved: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()
    }


def make_plan(
    what: str,
    models: Sequence[str] = (),
    settings: Sequence[str] = (),
    budget: str = "60s",
    seeds: int = 1,
    given: Sequence[str] = (),
    target: Sequence[str] = (),
    one: bool = False,
) -> ComparisonPlan:
    """The models that support this data: those named, or all, or one per family; baselines are
    always included."""
    Budget.read(budget)
    overrides = Overrides.parse(settings)
    if overrides.model or overrides.train or overrides.sample or overrides.score:
        setting = (*overrides.model, *overrides.train, *overrides.sample, *overrides.score)[0]
        raise UsageError(
            f"expected model names and data options (data.KEY=VALUE), found {setting}; remove it"
        )
    named = [Candidate.of(name) for name in models]
    source = open_data(what, *overrides.data)
    predictors = [each.name for each in named if each.entry.is_predictor]
    if not target and predictors and (source.target or len(predictors) == len(named)):
        target = [default_target(predictors[0], source)]  # otherwise these are left out
    view = source.view(None, given, tuple(target) or None)
    if target:
        view.check_target_varies()
    names, refused = choose_models(named, view.space, bool(target), one, source.name)
    return ComparisonPlan(
        what,
        tuple(settings),
        names,
        budget,
        seeds,
        tuple(given),
        tuple(target),
        refused,
        source.fingerprint,
    )


def choose_models(
    named: Sequence[Candidate], space: Space, predicting: bool, one: bool, name: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of the models to fit, baselines first, and why others are left out; `name` is that
    of the data."""
    known = [Candidate(entry.name, entry) for entry in registry.entries()]
    baselines = [c for c in known if c.entry.family == "baseline" and c not in named]
    others = named or [c for c in known if c.entry.family != "baseline"]
    taken, refused = split_supported(others, space, predicting)
    if refused and not taken:
        reasons = "; ".join(f"{model}: {reason}" for model, reason in refused.items())
        raise DataError(
            next(iter(refused.values())) if named else f"no model supports {name}: {reasons}"
        )
    always, _ = split_supported(baselines, space, predicting)
    taken = first_per_family(taken) if one and not named else taken
    return tuple(candidate.name for candidate in [*always, *taken]), refused


@dataclass(frozen=True)
class Candidate:
    """A model by its name (`family.name` or a file) and its registry entry."""

    name: str
    entry: registry.Entry

    @classmethod
    def of(cls, name: str) -> Candidate:
        entry = registry.describe(name)
        return cls(name if name.endswith(".py") else entry.name, entry)


def split_supported(
    candidates: Sequence[Candidate], space: Space, predicting: bool
) -> tuple[list[Candidate], dict[str, str]]:
    """The models that support this event, and why the others do not."""
    taken, refused = [], {}
    for candidate in candidates:
        name, entry = candidate.name, candidate.entry
        try:
            if not registry.GENERATIVE & set(entry.abilities):
                raise DataError(
                    f"{name} neither samples nor computes log-likelihoods; remove it from the "
                    "comparison"
                )
            if entry.is_predictor and not predicting:
                raise DataError(
                    f"{name} predicts a field from the others; name it with --target "
                    "to compare such models"
                )
            registry.check_compatible(entry.name.partition(".")[2], registry.find(name), space)
            taken.append(candidate)
        except DataError as error:
            refused[name] = str(error)
    return taken, refused


def first_per_family(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The model of highest priority in each family."""
    first: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: -candidate.entry.family_priority):
        first.setdefault(candidate.entry.family, candidate)
    return [candidate for candidate in candidates if candidate in first.values()]
