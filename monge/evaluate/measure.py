"""Every measure a model's abilities admit, each a Score, with real against real as reference."""

from __future__ import annotations

import time

import torch

from ..core.abilities import CanDiagnose, CanSample, Finding, HasLikelihood
from ..core.batch import Batch
from ..core.model import Model
from ..core.score import Score
from .fidelity import Eye, distance, energy
from .judge import Rows, chunks
from .likelihood import home, scores

COMPARED = 2000
"""Rows of each side of a two-sample distance: its cost grows with the square."""


def measures(model: Model, rows: Rows, others: Rows, seed: int = 0) -> dict[str, Score]:
    """Measures on `rows`; `others` are real rows too, whose distance from `rows` is what a perfect
    model would reach."""
    found = {}
    if isinstance(model, HasLikelihood):
        every = scores(model, chunks(rows), model.space.dims, seed=seed)
        found["log_likelihood"] = every.score
        per_bit = every.score.stderr / abs(every.score.value or 1) * abs(every.bits_per_dim)
        found["bits_per_dim"] = Score(every.bits_per_dim, every.kind, per_bit, "bits/dim")
    if isinstance(model, CanSample):
        real, eye = some(rows), Eye(model.space)
        found["energy_distance"] = distance(model, model.space, real, seed)
        found["energy_distance_of_real_rows"] = energy(eye(some(others)), eye(real))
        begun = time.perf_counter()
        model.sample(len(real), real.to(home(model)).given)
        speed = len(real) / (time.perf_counter() - begun)
        found["samples_per_second"] = Score(speed, "estimate", 0.0, "1/s")
    count = sum(p.numel() for p in model.parameters())
    found["parameters"] = Score(count, "exact", 0.0, "numbers")
    return found


def findings(model: Model, rows: Rows) -> list[Finding]:
    """What the model itself says ails it, seen on held-out rows."""
    if not isinstance(model, CanDiagnose):
        return []
    with torch.no_grad():
        return model.diagnose(some(rows).to(home(model)))


def some(rows: Rows) -> Batch:
    """At most COMPARED rows, spread over the split."""
    return rows.batch(torch.linspace(0, len(rows) - 1, min(len(rows), COMPARED)).long())
