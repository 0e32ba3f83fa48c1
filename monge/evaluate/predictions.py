r"""Metrics of predictions: accuracy, calibration, errors and interval coverage.

Classes: accuracy; the expected calibration error $\sum_b \frac{n_b}{N} |acc_b - conf_b|$ over bins
of the confidence in the predicted class (Naeini et al. 2015; Guo et al. 2017). Numbers: root mean
square and mean absolute error of the mean, and the coverage of the central interval of the
predictive distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..core.abilities import HasMarginals, HasMean, HasMode
from ..core.batch import Batch
from ..core.config import Config
from ..core.ensemble import EnsembleMode
from ..core.errors import DataError
from ..core.metric import Metric, MetricKind
from ..core.model import Model, device_of
from ..core.space import Space
from .forecasts import is_forecast
from .likelihood import padded

LEVEL = 0.9
"""Probability of the central interval."""
BINS = 15
"""Bins of confidence."""
MANY = 64
"""With more targets than this, metrics are pooled."""


@dataclass(frozen=True)
class TargetPrediction:
    """The predictive distribution of one target for N rows; for categories, mean and interval are
    indices."""

    space: Space
    level: float
    mean: Tensor  # (N,)
    mode: Tensor  # (N,)
    low: Tensor  # (N,): ends of the central interval
    high: Tensor  # (N,)
    probabilities: Tensor  # (N, K): of each class or level; K is 0 for unbounded values
    truth: Tensor  # (N,)
    seen: Tensor  # (N,): whether the truth is known
    below: Tensor  # (N,): P(target < truth) + P(target = truth) / 2

    @property
    def is_class(self) -> bool:
        return self.space.kind in ("label", "binary")

    def known(self) -> TargetPrediction:
        """The rows whose truth is known."""
        return self.take(self.seen)

    def take(self, rows: Any) -> TargetPrediction:
        """Some of the rows."""
        return TargetPrediction(
            self.space,
            self.level,
            *(getattr(self, field.name)[rows] for field in fields(self)[2:]),
        )


def predicts(model: Model) -> bool:
    """Whether a model is evaluated by predictions of single targets; forecasts are evaluated as
    whole series."""
    scores = isinstance(model, HasMarginals) and isinstance(model, HasMean)
    return model.is_predictor and scores and isinstance(model, HasMode) and not is_forecast(model)


@torch.no_grad()
def predict(
    model: Model,
    batches: Iterable[Batch],
    level: float = LEVEL,
    options: Config | None = None,
    pad: bool = False,
) -> list[TargetPrediction]:
    """The predictions of each target of the event, over all rows; batches are padded to a size of
    few if set."""
    device, pieces = device_of(model), []
    for batch in batches:
        rows = (padded(batch) if pad else batch).to(device)
        found = predict_batch(model, rows, level, options)
        pieces.append([column.take(slice(len(batch))) for column in found])
    return [join(column) for column in zip(*pieces, strict=True)]


def predict_batch(
    model: Any, batch: Batch, level: float, options: Config | None
) -> list[TargetPrediction]:
    """The predictions of each target for one batch."""
    space: Space = model.space
    distribution, n = model.marginals(batch.given, options), len(batch)
    known = batch.observed_mask & ~space.empty(batch.x)
    truth, seen = batch.x.reshape(n, -1), known.reshape(n, -1)
    mode = model.mode(batch.given, options).reshape(n, -1).to(truth)
    mean = mode if space.kind == "label" else model.mean(batch.given, options).reshape(n, -1)
    ends = [distribution.quantile((1 + side * level) / 2) for side in (-1, 1)]
    at = truth.to(ends[0])
    below = (distribution.cumulative(at) + distribution.cumulative(next_below(at, space))) / 2
    columns = zip(
        mean.T,
        mode.T,
        *(end.T for end in ends),
        distribution.probabilities,
        truth.T,
        seen.T,
        below.T,
        strict=True,
    )
    return [
        TargetPrediction(part, level, *(value.cpu() for value in column))
        for part, column in zip(space.parts, columns, strict=True)
    ]


def next_below(x: Tensor, space: Space) -> Tensor:
    """Where the cumulative distribution is P(target < x), (N, D): one less for whole numbers and
    codes, just below for a real that can sit on an atom, and x itself for any other."""
    whole = torch.tensor([part.kind != "real" for part in space.parts], device=x.device)
    atoms = torch.tensor([bool(part.atoms) for part in space.parts], device=x.device)
    lower = torch.nextafter(x, torch.full_like(x, -torch.inf))
    return torch.where(atoms, lower, x - whole.to(x))


def join(pieces: Sequence[TargetPrediction]) -> TargetPrediction:
    """Concatenate the rows of all pieces."""
    names = [field.name for field in fields(TargetPrediction)[2:]]
    return TargetPrediction(
        pieces[0].space,
        pieces[0].level,
        *(torch.cat([getattr(piece, name) for piece in pieces]) for name in names),
    )


def prediction_metrics(predictions: Sequence[TargetPrediction]) -> dict[str, Metric]:
    """The metrics of each target, by its kind. Several targets have their names as prefixes; very
    many, as in an image, are pooled."""
    if not any(bool(prediction.seen.any()) for prediction in predictions):
        name = predictions[0].space.name or "the target"
        raise DataError(f"no row has a value of {name}; evaluate on data with it")
    if len(predictions) > MANY:
        predictions = [join(predictions)]
    names = [prediction.space.name for prediction in predictions]
    if len(set(names)) < len(names):
        names = [str(place) for place in range(1, len(names) + 1)]
    found: dict[str, Metric] = {}
    for name, prediction in zip(names, map(TargetPrediction.known, predictions), strict=True):
        head = f"{name}." if len(names) > 1 else ""
        scores = (
            {}
            if not len(prediction.truth)
            else of_classes(prediction)
            if prediction.is_class
            else of_numbers(prediction)
        )
        found |= {head + key: score for key, score in scores.items()}
    return found


@torch.no_grad()
def votes(model: Model, batches: Iterable[Batch]) -> dict[str, Metric]:
    """The accuracy of a majority vote of the members of an ensemble of classifiers, beside that of
    their mean probabilities."""
    if not isinstance(model, EnsembleMode) or model.space.shape:
        return {}
    if model.space.kind not in ("label", "binary"):
        return {}
    right = []
    for batch in batches:
        rows = batch.to(device_of(model))
        known = rows.observed_mask & ~model.space.empty(rows.x)
        right.append((model.majority(rows.given) == rows.x)[known].cpu())
    return {"majority_accuracy": mean_of(torch.cat(right), "share")}


def of_classes(prediction: TargetPrediction) -> dict[str, Metric]:
    own = prediction.probabilities.double().gather(1, prediction.truth.long()[:, None])[:, 0]
    return {
        "accuracy": mean_of(prediction.mode == prediction.truth, "share"),
        "nll": mean_of(-own.clamp_min(1e-300).log(), "nats", "distance"),
        "calibration_error": Metric(calibration_error(prediction), "distance", 0.0, "share"),
    }


def of_numbers(prediction: TargetPrediction) -> dict[str, Metric]:
    gap = (prediction.mean - prediction.truth).double()
    square = mean_of(gap.square(), "")
    root = square.value**0.5
    inside = (prediction.low <= prediction.truth) & (prediction.truth <= prediction.high)
    return {
        "rmse": Metric(root, "distance", square.stderr / (2 * root or 1), "units"),
        "mae": mean_of(gap.abs(), "units", "distance"),
        f"coverage_{prediction.level:g}": mean_of(inside, "share"),
        "interval_width": mean_of(prediction.high - prediction.low, "units"),
    }


def mean_of(values: Tensor, unit: str, kind: MetricKind = "estimate") -> Metric:
    """The mean over rows and its standard error."""
    values = values.double()
    error = values.std().item() / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Metric(values.mean().item(), kind, error, unit)


def calibration_error(prediction: TargetPrediction) -> float:
    confidence, share, count = reliability(prediction)
    return ((confidence - share).abs() * count).sum().item() / count.sum().item()


def reliability(prediction: TargetPrediction) -> tuple[Tensor, Tensor, Tensor]:
    """The reliability curve, diagonal for a calibrated model, with the rows at each point.

    Classes: mean confidence in the predicted class and accuracy, per bin of confidence. Numbers:
    levels, and the share of truths below the quantile of each level.
    """
    if not prediction.is_class:
        level = torch.arange(1, 20, dtype=torch.float64) / 20
        share = (prediction.below[:, None] <= level).double().mean(0)
        return level, share, torch.full_like(level, len(prediction.below))
    top = prediction.probabilities.double().amax(1)
    right = (prediction.mode == prediction.truth).double()
    bins = (top * BINS).long().clamp(max=BINS - 1)
    count = torch.bincount(bins, minlength=BINS)
    sums = [
        torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, value) for value in (top, right)
    ]
    here = count > 0
    return sums[0][here] / count[here], sums[1][here] / count[here], count[here]
