"""Held-out log-likelihood: nats per row, kind, mean, standard error and bits per dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.abilities import HasLikelihood, LikelihoodKind
from ..core.batch import Batch
from ..core.config import Config
from ..core.metric import Metric
from ..core.rng import make_generator

CHUNK = 1024
"""Rows scored at once: large enough for full speed, small enough for any memory."""


@dataclass(frozen=True)
class RowLikelihoods:
    """log p of every row, float64, in the units of the data."""

    value: NDArray[np.float64]  # (N,)
    kind: LikelihoodKind
    dims: float  # entries of a row; their mean where rows vary in length
    stderr: NDArray[np.float64] | None = None  # (N,) Monte-Carlo error of each row
    told: str = ""  # how the estimate was made

    @property
    def score(self) -> Metric:
        """The mean over rows; its error is that of the mean, Monte-Carlo noise included."""
        known = len(self.value) > 1 and not self.impossible
        spread = self.value.std(ddof=1) if known else math.nan
        return Metric(float(self.value.mean()), self.kind, float(spread / len(self.value) ** 0.5))

    @property
    def noise(self) -> float | None:
        """The part of the mean's error that is Monte-Carlo noise, where it is known."""
        if self.stderr is None:
            return None
        return float(np.square(self.stderr).sum() ** 0.5 / len(self.stderr))

    @property
    def impossible(self) -> int:
        """Rows with infinite log-likelihood: outside the support, or too far out to compute."""
        return int((~np.isfinite(self.value)).sum())

    @property
    def bits_per_dim(self) -> float:
        return -float(self.value.mean()) / (self.dims * math.log(2))

    def less(self, other: RowLikelihoods) -> Metric:
        """The mean of these rows less that of others, with the error of both."""
        own, known = self.score, other.score
        error = math.hypot(own.stderr, known.stderr)
        return Metric(own.value - known.value, own.kind, error)


def home(model: Any) -> torch.device:
    """The device of a model."""
    return next((t.device for t in [*model.buffers(), *model.parameters()]), torch.device("cpu"))


def entries(batch: Batch, dims: int) -> int:
    """The number of elements of the rows: `dims` each, unless lengths vary."""
    if batch.length is None:
        return len(batch) * dims
    return int(batch.length.sum()) * math.prod(batch.x.shape[2:])


def row_likelihoods(
    model: HasLikelihood,
    batches: Iterator[Batch],
    dims: int,
    options: Config | None = None,
    seed: int = 0,
) -> RowLikelihoods:
    """Score every row of `batches`; the noise of a bound is keyed by row and `seed`."""
    values, errors, kind, told, count = [], [], "exact", "", 0
    with torch.no_grad():
        for batch in batches:
            count += entries(batch, dims)
            found = model.likelihood(batch.to(home(model)), options, make_generator(seed))
            kind, told = found.kind, found.description
            values.append(found.value.double().cpu().numpy())
            if found.stderr is not None:
                errors.append(found.stderr.double().cpu().numpy())
    stderr = np.concatenate(errors) if errors else None
    value = np.concatenate(values)
    return RowLikelihoods(value, kind, count / len(value), stderr, told)  # type: ignore[arg-type]
