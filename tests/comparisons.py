"""Helpers of the comparison tests: plans, and runs as a leaderboard reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from monge.comparison.plan import ComparisonPlan, make_plan
from monge.comparison.runner import RESULTS, Outcome
from monge.comparison.worker import ROWS
from monge.core.metric import Metric
from monge.run import storage


def planned(
    *models: str, overrides: tuple[str, ...] = (), one: bool = False, target=()
) -> ComparisonPlan:
    return make_plan("moons", models, overrides, "3steps", target=target, one=one)


def saved_outcome(
    folder: Path,
    name: str,
    value: float,
    rows: np.ndarray | None,
    seed: int = 0,
    shape: int = 2,
    fingerprint: str = "a",
    overrides: tuple[str, ...] = (),
    **fields: object,
) -> Outcome:
    """The outcome of a job, with its folder as the leaderboard reads it."""
    run = folder / f"{name}-{seed}"
    run.mkdir()
    space = {"is": "data/space", "kind": "real", "shape": [shape], **fields}
    origin = {"name": "table", "fingerprint": fingerprint, "overrides": overrides}
    metadata = storage.with_format({"space": space, "data": origin})
    (run / "run.json").write_text(json.dumps(metadata))
    metrics = {
        "energy_distance": Metric(value, "distance", 0.1, "energy"),
        "energy_distance_of_real_rows": Metric(0.05, "distance", 0.1, "energy"),
    }
    if rows is not None:
        np.save(run / ROWS, rows)
        metrics["log_likelihood"] = Metric(rows.mean(), "exact", 0.1)
    results = {
        "metrics": {name: metric.to_dict() for name, metric in metrics.items()},
        "seconds": 1.0,
        "steps": 3,
    }
    (run / RESULTS).write_text(json.dumps(storage.with_format(results)))
    return Outcome(name, seed, run)
