r"""What may ail a law with codes, each ill told by a number and with what mends it.

Collapse: a unit is in use if its posterior mean varies over rows (Burda et al. 2016) and it costs
more than nothing. Aggregate: codes of data, $E_x q(z | x)$, far from the prior mean that what is
drawn from the prior is decoded from places no datum has; the distance is
$KL(N(m, S) \| N(m_0, S_0))$ of the moments of both. Degenerate scale: a likelihood that grows
without end. Lag: a bound that rises when a row's own posterior is sought.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.abilities import Finding
from ...prob.heads import Head
from ._posterior import at_floor

ACTIVE = 0.01
"""Variance of the posterior mean over rows, and nats, above which a latent unit is in use."""
APART = 0.25
"""Nats for each unit by which moments of codes may miss those of the prior."""
LAG = 0.03
"""Share of the bound that seeking a row's own posterior may gain."""


def collapse(mean: Tensor, rates: Tensor) -> Finding | None:
    """mean: codes of the rows, (B, latent); rates: what units cost, (B, U)."""
    used, units = mean.var(0) > ACTIVE, mean.shape[1]
    if rates.shape[1] == units:
        used &= rates.mean(0) > ACTIVE
    active, rate = int(used.sum()), float(rates.sum(1).mean())
    if 2 * active >= units:
        return None
    remedy = (
        f"latent={active} would do as well"
        if active
        else "try anneal=2000 or free=0.1, or a smaller decoder"
    )
    return Finding(
        "posterior collapse",
        f"{active} of {units} latent units tell rows apart and "
        f"the code holds {rate:.2f} nats, {rate / units:.2f} a unit",
        remedy,
    )


def aggregate(
    codes: Tensor,
    prior: Tensor,
    remedy: str = "raise beta, or let the prior follow the codes: prior=mixture",
) -> Finding | None:
    """codes: of data, (B, latent); prior: drawn from the prior, (N, latent)."""
    units = codes.shape[1]
    if len(codes) < 4 * units:
        return None
    chance = units * (units + 3) / 4 * (1 / len(codes) + 1 / len(prior))  # what moments miss by
    far = apart(codes.double(), prior.double()) - chance
    if far < APART * units:
        return None
    return Finding(
        "codes far from the prior",
        f"codes of data lie {far:.1f} nats from the law "
        "that codes are drawn from, so that samples are decoded from where no data "
        "are",
        remedy,
    )


def apart(first: Tensor, second: Tensor) -> float:
    """KL(N(m, S) || N(m_0, S_0)) of the moments of two sets of rows, in nats."""
    (m, s), (m0, s0) = moments(first), moments(second)
    root = torch.linalg.cholesky(s0)
    gap = torch.linalg.solve_triangular(root, (m - m0)[:, None], upper=False)
    inner = torch.linalg.solve_triangular(root, torch.linalg.cholesky(s), upper=False)
    log_det = inner.diagonal().log().sum()
    return float(0.5 * (inner.square().sum() + gap.square().sum() - len(m)) - log_det)


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (D,) and covariance (D, D), which is never quite singular."""
    covariance = torch.cov(rows.T).reshape(rows.shape[1], -1)
    return rows.mean(0), covariance + 1e-6 * torch.eye(len(covariance)).to(covariance)


def degenerate(head: Head, params: Tensor) -> Finding | None:
    """Gaussians that rest on the floor of their scale."""
    stuck = at_floor(head, params)
    if not stuck:
        return None
    return Finding(
        "degenerate scale",
        f"the Gaussians of {stuck} of {head.dims} entries are as "
        "narrow as they may be: their values repeat, or follow from the others",
        "declare them levels, counts or labels, or drop them",
    )


def lagging(gain: float, bound: float) -> Finding | None:
    """gain: nats by which the bound of a row rises when its own posterior is sought."""
    if gain < max(LAG * abs(bound), 0.5):
        return None
    return Finding(
        "encoder lags",
        f"posteriors sought for each row alone raise the bound by "
        f"{gain:.1f} nats: the encoder has not learned rows it has not seen",
        "train longer or on more rows, widen net, or score with score.refine=50",
    )
