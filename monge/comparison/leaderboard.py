"""Rank the models of a comparison by log-likelihood, then by the distance of their samples.

Models with a log-likelihood come first, the highest mean first; exact values and bounds share a
column with their kind, since a bound is at most the value. Models without one follow by the energy
distance of their samples, by which every model that samples has a rank. The gap to the best model
is paired over the same rows, so its error is smaller than that of either mean. The reference is
the same metric with training rows in place of samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from ..core.errors import RunError
from ..core.files import load_array
from ..core.metric import Metric
from ..core.space import Space
from ..evaluate.samples import REAL
from ..run import storage
from ..run.saved import naming_file
from .runner import Comparison, Outcome, read_results
from .worker import ROWS

if TYPE_CHECKING:
    import pandas as pd

LIKELIHOOD, DISTANCE = "log_likelihood", "energy_distance"
SHOWN = (DISTANCE, "c2st", "coverage", "accuracy", "rmse")
"""Metrics that the table of a leaderboard shows besides the log-likelihood."""
CONFIDENCE = 0.95
"""Confidence of an interval over seeds."""


@dataclass(frozen=True)
class LeaderboardRow:
    """One model over its seeds."""

    model: str
    runs: tuple[Path, ...]
    seconds: float
    metrics: dict[str, Metric]  # mean over seeds; with several, the error is over seeds
    rows: NDArray[np.float64] | None  # log p of each test row, (seeds, N)
    gap_to_best: tuple[float, float] | None = (
        None  # nats to the best model, and the standard error
    )
    cost: dict[str, Any] = field(default_factory=dict)  # as estimated before training
    values: tuple[float, ...] = ()  # of the metric that ranks it, one per seed
    ranks: dict[str, int] = field(default_factory=dict)  # rank by likelihood and by distance

    @property
    def family(self) -> str:
        return self.model.partition(".")[0] if not self.model.endswith(".py") else "own"

    @property
    def order(self) -> tuple[int, float]:
        """Sort key: the smallest comes first."""
        if (found := self.metrics.get(LIKELIHOOD)) is not None:
            return 0, -found.value if math.isfinite(found.value) else math.inf
        distance = self.metrics.get(DISTANCE)
        return 1, distance.value if distance else math.inf

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the mean over seeds (Student's t)."""
        count = len(self.values)
        if count < 2:
            return None
        half_width = float(student.ppf((1 + CONFIDENCE) / 2, count - 1))
        half_width *= statistics.stdev(self.values) / count**0.5
        middle = statistics.mean(self.values)
        return middle - half_width, middle + half_width

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "model": self.model,
            "family": self.family,
            "run": str(self.runs[0]),
            "seconds": self.seconds,
            "ranks": self.ranks,
            "cost": self.cost,
            "metrics": {name: metric.to_dict() for name, metric in self.metrics.items()},
        }
        if self.interval:
            result |= {"runs": [str(run) for run in self.runs], "interval": list(self.interval)}
        if self.gap_to_best:
            result["gap_to_best"] = {"value": self.gap_to_best[0], "stderr": self.gap_to_best[1]}
        return result


