"""Identities of divergences: entropy, Kullback-Leibler, Jensen-Shannon, and their closed forms."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Dirichlet, MultivariateNormal, Normal, kl_divergence

from ..prob.divergence import (
    cross_entropy,
    diagonal_kl,
    entropy,
    gaussian_kl,
    jensen_shannon,
    kl,
    total_variation,
)
from .gaps import most
from .identity import Residual


def tables(count: int, size: int = 6) -> Tensor:
    return Dirichlet(torch.ones(size, dtype=torch.float64)).sample((count,))


def x5_cross_entropy_is_entropy_and_divergence() -> Residual:
    """H(p,q) = H(p) + KL(p||q); JS = H(M) - H(P)/2 - H(Q)/2.

    Source: Cover & Thomas 2006, Elements of Information Theory, ch. 2; Lin 1991, Divergence
    Measures Based on the Shannon Entropy."""
    p, q = tables(100), tables(100)
    first = (cross_entropy(p, q) - entropy(p) - kl(p, q)).abs().max()
    mixed = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return Residual(float(torch.maximum(first, (jensen_shannon(p, q) - mixed).abs().max())), 1e-13)


def x6_divergences_are_bounded_below() -> Residual:
    """KL >= |p-q|_1^2 / 2 >= 0 and 0 <= JS <= log 2.

    Source: Cover & Thomas 2006, Elements of Information Theory, lemma 11.6.1; Lin 1991, Divergence
    Measures Based on the Shannon Entropy."""
    p, q = tables(5000), tables(5000)
    pinsker = 2 * total_variation(p, q).square() - kl(p, q)
    js = jensen_shannon(p, q)
    return Residual(float(torch.stack([pinsker, -js, js - math.log(2)]).max()), 1e-12)


def x6_disjoint_supports() -> Residual:
    """On disjoint supports KL is infinite, JS = log 2, and TV = 1.

    Source: Arjovsky & Bottou 2017, Towards Principled Methods for Training GANs, sec. 2."""
    p, q = torch.tensor([[0.4, 0.6, 0, 0], [0, 0, 0.3, 0.7]], dtype=torch.float64)
    finite = 0.0 if math.isinf(float(kl(p, q))) else 1.0
    inside = 0.0 if math.isfinite(float(kl(p, (p + q) / 2))) else 1.0  # supp p inside supp q
    rest = abs(float(jensen_shannon(p, q)) - math.log(2)) + abs(float(total_variation(p, q)) - 1)
    return Residual(finite + inside + rest, 1e-13)


def x6_the_root_of_js_is_a_metric_and_kl_is_not() -> Residual:
    """sqrt(JS) obeys the triangle inequality; KL violates it.

    Source: Endres & Schindelin 2003, A New Metric for Probability Distributions."""
    p, q, r = tables(3000), tables(3000), tables(3000)
    root = [jensen_shannon(a, b).clamp_min(0).sqrt() for a, b in ((p, r), (p, q), (q, r))]
    detour = float((root[0] - root[1] - root[2]).max())
    heads = torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64)
    half, quarter, tenth = torch.stack([heads, 1 - heads], 1)
    broken = float(kl(half, quarter) + kl(quarter, tenth) - kl(half, tenth))  # below zero
    return Residual(most(detour, broken), 1e-12)


def x7_gaussian_divergences_are_closed() -> Residual:
    """KL of normals, diagonal and full, equals that of torch.distributions.

    Source: Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, sec. A.5."""
    mean = torch.randn(2, 4, dtype=torch.float64)
    std = torch.rand(2, 4, dtype=torch.float64) + 0.3
    low = torch.tril(torch.randn(2, 4, 4, dtype=torch.float64), -1) + torch.diag_embed(std)
    cov = low @ low.mT
    full = kl_divergence(MultivariateNormal(mean[0], cov[0]), MultivariateNormal(mean[1], cov[1]))
    flat = kl_divergence(Normal(mean[0], std[0]), Normal(mean[1], std[1])).sum()
    gaps = [gaussian_kl(mean[0], cov[0], mean[1], cov[1]) - full,
            diagonal_kl(mean[0], std[0], mean[1], std[1]) - flat]
    return Residual(float(torch.stack(gaps).abs().max()), 1e-11)


def x7_expected_log_density_is_no_divergence() -> Residual:
    """E_q log p = -H(q) - KL(q||p), which is not the KL.

    Source: Kingma & Welling 2014, Auto-Encoding Variational Bayes, app. B."""
    mean = torch.randn(2, 3, dtype=torch.float64)
    std = torch.rand(2, 3, dtype=torch.float64) + 0.3
    ratio = (std[0].square() + (mean[0] - mean[1]).square()) / std[1].square()
    expected = -(math.log(2 * math.pi) / 2 + std[1].log() + ratio / 2).sum()
    own = Normal(mean[0], std[0]).entropy().sum()
    whole = -own - diagonal_kl(mean[0], std[0], mean[1], std[1])
    return Residual(float((expected - whole).abs()), 1e-12)
