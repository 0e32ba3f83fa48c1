"""Every measure a model's abilities admit, each a Score, with real against real as reference."""

from __future__ import annotations

import time

import torch

from ..core.abilities import CanDiagnose, CanSample, Finding, HasLikelihood
from ..core.batch import Batch
from ..core.model import Model
from ..core.score import Score
from ..core.space import Space
from .bagging import out_of_bag
from .fidelity import Eye, distance, energy
from .judge import Rows, chunks
from .likelihood import home, scores
from .objective import objective
from .predict import measures as predictive
from .predict import predict, predicts

COMPARED = 2000
"""Rows of each side of a two-sample distance: its cost grows with the square."""
TIMED = 4
"""Sequences drawn to see how fast they come."""


def measures(model: Model, rows: Rows, others: Rows, seed: int = 0) -> dict[str, Score]:
    """Measures on `rows`; `others` are real rows too, whose distance from `rows` is what a perfect
    model would reach, and on which an ensemble of bags is judged where it has not seen them. Of a
    model that predicts, its predictions are measured instead of its samples."""
    found = {}
    if isinstance(model, HasLikelihood):
        every = scores(model, chunks(rows), model.space.dims, seed=seed)
        found["log_likelihood"] = every.score
        per_bit = every.score.stderr / abs(every.score.value or 1) * abs(every.bits_per_dim)
        found["bits_per_dim"] = Score(every.bits_per_dim, every.kind, per_bit, "bits/dim")
    if predicts(model):
        found |= predictive(predict(model, chunks(rows)))
    elif isinstance(model, CanSample):
        found |= fidelity(model, rows, others, seed)
    if not isinstance(model, HasLikelihood | CanSample):
        found["held_out_loss"] = objective(model, chunks(rows), seed)
    found |= out_of_bag(model, chunks(others))
    count = sum(p.numel() for p in model.parameters())
    found["parameters"] = Score(count, "exact", 0.0, "numbers")
    return found


def fidelity(model: CanSample, rows: Rows, others: Rows, seed: int) -> dict[str, Score]:
    """How far samples are from data, where rows are points, and how fast they come."""
    assert isinstance(model, Model)
    found, real = {}, some(rows) if is_point(model.space) else some(rows)[:TIMED]
    if is_point(model.space):
        eye = Eye.of(model, model.space)
        found["energy_distance"] = distance(model, model.space, real, seed)
        found["energy_distance_of_real_rows"] = energy(eye(some(others)), eye(real))
    begun = time.perf_counter()
    model.sample(len(real), real.to(home(model)).given)
    speed = len(real) / (time.perf_counter() - begun)
    return found | {"samples_per_second": Score(speed, "estimate", 0.0, "1/s")}


def is_point(space: Space) -> bool:
    """Whether rows have a distance: not where their lengths differ, nor between symbols."""
    parts = (space, *space.given.values())
    return not any(part.varies or part.kind == "tokens" for part in parts)


def left_out(model: Model) -> list[Finding]:
    """What cannot be measured, and why."""
    if is_point(model.space) or not isinstance(model, CanSample) or predicts(model):
        return []
    return [Finding("energy_distance", "is left out: it needs rows of numbers, all of one length, "
                    f"not {model.space}.", "Compare models by bits_per_dim.")]


def findings(model: Model, rows: Rows) -> list[Finding]:
    """What the model itself says ails it, seen on held-out rows."""
    if not isinstance(model, CanDiagnose):
        return []
    with torch.no_grad():
        return model.diagnose(some(rows).to(home(model)))


def some(rows: Rows) -> Batch:
    """At most COMPARED rows, spread over the split."""
    return rows.batch(torch.linspace(0, len(rows) - 1, min(len(rows), COMPARED)).long())
