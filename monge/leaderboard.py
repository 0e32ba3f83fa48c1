"""The entrants of a comparison in order: log-likelihoods in one unit, sample distances for all.

Laws that score come first, the highest mean of log p first; exact values and bounds stand in one
column with their kind, since a bound is at most the value. Laws without a score follow by the
distance of their samples. A difference to the first is that of the same rows, whose error is
smaller than that of either mean.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compare import JUDGED, Outcome
from .core.score import Score
from .entrant import ROWS


@dataclass(frozen=True)
class Row:
    """One model over its seeds."""

    model: str
    runs: tuple[Path, ...]
    seconds: float
    measures: dict[str, Score]  # mean over seeds; the error is over seeds where there are several
    rows: NDArray[np.float64] | None  # log p of each test row, mean over seeds
    behind: tuple[float, float] | None = None  # nats behind the first, and the error of that

    @property
    def order(self) -> tuple[int, float]:
        """Where it stands: the smaller goes first."""
        if (found := self.measures.get("log_likelihood")) is not None:
            return 0, -found.value if math.isfinite(found.value) else math.inf
        distance = self.measures.get("energy_distance")
        return 1, distance.value if distance else math.inf

    def to_dict(self) -> dict[str, Any]:
        told = {"model": self.model, "run": str(self.runs[0]), "seconds": self.seconds,
                "measures": {name: score.to_dict() for name, score in self.measures.items()}}
        if len(self.runs) > 1:
            told["runs"] = [str(run) for run in self.runs]
        if self.behind:
            told["behind"] = {"value": self.behind[0], "stderr": self.behind[1]}
        return told


def leaderboard(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each model that has come through, the best first."""
    models = dict.fromkeys(outcome.model for outcome in outcomes if not outcome.failure)
    found = [row([o.run for o in outcomes if o.model == model and not o.failure], model)
             for model in models]
    return compared(sorted(found, key=lambda row: row.order))


def row(runs: Sequence[Path], model: str) -> Row:
    told = [json.loads((run / JUDGED).read_text(encoding="utf-8")) for run in runs]
    names = [name for name in told[0]["measures"] if all(name in one["measures"] for one in told)]
    measures = {name: mean([Score(**one["measures"][name]) for one in told]) for name in names}
    files = [run / ROWS for run in runs]
    rows = np.mean([np.load(file) for file in files], 0) if files[0].exists() else None
    return Row(model, tuple(runs), statistics.mean(one["seconds"] for one in told), measures, rows)


def mean(scores: Sequence[Score]) -> Score:
    """Over seeds: their mean, with the error of one, or with that over seeds if it is larger."""
    values = [score.value for score in scores]
    error = max(score.stderr for score in scores)
    if len(values) > 1:
        error = max(error, statistics.stdev(values) / len(values) ** 0.5)
    return Score(statistics.mean(values), scores[0].kind, error, scores[0].unit)


def compared(rows: list[Row]) -> list[Row]:
    """Each with how far it is behind the first on the same rows."""
    first = next((row.rows for row in rows if row.rows is not None), None)
    told = []
    for each in rows:
        behind = None
        if first is not None and each.rows is not None and len(each.rows) == len(first):
            gap = first - each.rows
            behind = float(gap.mean()), float(gap.std(ddof=1) / len(gap) ** 0.5)
        told.append(Row(each.model, each.runs, each.seconds, each.measures, each.rows, behind))
    return told
