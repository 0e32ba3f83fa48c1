r"""Identities of linear autoregression: variances, autocovariances and the exact likelihood.

$x_t = \mu + \sum_j \phi_j (x_{t-j} - \mu) + \varepsilon_t$ is a linear map of its noise, so every
covariance is a product of matrices; the recursions must agree with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.space import Space
from ..models.sequence.linear_ar import LinearAR
from ..prob.linear_ar import autocovariance, is_stationary, levinson, step_down, step_up
from ._helpers import gap, most, normal
from .framework import Residual

STEPS, RHO, SIGMA, MEAN = 12, 0.8, 0.7, 3.0
ROUNDING = 1e-12


def built(phi: Tensor, start: str) -> LinearAR:
    """The model of a series of STEPS values with these coefficients."""
    space = Space(kind="real", shape=(STEPS,), rows=1)
    config = LinearAR.Config(order=len(phi)).override(f"start={start}")
    model: LinearAR = config.build(space).double()
    model.phi.copy_(phi)
    model.intercept.fill_(MEAN * float(1 - phi.sum()))
    model.variance.fill_(SIGMA**2)
    return model.eval()


def covariance(phi: Tensor, first: Tensor) -> Tensor:
    """Of STEPS values, (STEPS, STEPS): of x - mu = A e, if the first values follow `first`."""
    order = len(phi)
    system = torch.eye(STEPS, dtype=torch.float64)
    noise = SIGMA**2 * torch.eye(STEPS, dtype=torch.float64)
    noise[: len(first), : len(first)] = first
    for t in range(len(first), STEPS):
        for lag in range(1, min(order, t) + 1):
            system[t, t - lag] = -phi[lag - 1]
    inverse = torch.linalg.inv(system)
    return inverse @ noise @ inverse.mT


def stable() -> Tensor:
    """Coefficients of a stationary series."""
    return step_up(torch.tensor([0.6, -0.5, 0.3], dtype=torch.float64))


def toeplitz(phi: Tensor, size: int) -> Tensor:
    gamma = autocovariance(phi, torch.tensor(SIGMA**2, dtype=torch.float64), size - 1)
    place = torch.arange(size)
    return gamma[(place[:, None] - place).abs()]


def x109_variance_grows_from_the_mean() -> Residual:
    """From x_1 = mu + e, Var x_t = sigma^2 (1 - rho^2t) / (1 - rho^2).

    Examines: models.sequence.linear_ar.

    Source: Hamilton 1994, Time Series Analysis, sec. 3.4."""
    phi = torch.tensor([RHO], dtype=torch.float64)
    model, t = built(phi, "mean"), torch.arange(1, STEPS + 1).double()
    variances = SIGMA**2 * (1 - RHO ** (2 * t)) / (1 - RHO**2)
    matrix = covariance(phi, torch.tensor([[SIGMA**2]], dtype=torch.float64))
    distribution = torch.distributions.MultivariateNormal(
        torch.full((STEPS,), MEAN).double(), matrix
    )
    x = MEAN + normal(5, STEPS)
    return Residual(
        most(
            gap(matrix.diagonal(), variances),
            gap(model.log_prob(Batch(x)), distribution.log_prob(x)),
        ),
        ROUNDING,
    )


def x109_autocovariance_of_a_stationary_start() -> Residual:
    """gamma(k) = sigma^2 rho^|k| / (1 - rho^2) is kept by the recursion.

    Examines: prob.linear_ar.

    Source: Hamilton 1994, Time Series Analysis, sec. 3.4."""
    phi, lag = torch.tensor([RHO], dtype=torch.float64), torch.arange(STEPS).double()
    covariances = SIGMA**2 * RHO**lag / (1 - RHO**2)
    matrix = covariance(phi, covariances[:1, None])
    return Residual(
        most(gap(toeplitz(phi, STEPS)[0], covariances), gap(matrix, toeplitz(phi, STEPS))),
        ROUNDING,
    )


def x109_stationary_covariance_is_kept_by_the_recursion() -> Residual:
    """A stationary start of AR(p) gives covariances of the lag alone.

    Examines: prob.linear_ar.

    Source: Hamilton 1994, Time Series Analysis, sec. 3.4."""
    phi = stable()
    matrix = covariance(phi, toeplitz(phi, len(phi)))
    return Residual(gap(matrix, toeplitz(phi, STEPS)), ROUNDING)


def x109_exact_likelihood_is_the_product_of_conditionals() -> Residual:
    """log N(x; mu, Gamma) = sum_t log p(x_t | x_<t).

    Examines: models.sequence.linear_ar, prob.linear_ar.

    Source: Hamilton 1994, Time Series Analysis, sec. 5.3."""
    phi, x = stable(), MEAN + normal(5, STEPS)
    distribution = torch.distributions.MultivariateNormal(
        torch.full((STEPS,), MEAN).double(), toeplitz(phi, STEPS)
    )
    return Residual(
        gap(built(phi, "stationary").log_prob(Batch(x)), distribution.log_prob(x)), 1e-11
    )


def x109_yule_walker_equations() -> Residual:
    """Gamma phi = gamma, and gamma(0) - phi . gamma = sigma^2.

    Examines: prob.linear_ar.

    Source: Brockwell & Davis 1991, Time Series: Theory and Methods, sec. 8.1."""
    phi = stable()
    order = len(phi)
    gamma = toeplitz(phi, order + 1)[0]
    kappa, v = levinson(gamma)
    noise = gamma[0] - phi @ gamma[1:]
    found = torch.stack([noise, v[-1]])
    return Residual(
        most(
            gap(toeplitz(phi, order) @ phi, gamma[1:]),
            gap(step_up(kappa), phi),
            gap(found, torch.full_like(found, SIGMA**2)),
        ),
        ROUNDING,
    )


def x109_stationary_where_roots_lie_inside() -> Residual:
    """Every |kappa_m| < 1 iff every root of z^p = sum_j phi_j z^(p-j) does.

    Examines: prob.linear_ar.

    Source: Barndorff-Nielsen & Schou 1973, On the Parametrization of Autoregressive Models by
    Partial Autocorrelations."""
    wrong = 0
    for phi in 1.5 * normal(200, 3):
        companion = torch.zeros(3, 3, dtype=torch.float64)
        companion[0], companion[1, 0], companion[2, 1] = phi, 1.0, 1.0
        inside = bool((torch.linalg.eigvals(companion).abs() < 1).all())
        wrong += inside != bool(is_stationary(phi))
    back = step_up(step_down(stable())[0])
    return Residual(wrong + gap(back, stable()), ROUNDING)
