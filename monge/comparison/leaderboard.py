"""The entrants of a comparison in order: log-likelihoods in one unit, sample distances for all.

Laws that score come first, the highest mean of log p first; exact values and bounds stand in one
column with their kind, since a bound is at most the value. Laws without a score follow by the
distance of their samples, in which every law that samples has a place. A difference to the first
is that of the same rows, whose error is smaller than that of either mean. What training rows
would reach in place of samples is the reference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from ..core.errors import RunError
from ..core.metric import Metric
from ..core.space import Space
from ..evaluate.samples import REAL
from ..run import storage
from .runner import RESULTS, Comparison, Outcome
from .worker import ROWS

LIKELIHOOD, DISTANCE = "log_likelihood", "energy_distance"
SURE = 0.95
"""Of an interval over seeds."""


@dataclass(frozen=True)
class LeaderboardRow:
    """One model over its seeds."""

    model: str
    runs: tuple[Path, ...]
    seconds: float
    measures: dict[str, Metric]  # mean over seeds; the error is over seeds where there are several
    rows: NDArray[np.float64] | None  # log p of each test row, (seeds, N)
    behind: tuple[float, float] | None = None  # nats behind the first, and the error of that
    cost: dict[str, Any] = field(default_factory=dict)  # as it was foreseen before training
    values: tuple[float, ...] = ()  # of the measure that places it, one a seed
    places: dict[str, int] = field(default_factory=dict)  # by likelihood and by distance

    @property
    def family(self) -> str:
        return self.model.partition(".")[0] if not self.model.endswith(".py") else "own"

    @property
    def order(self) -> tuple[int, float]:
        """Where it stands: the smaller goes first."""
        if (found := self.measures.get(LIKELIHOOD)) is not None:
            return 0, -found.value if math.isfinite(found.value) else math.inf
        distance = self.measures.get(DISTANCE)
        return 1, distance.value if distance else math.inf

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the mean over seeds lies, by Student's law."""
        count = len(self.values)
        if count < 2:
            return None
        reach = float(student.ppf((1 + SURE) / 2, count - 1))
        reach *= statistics.stdev(self.values) / count**0.5
        middle = statistics.mean(self.values)
        return middle - reach, middle + reach

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "model": self.model,
            "family": self.family,
            "run": str(self.runs[0]),
            "seconds": self.seconds,
            "places": self.places,
            "cost": self.cost,
            "measures": {name: score.to_dict() for name, score in self.measures.items()},
        }
        if self.interval:
            told |= {"runs": [str(run) for run in self.runs], "interval": list(self.interval)}
        if self.behind:
            told["behind"] = {"value": self.behind[0], "stderr": self.behind[1]}
        return told


@dataclass(frozen=True)
class Leaderboard:
    """What came of a comparison: its rows, the best first, what training rows would reach, who
    failed and who was left out and why, and where its page is."""

    folder: Path
    rows: list[LeaderboardRow]
    failures: dict[str, str]
    refused: dict[str, str]
    report: Path | None = None

    @classmethod
    def of(cls, comparison: Comparison, outcomes: Sequence[Outcome]) -> Leaderboard:
        failures = {f"{o.model} (seed {o.seed})": o.failure for o in outcomes if o.failure}
        return cls(comparison.folder, leaderboard(outcomes), failures, comparison.plan.refused)

    @property
    def reference(self) -> dict[str, Metric]:
        """Each measure of samples with training rows in their place."""
        found: dict[str, Metric] = {}
        for row in reversed(self.rows):
            found |= reference(row.measures)
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": [row.to_dict() for row in self.rows],
            "reference": {name: score.to_dict() for name, score in self.reference.items()},
            "failures": self.failures,
            "refused": self.refused,
            "folder": str(self.folder),
            "report": None if self.report is None else str(self.report),
        }


def reference(measures: Mapping[str, Metric]) -> dict[str, Metric]:
    return {
        name.removesuffix(REAL): score for name, score in measures.items() if name.endswith(REAL)
    }


