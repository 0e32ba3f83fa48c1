"""What a shared encoder costs: the bound of rows whose own posteriors were sought, less the bound
with what the encoder says of them (Cremer, Li & Duvenaud 2018)."""

from __future__ import annotations

import torch

from ..core.abilities import HasLikelihood, HasPosterior
from ..core.model import Model
from ..core.noise import fresh
from ..core.score import Score
from .judge import Rows
from .likelihood import home

STEPS = 50
"""Steps from what the encoder says to a row's own posterior."""
MOST, ENTRIES = 200, 160_000
"""Rows, and entries of them, that the gap stands on at most."""


def amortisation(model: Model, rows: Rows, seed: int = 0) -> dict[str, Score]:
    """The gap in nats a row, of models whose score can seek a row's own posterior."""
    if not (isinstance(model, HasPosterior) and isinstance(model, HasLikelihood)
            and "refine" in model.Scoring.__dataclass_fields__):
        return {}
    count = min(len(rows), MOST, max(ENTRIES // max(model.space.dims, 1), 16))
    batch = rows.batch(torch.linspace(0, len(rows) - 1, count).long()).to(home(model))
    plain, own = (model.Scoring().override("samples=1", f"refine={steps}")
                  for steps in (0, STEPS))
    with torch.no_grad():
        gap = (model.likelihood(batch, own, fresh(seed)).value
               - model.likelihood(batch, plain, fresh(seed)).value).double()
    error = float(gap.std()) / count**0.5 if count > 1 else float("nan")
    return {"amortisation_gap": Score(float(gap.mean()), "estimate", error)}
