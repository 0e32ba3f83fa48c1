"""Held-out scores: the log-likelihood of every row, and the score during training, which is the
energy distance of samples, or the loss, if a model has no likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.abilities import (
    CanSample,
    HasCritic,
    HasDiscriminator,
    HasLikelihood,
    Likelihood,
    LikelihoodKind,
)
from ..core.batch import Batch
from ..core.config import Config
from ..core.metric import Metric
from ..core.model import Model, device_of
from ..core.rng import make_generator
from .energy_distance import distance

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 1024
"""Rows scored at once: large enough for full speed, small enough for any memory."""
SMALLEST_CHUNK = 16
"""Rows that fewer are padded to."""
RANKED = 1 << 20
"""Rows that are ranked at once."""
MAX_SCORED_ROWS = 4096
"""Most held-out rows scored during training, spread over the split; evaluation uses all."""
MAX_SCORED_ELEMENTS = 1 << 22
"""Most elements of these rows times network evaluations per score: fewer rows if they are long
or expensive to score."""
MAX_DISTANCE_ROWS = 2000
"""Most rows of each side of a two-sample distance, whose cost is quadratic."""


class HeldOutRows(Protocol):
    """The rows of a split, read in batches."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor) -> Batch: ...


def chunks(rows: HeldOutRows) -> Iterator[Batch]:
    """All rows, in order, in batches of one size."""
    for start in range(0, len(rows), CHUNK):
        yield rows.batch(torch.arange(start, min(start + CHUNK, len(rows))))


def padded_size(rows: int) -> int:
    """The size of a batch that holds so many rows: a power of two."""
    return min(max(1 << (rows - 1).bit_length(), SMALLEST_CHUNK), max(CHUNK, rows))


def padded(batch: Batch, size: int | None = None) -> Batch:
    """The rows, then the last of them again up to a size of few: kernels round differently for
    different numbers of rows, so that a row has the same value in all batches of one size."""
    last, size = len(batch) - 1, size or padded_size(len(batch))
    return batch if size <= len(batch) else batch[torch.arange(size).clamp(max=last)]


def row_subset(rows: HeldOutRows, most: int = MAX_DISTANCE_ROWS) -> Batch:
    """At most `most` rows, spread over the split."""
    return rows.batch(torch.linspace(0, len(rows) - 1, min(len(rows), most)).long())


