"""Identities of codes that are learned without labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..prob.info_nce import info_nce, nt_xent
from ._helpers import most, normal
from .framework import Residual

CORRELATION, CANDIDATES, BATCHES = 0.9, 512, 40


def bound() -> Tensor:
    """log N - InfoNCE of correlated normals by the best of all scores, log p(y | x) / p(y), in
    each of several batches."""
    x, e = normal(2, BATCHES, CANDIDATES)
    y = CORRELATION * x + math.sqrt(1 - CORRELATION**2) * e
    spread = 1 - CORRELATION**2
    apart = (y[:, None] - CORRELATION * x[..., None]).square() / spread  # (batches, N, N)
    scores = 0.5 * (y.square()[:, None] - apart - math.log(spread))
    return torch.stack([math.log(CANDIDATES) - info_nce(each).mean() for each in scores])


def x113_info_nce_is_below_the_mutual_information() -> Residual:
    """log N - InfoNCE <= min(log N, I(x; y)), close for the optimal critic.

    Examines: prob.info_nce.

    Source: van den Oord, Li & Vinyals 2018, Representation Learning with Contrastive Predictive
    Coding, sec. 2.3; Poole et al. 2019, On Variational Bounds of Mutual Information."""
    found, information = bound(), -0.5 * math.log(1 - CORRELATION**2)
    error = float(found.std()) / math.sqrt(BATCHES)
    mean = float(found.mean())
    above = mean - min(information, math.log(CANDIDATES))
    return Residual(most(above, information - mean - 0.1) / error, 5.0)


def x113_cost_of_constant_and_perfect_codes() -> Residual:
    """Constant codes cost log(2N - 1) nats, perfect ones 0.

    Examines: prob.info_nce.

    Source: Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual
    Representations."""
    n = 16
    blind = nt_xent(
        torch.ones(n, 3, dtype=torch.float64), torch.ones(n, 3, dtype=torch.float64), 0.1
    )
    sharp = nt_xent(torch.eye(n, dtype=torch.float64), torch.eye(n, dtype=torch.float64), 1e-2)
    return Residual(
        most(float((blind - math.log(2 * n - 1)).abs().amax()), float(sharp.abs().amax())), 1e-12
    )
