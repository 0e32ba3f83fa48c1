r"""The mutual information gap (MIG): whether each factor has its own latent coordinate.

The mutual information gap of a factor v is $(I(z_{(1)}; v) - I(z_{(2)}; v)) / H(v)$, where z_(1)
and z_(2) are the two coordinates with most information about it (Chen et al. 2018): 1 if one
coordinate has all and no other any, 0 if two have the same. Coordinates are cut into bins of equal
width (Locatello et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.metric import Metric

BINS = 20
"""Bins per coordinate."""


def mutual_information_gaps(codes: Tensor, factors: Mapping[str, Tensor]) -> dict[str, Metric]:
    """The gap of each factor (N,), whole numbers, in codes (N, d), and "mig", their mean."""
    if codes.ndim != 2 or codes.shape[1] < 2:
        raise DataError(
            f"expected codes (N, d) with d of at least 2, found {tuple(codes.shape)}; reshape them"
        )
    mutual_information = information(codes, factors)
    found = {
        name: Metric(gap(mutual_information[name], entropy(v)), "estimate", 0.0, "share")
        for name, v in factors.items()
    }
    mean = sum(score.value for score in found.values()) / len(found)
    return found | {"mig": Metric(mean, "estimate", 0.0, "share")}


def information(codes: Tensor, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """I(z_j; v) in nats of each coordinate, (d,), for each factor."""
    binned = [cut(column) for column in codes.double().T]
    return {
        name: torch.tensor([mutual(z, v.long()) for z in binned]) for name, v in factors.items()
    }


def gap(information: Tensor, whole: float) -> float:
    first, second = information.topk(2).values.tolist()
    return (first - second) / whole if whole > 0 else math.nan


def cut(values: Tensor) -> Tensor:
    """The bin of each value, of equal width between the extremes."""
    low, high = values.aminmax()
    return ((values - low) / (high - low).clamp_min(1e-12) * BINS).long().clamp_max(BINS - 1)


def mutual(a: Tensor, b: Tensor) -> float:
    """I(a; b) of whole numbers (N,), from their table of counts."""
    together = a * (int(b.max()) + 1) + b
    return entropy(a) + entropy(b) - entropy(together)


def entropy(values: Tensor) -> float:
    """The entropy of whole numbers (N,), in nats."""
    share = torch.unique(values, return_counts=True)[1].double() / len(values)
    return float(-(share * share.log()).sum())