@dataclass(frozen=True, repr=False)
class RowLikelihoods:
    """log p of every row, float64, in the units of the data."""

    value: NDArray[np.float64]  # (N,)
    kind: LikelihoodKind
    dims: float  # entries of a row; their mean if rows vary in length
    stderr: NDArray[np.float64] | None = None  # (N,) Monte-Carlo error of each row
    description: str = ""  # how the estimate was made
    numbers: NDArray[np.int64] | None = None  # (N,): number of each row in its split, from 1
    index: Any = None  # (N,): the labels of the rows if the data are a frame

    def __repr__(self) -> str:
        return f"<log p of {len(self.value)} rows: {'; '.join(self.summary.values())}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        return pd.DataFrame({"": {"rows": str(len(self.value)), **self.summary}}).to_html(
            header=False
        )

    @property
    def summary(self) -> dict[str, str]:
        """The mean and the range, in short."""
        if not len(self.value):
            return {"mean": "no rows"}
        mean, error = self.mean, "" if len(self.value) < 2 else f" ± {self.mean.stderr:.2g}"
        found = {
            "mean": f"{mean.value:.4f}{error} nats per row ({self.kind})",
            "range": f"{self.value.min():.4g} to {self.value.max():.4g}",
        }
        return {**found, "made": self.description} if self.description else found

    @property
    def series(self) -> pd.Series[float]:
        """The values with the labels of the rows: the index of the frame, or row numbers."""
        import pandas as pd

        labels = self.numbers if self.index is None else self.index
        return pd.Series(self.value, labels, name="log_likelihood")

    @property
    def rank(self) -> NDArray[np.int64]:
        """The place of every row by its value, (N,): 1 is the least likely."""
        order, found = np.argsort(self.value, kind="stable"), np.empty(len(self.value), np.int64)
        for start in range(0, len(order), RANKED):  # no third array of their size
            some = order[start : start + RANKED]
            found[some] = np.arange(start + 1, start + 1 + len(some))
        return found

    def table(self, rank: NDArray[np.int64], rows: slice = slice(None)) -> pd.DataFrame:
        """The value, kind, error and rank of some rows, with their labels."""
        import pandas as pd

        labels = self.numbers if self.index is None else self.index
        columns: dict[str, Any] = {"nats": self.value[rows], "kind": self.kind}
        if self.stderr is not None:
            columns["stderr"] = self.stderr[rows]
        index = None if labels is None else labels[rows]
        return pd.DataFrame({**columns, "rank": rank[rows]}, index)

    def weighted_mean(self, weight: NDArray[np.float64]) -> Metric:
        """The mean over rows that count by these weights (N,), with its error."""
        share = weight / weight.sum()
        mean = float(share @ self.value)
        error = math.sqrt(float(np.square(share) @ np.square(self.value - mean)))
        return Metric(mean, self.kind, error if len(self.value) > 1 else math.nan)

    @property
    def mean(self) -> Metric:
        """The mean over rows; its error is that of the mean, Monte-Carlo noise included."""
        known = len(self.value) > 1 and not self.impossible
        spread = self.value.std(ddof=1) if known else math.nan
        return Metric(float(self.value.mean()), self.kind, float(spread / len(self.value) ** 0.5))

    @property
    def noise(self) -> float | None:
        """The part of the mean's error that is Monte-Carlo noise, if known."""
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

    def minus(self, other: RowLikelihoods) -> Metric:
        """The mean of these rows minus that of others, with the combined error."""
        own, known = self.mean, other.mean
        error = math.hypot(own.stderr, known.stderr)
        return Metric(own.value - known.value, own.kind, error)


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
    pad: bool = False,
) -> RowLikelihoods:
    """Score every row of `batches`, padded to a size of few if set; the noise of a bound is keyed
    by row and `seed`."""
    values, errors, kind, description, count = [], [], "exact", "", 0
    with torch.no_grad():
        for batch in batches:
            count += entries(batch, dims)
            found = likelihood_of(model, padded(batch) if pad else batch, options, seed)
            kind, description = found.kind, found.description
            values.append(found.value.double().cpu().numpy()[: len(batch)])
            if found.stderr is not None:
                errors.append(found.stderr.double().cpu().numpy()[: len(batch)])
    stderr = np.concatenate(errors) if errors else None
    value = np.concatenate(values)
    return RowLikelihoods(value, kind, count / len(value), stderr, description)  # type: ignore[arg-type]


def likelihood_of(
    model: HasLikelihood, batch: Batch, options: Config | None, seed: int
) -> Likelihood:
    return model.likelihood(batch.to(device_of(model)), options, make_generator(seed))


def objective(model: Model, batches: Iterable[Batch], seed: int = 0) -> Metric:
    """The mean held-out loss, with the same noise at every call; it compares settings of one model
    on one dataset only."""
    values = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in batches:
            terms = model.loss(batch.to(device_of(model)))
            values.append(sum(term.double().expand(len(batch)) for term in terms.values()))
    value = torch.cat([torch.as_tensor(each) for each in values])
    error = float(value.std()) / math.sqrt(len(value)) if len(value) > 1 else math.nan
    return Metric(float(value.mean()), "loss", error, "loss")


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
        weights = [batch.weight for batch in self.batches if batch.weight is not None]
        weight = torch.cat(weights).double().numpy() if weights else None
        self.weight = None if weight is None or not weight.any() else weight

    def __call__(self) -> Metric:
        if isinstance(self.model, HasLikelihood):
            found = row_likelihoods(self.model, iter(self.batches), self.model.space.dims)
            return found.mean if self.weight is None else found.weighted_mean(self.weight)
        if isinstance(self.model, CanSample):
            return distance(self.model, self.model.space, self.batches[0])
        return objective(self.model, self.batches)

    def critic_distance(self) -> float:
        """The distance of the rows and as many samples by the model's own critic or
        discriminator, with the same noise at every call."""
        assert isinstance(self.model, HasCritic | HasDiscriminator), "expected a critic"
        self.model.eval()
        batch = self.batches[0].to(device_of(self.model))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return float(self.model.estimate_distance(batch))
