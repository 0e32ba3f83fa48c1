"""What laws with Gaussian codes share: rates, log-weights, and whether scales rest on a floor."""

from __future__ import annotations

import math

from torch import Tensor

from ...core.abilities import LikelihoodKind
from ...prob.heads import Head
from ...prob.laws import Gaussians


def rates_of(mean: Tensor, log_scale: Tensor) -> Tensor:
    """KL(N(mean, scale^2) || N(0, 1)) of each unit."""
    return 0.5 * (mean.square() + (2 * log_scale).exp() - 1) - log_scale


def log_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I) over the last axis."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


def log_mean_exp(log_weights: Tensor) -> tuple[Tensor, LikelihoodKind, Tensor]:
    """The bound of log-weights (k, B), (B,), and its Monte-Carlo error by the delta method."""
    top = log_weights.amax(0)
    weights = (log_weights - top).exp()
    mean, error = weights.mean(0), weights.std(0) / len(weights) ** 0.5
    return top + mean.log(), "bound", error / mean


def at_floor(head: Head, params: Tensor) -> int:
    """How many entries have Gaussians whose scales rest on their floor."""
    count = 0
    for law, own in zip(head.each(), head.own(params), strict=True):
        if isinstance(law, Gaussians):
            above = law.split(own)[2].log() - law.floor[:, None]  # (B, d, K)
            count += int((above.mean(0).amin(-1) < 0.1).sum())
    return count
