"""The held-out objective of a model that is no law: what training lowers, on rows it has not seen.

Its unit is that of the model's own loss, so it compares settings of one model on one data set.

The held-out score that watches a fit: the model's likelihood, or else its samples' distance,
or, of a model that is no law, its loss.
"""

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
    """The mean of the model's loss, with the same noise at every call."""
    values = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in batches:
            terms = model.loss(batch.to(home(model)))
            values.append(sum(term.double().expand(len(batch)) for term in terms.values()))
    value = torch.cat([torch.as_tensor(each) for each in values])
    error = float(value.std()) / math.sqrt(len(value)) if len(value) > 1 else math.nan
    return Metric(float(value.mean()), "loss", error, "loss")


JUDGED = 4096
"""Held-out rows that judge a fit while it trains, spread over the split; evaluation reads all."""
ENTRIES = 1 << 22
"""Numbers that these rows hold at most, times how often their score asks a network: long rows and
dear scores are judged by fewer."""


class HeldOutRows(Protocol):
    """A split as evaluation sees it."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor) -> Batch: ...


def chunks(rows: HeldOutRows) -> Iterator[Batch]:
    """All rows, in order, in batches of one size."""
    for index in torch.arange(len(rows)).split(CHUNK):
        yield rows.batch(index)


class HeldOutScorer:
    """Calling it scores the model as it now is, always on the same rows with the same noise."""

    def __init__(self, model: Model, rows: HeldOutRows) -> None:
        self.model = model
        most = min(
            len(rows), JUDGED, max(ENTRIES // max(model.space.dims * model.evals_per_score, 1), 1)
        )
        spread = torch.linspace(0, len(rows) - 1, most).long()
        self.batches = [rows.batch(index) for index in spread.split(CHUNK)]

    def __call__(self) -> Metric:
        if isinstance(self.model, HasLikelihood):
            return row_likelihoods(self.model, iter(self.batches), self.model.space.dims).score
        if isinstance(self.model, CanSample):
            return distance(self.model, self.model.space, self.batches[0])
        return objective(self.model, self.batches)
