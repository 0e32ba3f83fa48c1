r"""Disentanglement: whether each factor of the data has its own latent coordinate.

The mutual information gap of a factor v is $(I(z_{(1)}; v) - I(z_{(2)}; v)) / H(v)$, where z_(1)
and z_(2) are the two coordinates with most information about it (Chen et al. 2018): 1 if one
coordinate has all and no other any, 0 if two have the same. Coordinates are cut into bins of equal
width (Locatello et al. 2019).

DCI (Eastwood & Williams 2018) reads three numbers from trees that predict each factor from the
codes, with importances $R_{jk}$ of coordinate j for factor k: disentanglement, 1 minus the entropy
of $R_{j\cdot}$ in units of log K, averaged by the weight of j; completeness, the same of
$R_{\cdot k}$ in units of log d; and informativeness, the accuracy on other rows.

The score of Higgins et al. (2017) takes pairs of rows that agree in one factor; a linear
classifier must tell which from the mean of $|z - z'|$ over several pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from ..core.errors import DataError
from ..core.metric import Metric
from .linear_probe import probe

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


TREE_ROWS = 5_000
"""Most rows that trees are fitted to."""
PAIRS, POINTS = 32, 1_000
"""Pairs of rows per point of the linear classifier, and points to fit and to examine it."""


def dci(codes: Tensor, factors: Mapping[str, Tensor], seed: int = 0) -> dict[str, Metric]:
    """Disentanglement, completeness and informativeness of codes (N, d) for factors (N,), by
    random forests fitted to every second row."""
    from sklearn.ensemble import RandomForestClassifier

    x = codes[: 2 * TREE_ROWS].double().numpy()
    importances, right, errors = [], [], []
    for values in factors.values():
        v = values[: len(x)].long().numpy()
        forest = RandomForestClassifier(50, max_features=None, random_state=seed, n_jobs=1)
        forest.fit(x[::2], v[::2])
        importances.append(torch.from_numpy(forest.feature_importances_.copy()))
        share = float((forest.predict(x[1::2]) == v[1::2]).mean())
        right.append(share)
        errors.append(share * (1 - share) / len(x[1::2]))
    matrix = torch.stack(importances, 1).double()  # (d, K)
    weights = matrix.sum(1) / matrix.sum().clamp(min=1e-300)
    count, dims = len(factors), codes.shape[1]
    own = 1 - row_entropy(matrix) / math.log(count)  # (d,)
    complete = 1 - row_entropy(matrix.T) / math.log(dims)  # (K,)
    return {
        "dci_disentanglement": Metric(float(weights @ own), "estimate", 0.0, "share"),
        "dci_completeness": Metric(float(complete.mean()), "estimate", 0.0, "share"),
        "dci_informativeness": Metric(
            sum(right) / count, "estimate", math.sqrt(sum(errors)) / count, "share"
        ),
    }


def row_entropy(weights: Tensor) -> Tensor:
    """The entropy of each row as a distribution, in nats; of a row of zeros, the largest."""
    shares = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    entropy = -torch.xlogy(shares, shares).sum(1)
    return entropy.where(weights.sum(1) > 0, math.log(weights.shape[1]))


def beta_vae_score(codes: Tensor, factors: Mapping[str, Tensor], seed: int = 0) -> Metric:
    """The accuracy of telling which factor pairs of rows have in common, from the mean absolute
    difference of their codes (N, d)."""
    generator = torch.Generator().manual_seed(seed)
    scaled = codes.double() / codes.double().std(0).clamp(min=1e-8)
    which = torch.randint(len(factors), (2 * POINTS,), generator=generator)
    points = torch.zeros(2 * POINTS, codes.shape[1], dtype=torch.float64)
    for number, values in enumerate(factors.values()):
        mine = (which == number).nonzero()[:, 0]
        first = torch.randint(len(codes), (len(mine), PAIRS), generator=generator)
        second = partners(values.long(), first, generator)
        points[mine] = (scaled[first] - scaled[second]).abs().mean(1)
    return probe(points[:POINTS], which[:POINTS], points[POINTS:], which[POINTS:])


def partners(values: Tensor, rows: Tensor, generator: Generator) -> Tensor:
    """For each row a random row with the same value, of whole numbers (N,)."""
    order = values.argsort(stable=True)
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    starts = counts.cumsum(0) - counts
    own = place[rows]
    random = torch.rand(rows.shape, generator=generator, dtype=torch.float64)
    return order[starts[own] + (random * counts[own]).long()]
