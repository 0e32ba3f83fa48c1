"""The held-out score of a model during training: its log-likelihood, or else the energy distance
of its samples, or else its loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from ..core.abilities import CanSample, HasLikelihood
from ..core.batch import Batch
from ..core.metric import Metric
from ..core.model import Model
from .energy_distance import distance
from .likelihood import CHUNK, home, row_likelihoods


def objective(model: Model, batches: Iterable[Batch], seed: int = 0) -> Metric:
    """The mean held-out loss, with the same noise at every call; it compares settings of one model
    on one dataset only."""
    values = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in batches:
            terms = model.loss(batch.to(home(model)))
            values.append(sum(term.double().expand(len(batch)) for term in terms.values()))
    value = torch.cat([torch.as_tensor(each) for each in values])
    error = float(value.std()) / math.sqrt(len(value)) if len(value) > 1 else math.nan
    return Metric(float(value.mean()), "loss", error, "loss")


MAX_SCORED_ROWS = 4096
"""Most held-out rows scored during training, spread over the split; evaluation uses all."""
MAX_SCORED_ELEMENTS = 1 << 22
"""Most elements of these rows times network evaluations per score: fewer rows if they are long
or expensive to score."""


class HeldOutRows(Protocol):
    """The rows of a split, read in batches."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor) -> Batch: ...


def chunks(rows: HeldOutRows) -> Iterator[Batch]:
    """All rows, in order, in batches of one size."""
    for index in torch.arange(len(rows)).split(CHUNK):
        yield rows.batch(index)


class HeldOutScorer:
    """Calling it scores the current weights, always on the same rows with the same noise."""

    def __init__(self, model: Model, rows: HeldOutRows) -> None:
        self.model = model
        most = min(
            len(rows),
            MAX_SCORED_ROWS,
            max(MAX_SCORED_ELEMENTS // max(model.space.dims * model.evals_per_score, 1), 1),
        )
        spread = torch.linspace(0, len(rows) - 1, most).long()
        self.batches = [rows.batch(index) for index in spread.split(CHUNK)]

    def __call__(self) -> Metric:
        if isinstance(self.model, HasLikelihood):
            return row_likelihoods(self.model, iter(self.batches), self.model.space.dims).score
        if isinstance(self.model, CanSample):
            return distance(self.model, self.model.space, self.batches[0])
        return objective(self.model, self.batches)
