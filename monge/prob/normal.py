r"""The standard Gaussian, $\log N(z; 0, I) = -\frac12 (|z|^2 + D \log 2\pi)$, and means of weights
that are known by their logarithms."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_normals(z: Tensor) -> Tensor:
    """log N(z; 0, 1) of each number."""
    return -0.5 * (z.square() + math.log(2 * math.pi))


def log_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I) of each row (B, ...), (B,)."""
    z = z.flatten(1)
    return -0.5 * (z.square().sum(1) + z.shape[1] * math.log(2 * math.pi))


def log_mean_exp(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the mean of k weights (k, ...), which bounds that of their expectation from
    below, and its Monte-Carlo error by the delta method, each (...)."""
    top = log_weights.amax(0)
    weights = (log_weights - top).exp()
    mean, error = weights.mean(0), weights.std(0) / len(weights) ** 0.5
    return top + torch.log(mean), error / mean
