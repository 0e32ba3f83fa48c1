"""Samples that are copies: of training rows, and of one another.

A law that was learned puts its samples as far from the training rows as held-out rows are; one
that was learned by heart puts them nearer (Meehan, Chaudhuri & Dasgupta 2020).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.score import Score

LEVEL = 0.01
"""Share of real rows that are as near by definition; what a perfect law reaches."""
ROWS = 512
"""Rows whose distances are made at once."""


def memorised(fake: Tensor, held_out: Tensor, train: Tensor) -> Score:
    """The share of samples nearer to a training row than 99 % of held-out rows are."""
    limit = nearest(held_out, train).quantile(LEVEL)
    return share(nearest(fake, train) < limit)


def duplicates(fake: Tensor, real: Tensor) -> Score:
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


def share(which: Tensor) -> Score:
    value = float(which.double().mean())
    return Score(value, "estimate", math.sqrt(value * (1 - value) / len(which)), "share")
