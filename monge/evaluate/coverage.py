r"""Precision, recall, density and coverage of samples, modes found, memorisation and duplicates.

With balls B around each real point $x_i$, and around each sample $y_j$, that reach to its k-th
nearest neighbour among its own kind,

precision  the share of samples in a ball of some real point
recall     the share of real points in a ball of some sample (Kynkäänniemi et al. 2019)
density    $\frac{1}{kM}\sum_j\sum_i 1[y_j \in B(x_i)]$, 1 in expectation for equal distributions
coverage   the share of real balls with a sample in them (Naeem et al. 2020), for equal
           distributions and sizes near $1 - 2^{-k}$

A model that generalises puts its samples as far from the training rows as held-out rows are; one
that memorises puts them nearer (Meehan, Chaudhuri & Dasgupta 2020).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.gaussian_modes import GaussianModes
from ..core.metric import Metric

NEIGHBOURS = 5
"""k."""
NEAR = 4.0
"""Standard deviations within which a sample belongs to a mode."""
SHARE = 0.05
"""Fraction of its expected number of samples from which a mode counts as found."""


def prdc(real: Tensor, fake: Tensor, k: int = NEIGHBOURS) -> dict[str, Metric]:
    """The four metrics of samples (m, F) against real points (n, F)."""
    k = min(k, len(real) - 1, len(fake) - 1)
    between = torch.cdist(real, fake)  # (n, m)
    inside = between < radii(real, k)[:, None]
    found = {
        "precision": inside.any(0).double(),
        "recall": (between < radii(fake, k)).any(1).double(),
        "density": inside.sum(0).double() / k,
        "coverage": inside.any(1).double(),
    }
    return {
        name: Metric(
            float(each.mean()), "estimate", float(each.std()) / math.sqrt(len(each)), "share"
        )
        for name, each in found.items()
    }


def radii(x: Tensor, k: int) -> Tensor:
    """The distance of each point from its k-th nearest neighbour, (n,)."""
    return torch.cdist(x, x).kthvalue(k + 1).values  # the nearest is the point itself


def modes(x: Tensor, density: GaussianModes) -> dict[str, Metric]:
    """The number of modes of a known density found by the samples x (n, D), and the share of
    samples that belong to a mode."""
    apart, nearest = torch.cdist(x.double(), density.centres.double()).min(1)
    near = apart < NEAR * density.spread
    count = len(density.centres)
    held = torch.bincount(nearest[near], minlength=count)
    found = int((held >= SHARE * len(x) / count).sum())
    share = float(near.double().mean())
    error = math.sqrt(share * (1 - share) / len(x))
    return {
        "modes_found": Metric(found, "estimate", 0.0, f"of {count}"),
        "within_4_sigma": Metric(share, "estimate", error, "share"),
    }


LEVEL = 0.01
"""Share of real rows that are as near by definition: the value of a perfect model."""
ROWS = 512
"""Rows whose distances are computed at once."""


def memorised(fake: Tensor, held_out: Tensor, train: Tensor) -> Metric:
    """The share of samples nearer to a training row than 99 % of held-out rows are."""
    limit = nearest(held_out, train).quantile(LEVEL)
    return share(nearest(fake, train) < limit)


def duplicates(fake: Tensor, real: Tensor) -> Metric:
    """The share of samples nearer to another sample than 99 % of as many real rows are to one
    another."""
    n = min(len(fake), len(real))
    limit = among(real[:n]).quantile(LEVEL)
    return share(among(fake[:n]) < limit)


def nearest(x: Tensor, others: Tensor) -> Tensor:
    """The distance of each x (n, F) from the nearest of the others, (n,)."""
    return torch.cat([torch.cdist(part, others).amin(1) for part in x.split(ROWS)])


def among(x: Tensor) -> Tensor:
    """The distance of each x from the nearest other, (n,)."""
    pairs = torch.cdist(x, x)
    return pairs.fill_diagonal_(torch.inf).amin(1)


def share(which: Tensor) -> Metric:
    value = float(which.double().mean())
    return Metric(value, "estimate", math.sqrt(value * (1 - value) / len(which)), "share")
