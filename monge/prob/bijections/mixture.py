r"""A mixture of Gaussians of few rows, by expectation and maximisation under a prior.

As in Fraley & Raftery (2007) each covariance is pulled, with the weight of so many rows, to $S /
K^{2/D}$, S being that of all rows, so that no component collapses onto a row. Mixtures of 1, 2,
4, ... components, under a weak and a strong prior each, are then mixed by the weights that do best
on rows they were not fitted to (stacking, Smyth & Wolpert 1999).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PASSES = 30
"""Of EM."""
FOLDS = 4
"""Parts of the rows, each of which once judges what was fitted to the others."""
SPENT = 2000
"""Rows that are used, at most: a beginning need not be better."""
ABSENT = -30.0
"""Logarithm of the weight of a component that is not used."""
Mixture = tuple[Tensor, Tensor, Tensor]
"""Logarithms of weights (K,), means (K, D) and covariances (K, D, D)."""


def fit_mixture(x: Tensor, most: int) -> Mixture:
    """At most so many components for rows x (N, D); those that are not used have no weight."""
    x = x[torch.linspace(0, len(x) - 1, min(len(x), SPENT)).long()]
    options: list[tuple[int, float]] = []
    for count in (2**power for power in range(most.bit_length())):
        for rows in (x.shape[1] + 2.0, 1.0):
            if 3 * count <= len(x) and count + sum(other for other, _ in options) <= most:
                options.append((count, rows))
    options = options or [(1, x.shape[1] + 2.0)]
    weights = stacked(torch.stack([validated(x, *option) for option in options], 1))
    parts = [climb(x, *option) for option in options]
    mixed = [(log_weights + weight, mean, cov)
             for weight, (log_weights, mean, cov) in zip(weights, parts, strict=True)]
    log_weights, mean, cov = (torch.cat(each) for each in zip(*mixed, strict=True))
    absent = most - len(mean)
    return (torch.cat([log_weights.clamp_min(ABSENT), log_weights.new_full((absent,), ABSENT)]),
            torch.cat([mean, mean[:1].expand(absent, -1)]),
            torch.cat([cov, cov[:1].expand(absent, -1, -1)]))


def stacked(log_p: Tensor) -> Tensor:
    """Logarithms of the weights that make the mixture of columns (N, options) most likely."""
    log_weights = torch.zeros_like(log_p[0])
    for _ in range(PASSES):
        log_weights = (log_weights + log_p).softmax(1).mean(0).log()
    return log_weights


def validated(x: Tensor, count: int, rows: float) -> Tensor:
    """The log-density of each row under what was fitted to the folds that it is not in, (N,)."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    fold, found = order % FOLDS, torch.empty_like(x[:, 0])
    for k in range(min(FOLDS, len(x))):
        found[fold == k] = joint(x[fold == k], climb(x[fold != k], count, rows)).logsumexp(1)
    return found


def climb(x: Tensor, count: int, rows: float) -> Mixture:
    """From centres that lie far apart, upwards; the prior counts as so many rows."""
    dims = x.shape[1]
    pooled = torch.cov(x.T, correction=0).reshape(dims, dims)
    prior = (pooled + 1e-4 * torch.eye(dims).to(x)) * count ** (-2 / dims)
    mixture = (x.new_full((count,), -math.log(count)), centres(x, count),
               prior.expand(count, dims, dims))
    for _ in range(PASSES):
        share = joint(x, mixture).softmax(1)  # (N, K)
        mass = share.sum(0)
        mean = (share.T @ x) / mass[:, None].clamp_min(1e-9)
        away = (x[:, None] - mean).transpose(0, 1)  # (K, N, D)
        scatter = (away * share.T[..., None]).mT @ away
        cov = (scatter + rows * prior) / (mass + rows)[:, None, None]
        mixture = (((mass + 1 / count) / (len(x) + 1)).log(), mean, cov)
    return mixture


def centres(x: Tensor, count: int) -> Tensor:
    """The row nearest to the mean, then again and again the one farthest from those chosen among
    a hundred."""
    pool = x[torch.linspace(0, len(x) - 1, min(len(x), 100)).long()]
    chosen = [pool[(pool - x.mean(0)).square().sum(1).argmin()]]
    while len(chosen) < count:
        away = torch.cdist(pool, torch.stack(chosen)).amin(1)
        chosen.append(pool[away.argmax()])
    return torch.stack(chosen)


def joint(x: Tensor, mixture: Mixture) -> Tensor:
    """log w_k N_k(x), (N, K)."""
    log_weights, mean, cov = mixture
    root = torch.linalg.cholesky(cov)
    away = (x[:, None] - mean).permute(1, 2, 0)  # (K, D, N)
    e = torch.linalg.solve_triangular(root, away, upper=False)
    volume = root.diagonal(dim1=1, dim2=2).log().sum(1)
    constant = 0.5 * x.shape[1] * math.log(2 * math.pi)
    return (log_weights - volume - constant) - e.square().sum(1).T / 2