def leaderboard(outcomes: Sequence[Outcome]) -> list[LeaderboardRow]:
    """A row for each model that has come through, the best first."""
    done = [outcome for outcome in outcomes if not outcome.failure]
    check_comparable([outcome.run for outcome in done])
    found = [
        row([o.run for o in done if o.model == model], model)
        for model in dict.fromkeys(outcome.model for outcome in done)
    ]
    return rank(compared(sorted(found, key=lambda row: row.order)))


def check_comparable(runs: Sequence[Path]) -> None:
    """A RunError where two are laws of different spaces, or were fitted to different data."""
    known: tuple[Path, str, str] | None = None
    for run in runs:
        about = storage.read(run, "run.json")
        space = Space.from_dict(about["space"])
        event = " given ".join([str(space), *map(str, space.given.values())])
        known = known or (run, event, about["data"]["fingerprint"])
        first, theirs, fingerprint = known
        if event != theirs:
            raise RunError(
                f"{run.name} is a law of {event} and {first.name} of {theirs}; only "
                "laws of one space can be compared"
            )
        if about["data"]["fingerprint"] != fingerprint:
            raise RunError(
                f"{run.name} and {first.name} were fitted to different data; fit one of them again"
            )


def row(runs: Sequence[Path], model: str) -> LeaderboardRow:
    told = [storage.read(run, RESULTS) for run in runs]
    names = [name for name in told[0]["measures"] if all(name in one["measures"] for one in told)]
    scores = {name: [Metric(**one["measures"][name]) for one in told] for name in names}
    files = [run / ROWS for run in runs]
    rows = np.stack([np.load(file) for file in files]) if files[0].exists() else None
    first = next((name for name in (LIKELIHOOD, DISTANCE) if name in scores), None)
    return LeaderboardRow(
        model,
        tuple(runs),
        statistics.mean(one["seconds"] for one in told),
        {name: mean(found) for name, found in scores.items()},
        rows,
        cost=told[0].get("cost", {}),
        values=tuple(score.value for score in scores[first]) if first else (),
    )


def mean(scores: Sequence[Metric]) -> Metric:
    """Over seeds: their mean, with the error of one, or with that over seeds if it is larger."""
    values = [score.value for score in scores]
    error = max(score.stderr for score in scores)
    return Metric(
        statistics.mean(values), scores[0].kind, max(error, over_seeds(values)), scores[0].unit
    )


def over_seeds(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def compared(rows: list[LeaderboardRow]) -> list[LeaderboardRow]:
    """Each with how far it is behind the first on the same rows."""
    first = next((row.rows for row in rows if row.rows is not None), None)
    return [
        replace(each, behind=gap(first, each.rows))
        if first is not None and each.rows is not None and each.rows.shape[1] == first.shape[1]
        else each
        for each in rows
    ]


def gap(first: NDArray[np.float64], rows: NDArray[np.float64]) -> tuple[float, float]:
    """The mean difference of the same rows; its error is over rows, or over seeds if that is
    larger."""
    each = first.mean(0) - rows.mean(0)  # (N,)
    count = min(len(first), len(rows))
    seeds = over_seeds([float(value) for value in (first[:count] - rows[:count]).mean(1)])
    return float(each.mean()), max(float(each.std(ddof=1) / len(each) ** 0.5), seeds)


def rank(rows: list[LeaderboardRow]) -> list[LeaderboardRow]:
    """Each with its place by likelihood, and among all by the distance of samples."""
    places: dict[str, dict[str, int]] = {row.model: {} for row in rows}
    for name, measure, sign in (("likelihood", LIKELIHOOD, -1), ("distance", DISTANCE, 1)):
        having = [row for row in rows if measure in row.measures]
        having.sort(key=lambda row: sign * row.measures[measure].value)
        for number, row in enumerate(having, 1):
            places[row.model][name] = number
    return [replace(row, places=places[row.model]) for row in rows]