@dataclass(frozen=True, repr=False)
class Leaderboard:
    """The result of a comparison: one row per model, the best first, the failures, the models that
    were left out and why, and the report."""

    folder: Path
    rows: list[LeaderboardRow]
    failures: dict[str, str]
    refused: dict[str, str]
    report: Path | None = None

    @classmethod
    def of(cls, comparison: Comparison, outcomes: Sequence[Outcome]) -> Leaderboard:
        failures = {f"{o.model} (seed {o.seed})": o.failure for o in outcomes if o.failure}
        return cls(comparison.folder, leaderboard(outcomes), failures, comparison.plan.refused)

    def __repr__(self) -> str:
        skipped = f", {len(self.refused)} models skipped" if self.refused else ""
        failed = "".join(f"\n{name} failed: {why}" for name, why in self.failures.items())
        return f"<Leaderboard {self.folder.name}{skipped}>\n{self.frame.to_string()}{failed}"

    def _repr_html_(self) -> str:
        return self.frame.to_html(na_rep="", float_format="{:.4g}".format)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per model, the best first: log-likelihood with its error and kind, the gap to
        the best, the metrics that rank models, and seconds of training."""
        import pandas as pd

        rows = [
            {
                "model": row.model,
                "nats per row": scored.value if scored else None,
                "±": scored.stderr if scored else None,
                "kind": scored.kind if scored else None,
                "gap": row.gap_to_best[0] if row.gap_to_best else None,
                **{name: row.metrics[name].value for name in SHOWN if name in row.metrics},
                "seconds": row.seconds,
            }
            for row in self.rows
            for scored in [row.metrics.get(LIKELIHOOD)]
        ]
        return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="rank"))

    @property
    def reference(self) -> dict[str, Metric]:
        """Each metric of samples, computed with training rows in their place."""
        found: dict[str, Metric] = {}
        for row in reversed(self.rows):
            found |= reference(row.metrics)
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
    """A row for each model that was fitted, the best first."""
    done = [outcome for outcome in outcomes if not outcome.failure]
    check_comparable([outcome.run for outcome in done])
    found = [
        row([o.run for o in done if o.model == model], model)
        for model in dict.fromkeys(outcome.model for outcome in done)
    ]
    return rank(with_gaps(sorted(found, key=lambda row: row.order)))


DATA_TYPES = {key: storage.DATA_KEYS[key] for key in ("name", "overrides", "fingerprint")}


def check_comparable(runs: Sequence[Path]) -> None:
    """Raise a RunError if two models have different spaces or were fitted to different data."""
    known: tuple[Path, Mapping[str, Any]] | None = None
    for run in runs:
        about = storage.read(run, "run.json")
        storage.check_types(run / "run.json", about, {"space": (dict,), "data": (dict,)})
        storage.check_types(run / "run.json", about["data"], DATA_TYPES)
        first, other = known = known or (run, about)
        with naming_file(run / "run.json"):
            space, theirs = (Space.from_dict(each["space"]) for each in (about, other))
            name, second_name = (storage.data_name(each) for each in (about, other))
        event, second = (
            " given ".join([str(each), *map(str, each.given.values())]) for each in (space, theirs)
        )
        if event != second:
            raise RunError(
                f"expected models of one space, found {event} in {run.name} and {second} in "
                f"{first.name}; compare models of the same event"
            )
        if name != second_name or support(space) != support(theirs):
            raise RunError(
                f"expected models of the same data read in the same way, found {name} in "
                f"{run.name} and {second_name} in {first.name}, whose log-likelihoods are not "
                "comparable; fit one of them again with the data options of the other"
            )
        if about["data"]["fingerprint"] != other["data"]["fingerprint"]:
            raise RunError(
                f"expected models of the same data, found different data in {run.name} and "
                f"{first.name}; fit one of them again"
            )


def support(space: Space) -> list[tuple[Any, ...]]:
    """What a log-likelihood is of: the kind of each column, whether its cells may be empty, its
    atoms and its bounds."""
    return [
        (each.name, each.kind, each.size, each.optional, each.atoms, each.lower, each.upper)
        for each in space.columns or (space,)
    ]


def row(runs: Sequence[Path], model: str) -> LeaderboardRow:
    results = [read_results(run) for run in runs]
    names = [
        name for name in results[0]["metrics"] if all(name in one["metrics"] for one in results)
    ]
    scores = {name: [one["metrics"][name] for one in results] for name in names}
    rows = read_rows([run / ROWS for run in runs]) if (runs[0] / ROWS).exists() else None
    first = next((name for name in (LIKELIHOOD, DISTANCE) if name in scores), None)
    return LeaderboardRow(
        model,
        tuple(runs),
        statistics.mean(one["seconds"] for one in results),
        {name: mean(found) for name, found in scores.items()},
        rows,
        cost=results[0].get("cost", {}),
        values=tuple(score.value for score in scores[first]) if first else (),
    )


def read_rows(files: Sequence[Path]) -> NDArray[np.float64]:
    """The log-likelihoods of test rows, (seeds, N)."""
    found = []
    for file in files:
        with naming_file(file):
            found.append(load_array(file))
            if found[-1].dtype.kind != "f" or found[-1].shape != (len(found[0]),):
                raise ValueError(f"an array of shape {found[-1].shape}")
    return np.stack(found)


def mean(scores: Sequence[Metric]) -> Metric:
    """Over seeds: their mean, with the error of one, or with that over seeds if it is larger."""
    values = [score.value for score in scores]
    error = max(score.stderr for score in scores)
    return Metric(
        statistics.mean(values), scores[0].kind, max(error, over_seeds(values)), scores[0].unit
    )


def over_seeds(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def with_gaps(rows: list[LeaderboardRow]) -> list[LeaderboardRow]:
    """Each row with its gap to the best model on the same test rows."""
    first = next((row.rows for row in rows if row.rows is not None), None)
    return [
        replace(each, gap_to_best=paired_gap(first, each.rows))
        if first is not None and each.rows is not None and each.rows.shape[1] == first.shape[1]
        else each
        for each in rows
    ]


def paired_gap(first: NDArray[np.float64], rows: NDArray[np.float64]) -> tuple[float, float]:
    """The mean difference of the same rows; its error is over rows, or over seeds if that is
    larger."""
    each = first.mean(0) - rows.mean(0)  # (N,)
    count = min(len(first), len(rows))
    seeds = over_seeds([float(value) for value in (first[:count] - rows[:count]).mean(1)])
    return float(each.mean()), max(float(each.std(ddof=1) / len(each) ** 0.5), seeds)


def rank(rows: list[LeaderboardRow]) -> list[LeaderboardRow]:
    """Each row with its rank by likelihood and by the distance of samples."""
    places: dict[str, dict[str, int]] = {row.model: {} for row in rows}
    for name, measure, sign in (("likelihood", LIKELIHOOD, -1), ("distance", DISTANCE, 1)):
        having = [row for row in rows if measure in row.metrics]
        having.sort(key=lambda row: sign * row.metrics[measure].value)
        for number, row in enumerate(having, 1):
            places[row.model][name] = number
    return [replace(row, ranks=places[row.model]) for row in rows]
