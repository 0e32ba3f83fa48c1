r"""Out-of-bag error: every training row scored by the members not trained on it.

With $U_i$ the members whose bootstrap leaves out row i, $p(x_i) = \frac1{|U_i|}
\sum_{k \in U_i} p_k(x_i)$ is a held-out score without held-out rows; rows that all members have
seen (a share of $0.632^K$) have no prediction (Breiman 1996).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..core.abilities import HasMean
from ..core.batch import Batch
from ..core.ensemble import EnsembleLikelihood
from ..core.metric import Metric, MetricKind
from ..core.model import Model, device_of


@torch.no_grad()
def out_of_bag(model: Model, batches: Iterable[Batch]) -> dict[str, Metric]:
    """Out-of-bag metrics over training rows; none unless the model is a bagged ensemble."""
    if not (isinstance(model, EnsembleLikelihood) and model.config.bag):
        return {}
    each = [batch.to(device_of(model)) for batch in batches]
    likelihoods = [model.out_of_bag(batch) for batch in each]
    value = torch.cat([likelihood.value for likelihood in likelihoods])
    found = {"out_of_bag_log_likelihood": mean_of(value, likelihoods[0].kind, "nats")}
    if isinstance(model, HasMean) and not model.space.shape:
        found |= errors(model, each)
    return found


def errors(model: Any, batches: Iterable[Batch]) -> dict[str, Metric]:
    """The accuracy or the error of the predictions of one target."""
    right, squares = [], []
    for batch in batches:
        weights = model.left_out(batch.rows).double()  # (K, B)
        means = torch.stack([member.mean(batch.given) for member in model.each]).double()
        weights = (weights / weights.sum(0)).reshape(*weights.shape, *(1,) * (means.ndim - 2))
        mean, truth = (weights * means).sum(0), batch.x.double()
        if model.space.kind == "label":
            right.append(torch.where(mean.isnan().any(1), torch.nan, mean.argmax(1) == batch.x))
        else:
            squares.append((mean - truth).square())
    if right:
        return {"out_of_bag_accuracy": mean_of(torch.cat(right), "exact", "share")}
    square = mean_of(torch.cat(squares), "distance", "units")
    root = square.value**0.5
    return {"out_of_bag_rmse": Metric(root, "distance", square.stderr / (2 * root or 1), "units")}


def mean_of(value: Tensor, kind: MetricKind, unit: str) -> Metric:
    """The mean over the rows that some member has not seen."""
    known = value[~value.isnan()].double()
    return Metric(known.mean().item(), kind, (known.std() / len(known) ** 0.5).item(), unit)
