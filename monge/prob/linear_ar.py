r"""Linear autoregression $x_t = b_0 + \sum_{j=1}^p \phi_j x_{t-j} + \varepsilon_t$, of variance v.

The recursion of Levinson (1947) and Durbin (1960) relates the coefficients $\phi^{(m)}$ of the
best predictor from m values to the partial autocorrelations $\kappa_m = \phi^{(m)}_m$:

$\phi^{(m)}_j = \phi^{(m-1)}_j - \kappa_m \phi^{(m-1)}_{m-j}$,  $v_m = v_{m-1} (1 - \kappa_m^2)$.

Run downwards from $\phi^{(p)}$ it gives the predictors of the first values of a stationary series,
hence its exact likelihood, and $v_0$ is its variance; the series is stationary iff every
$|\kappa_m| < 1$. All tensors may have leading axes, with one series each.
"""

from __future__ import annotations

import torch
from torch import Tensor


def step_up(kappa: Tensor) -> Tensor:
    """Partial autocorrelations (..., p) to coefficients (..., p)."""
    phi = kappa[..., :0]
    for m in range(kappa.shape[-1]):
        k = kappa[..., m : m + 1]
        phi = torch.cat([phi - k * phi.flip(-1), k], -1)
    return phi


def step_down(phi: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Coefficients (..., p) to partial autocorrelations (..., p) and to the coefficients
    (..., m) of the predictors from m = 0, ..., p values. They may not be finite if the
    series is not stationary."""
    predictors, kappa = [phi], []
    for _ in range(phi.shape[-1]):
        k, rest = phi[..., -1:], phi[..., :-1]
        kappa.append(k)
        phi = (rest + k * rest.flip(-1)) / (1 - k.square())
        predictors.append(phi)
    found = torch.cat(kappa[::-1], -1) if kappa else phi
    return found, predictors[::-1]


def is_stationary(phi: Tensor) -> Tensor:
    """Whether each series with coefficients (..., p) is stationary, (...)."""
    kappa, _ = step_down(phi)
    return (kappa.abs() < 1).all(-1)


def prediction_variances(kappa: Tensor, v: Tensor) -> Tensor:
    """The error variances of the predictors from 0, ..., p values, (..., p + 1), given the last
    one, v (...)."""
    rest = (1 - kappa.square()).flip(-1).cumprod(-1).flip(-1)  # prod over m > k
    return v[..., None] / torch.cat([rest, torch.ones_like(v)[..., None]], -1)


def autocovariance(phi: Tensor, v: Tensor, lags: int) -> Tensor:
    r"""$\gamma(0), ..., \gamma(lags)$ of the stationary series, (..., lags + 1)."""
    kappa, predictors = step_down(phi)
    gamma, most = prediction_variances(kappa, v)[..., :1], phi.shape[-1]
    for lag in range(1, lags + 1):
        own = predictors[min(lag, most)]
        past = gamma.flip(-1)[..., : own.shape[-1]]
        gamma = torch.cat([gamma, (own * past).sum(-1, keepdim=True)], -1)
    return gamma


def levinson(gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Autocovariances (..., p + 1) to partial autocorrelations (..., p) and to the variances of
    the predictors from 0, ..., p values, by the Yule-Walker equations."""
    phi, v = gamma[..., :0], gamma[..., :1]
    kappa, every = [], [v]
    for m in range(1, gamma.shape[-1]):
        past = gamma[..., 1:m].flip(-1)
        k = (gamma[..., m : m + 1] - (phi * past).sum(-1, keepdim=True)) / v
        phi, v = torch.cat([phi - k * phi.flip(-1), k], -1), v * (1 - k.square())
        kappa.append(k)
        every.append(v)
    return (torch.cat(kappa, -1) if kappa else phi), torch.cat(every, -1)


def sample_autocovariance(x: Tensor, lags: int) -> Tensor:
    """The pooled autocovariances of series x (N, T) with mean zero, (lags + 1,), divided by the
    number of all values so that their matrix is positive definite."""
    products = [(x[:, lag:] * x[:, : x.shape[1] - lag]).sum() for lag in range(lags + 1)]
    return torch.stack(products) / x.numel()


def conditional_means(x: Tensor, intercept: Tensor, phi: Tensor, first: Tensor) -> Tensor:
    """E[x_t | x_<t] of x (N, T, C), (N, T, C), for intercepts (C,) and coefficients (C, p).

    first (C, p, p): the coefficients of the predictors of the first p values from those before,
    of x minus its mean (0 if there are fewer); the mean is that of `intercept` and `phi`.
    """
    order, steps = phi.shape[-1], x.shape[1]
    late = intercept.expand(len(x), max(steps - order, 0), -1)
    for lag in range(1, order + 1) if steps > order else ():
        late = late + phi[:, lag - 1] * x[:, order - lag : steps - lag]
    mean = intercept / (1 - phi.sum(-1))
    early = [mean.expand(len(x), -1)] if order else []
    for t in range(1, min(order, steps)):
        past = (x[:, :t] - mean).flip(1)  # (N, t, C): lags 1, ..., t
        early.append(mean + torch.einsum("ntc,ct->nc", past, first[:, t, :t]))
    return torch.cat([torch.stack(early[:steps], 1), late], 1) if early else late
