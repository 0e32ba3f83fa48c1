r"""Diagnostics of latent-variable models: each finding states a number and a remedy.

Posterior collapse: a unit is active if its posterior mean varies over rows (Burda et al. 2016) and
its KL is above 0. Prior mismatch: the aggregate posterior $E_x q(z | x)$ is so far from the prior
that prior samples are decoded from regions without data; the distance is
$KL(N(m, S) \| N(m_0, S_0))$ of the moments of both. Degenerate scale: a likelihood that grows
without bound. Amortisation gap: an ELBO that rises when the posterior of a row is refined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.abilities import Finding
from ...prob.distributions import GaussianMixture
from ...prob.heads import Head

MIN_ACTIVE_KL = 0.01
"""Variance of the posterior mean over rows, and KL in nats, above which a unit is active."""
MAX_PRIOR_KL_PER_UNIT = 0.25
"""KL per latent unit (nats) that the moments of codes may have from those of the prior."""
MAX_AMORTISATION_SHARE = 0.03
"""Share of the ELBO that refining the posterior of each row may gain."""


def find_collapse(mean: Tensor, kl: Tensor) -> Finding | None:
    """mean: posterior means of the rows, (B, latent); kl: KL terms of units, (B, U)."""
    used, units = mean.var(0) > MIN_ACTIVE_KL, mean.shape[1]
    if kl.shape[1] == units:
        used &= kl.mean(0) > MIN_ACTIVE_KL
    active, total = int(used.sum()), float(kl.sum(1).mean())
    if 2 * active >= units:
        return None
    remedy = (
        f"latent={active} is enough"
        if active
        else "try anneal=2000, free_bits=0.1 or a smaller decoder"
    )
    return Finding(
        "posterior collapse",
        f"{active} of {units} latent units are active; "
        f"the KL term is {total:.2f} nats, {total / units:.2f} per unit",
        remedy,
    )


def find_prior_mismatch(
    codes: Tensor,
    prior: Tensor,
    remedy: str = "raise beta, or learn the prior with prior=mixture",
) -> Finding | None:
    """codes: of data, (B, latent); prior: samples of the prior, (N, latent)."""
    units = codes.shape[1]
    if len(codes) < 4 * units:
        return None
    chance = (
        units * (units + 3) / 4 * (1 / len(codes) + 1 / len(prior))
    )  # expected error of the moments
    far = moment_kl(codes.double(), prior.double()) - chance
    if far < MAX_PRIOR_KL_PER_UNIT * units:
        return None
    return Finding(
        "codes far from the prior",
        f"the codes of data are {far:.1f} nats from the prior, "
        "so samples are decoded from regions without data",
        remedy,
    )


def moment_kl(first: Tensor, second: Tensor) -> float:
    """KL(N(m, S) || N(m_0, S_0)) of the moments of two sets of rows, in nats."""
    (m, s), (m0, s0) = moments(first), moments(second)
    root = torch.linalg.cholesky(s0)
    gap = torch.linalg.solve_triangular(root, (m - m0)[:, None], upper=False)
    inner = torch.linalg.solve_triangular(root, torch.linalg.cholesky(s), upper=False)
    log_det = inner.diagonal().log().sum()
    return float(0.5 * (inner.square().sum() + gap.square().sum() - len(m)) - log_det)


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (D,) and covariance (D, D), regularised so that it is never singular."""
    covariance = torch.cov(rows.T).reshape(rows.shape[1], -1)
    return rows.mean(0), covariance + 1e-6 * torch.eye(len(covariance)).to(covariance)


def find_degenerate_scale(head: Head, params: Tensor) -> Finding | None:
    """Gaussians at the lower limit of their scale."""
    stuck = count_scales_at_floor(head, params)
    if not stuck:
        return None
    return Finding(
        "degenerate scale",
        f"the Gaussians of {stuck} of {head.dims} entries are at their "
        "smallest scale: their values repeat, or are determined by other entries",
        "declare them as levels, counts or labels, or drop them",
    )


def find_amortisation_gap(gain: float, bound: float) -> Finding | None:
    """gain: nats by which the ELBO of a row rises when its posterior is refined."""
    if gain < max(MAX_AMORTISATION_SHARE * abs(bound), 0.5):
        return None
    return Finding(
        "amortisation gap",
        f"refining the posterior of each row raises the ELBO by "
        f"{gain:.1f} nats: the encoder does not generalise to these rows",
        "train longer or on more rows, widen net, or score with score.refine=50",
    )


def count_scales_at_floor(head: Head, params: Tensor) -> int:
    """How many entries have Gaussians whose scales are at their lower limit."""
    count = 0
    for distribution, own in zip(head.distributions(), head.params_of(params), strict=True):
        if isinstance(distribution, GaussianMixture):
            above = distribution.split(own)[2].log() - distribution.floor[:, None]  # (B, d, K)
            count += int((above.mean(0).amin(-1) < 0.1).sum())
    return count
