"""How a linear autoregression is fitted: least squares, Yule-Walker, or exact likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...prob.linear_ar import (
    conditional_means,
    levinson,
    prediction_variances,
    sample_autocovariance,
    step_down,
    step_up,
)

CLOSEST = 3.5
"""Partial autocorrelations begin no closer to one than the hyperbolic tangent of this."""


@dataclass(frozen=True)
class ARFit:
    """x_t = b_0 + sum_j phi_j x_{t-j} + e_t with e_t of variance v; errors of b_0 and phi."""

    intercept: Tensor  # ()
    phi: Tensor  # (p,)
    v: Tensor  # ()
    stderr: Tensor  # (p,): of phi
    count: int  # values that the fit explains


def join_windows(x: Tensor) -> list[Tensor]:
    """Windows (N, T, C) as series (n, T', C): those that overlap by all but a step are one, so
    that no value counts twice; without such, all of them as they are."""
    if len(x) < 2 or x.shape[1] < 2:
        return [x]
    follows = (x[1:, :-1] == x[:-1, 1:]).flatten(1).all(1)
    if not bool(follows.any()):
        return [x]
    begins = torch.cat([follows.new_ones(1), ~follows]).nonzero()[:, 0].tolist()
    ends = [*begins[1:], len(x)]
    return [torch.cat([x[a], x[a + 1 : b, -1]])[None] for a, b in zip(begins, ends, strict=True)]


def select(pieces: list[Tensor], most: int, criterion: str) -> int:
    """The order up to `most` with the smallest criterion, for series (n, T) each."""
    count = sum(piece.numel() for piece in pieces)
    _, v = levinson(covariances(pieces, most))
    price = 2.0 if criterion == "aic" else math.log(count)
    score = count * v.clamp_min(1e-300).log() + price * torch.arange(most + 1).to(v)
    return int(score.argmin())


def covariances(pieces: list[Tensor], lags: int) -> Tensor:
    """Of all pieces about their common mean."""
    count = sum(piece.numel() for piece in pieces)
    mean = sum(float(piece.sum()) for piece in pieces) / count
    parts = [piece.numel() / count * sample_autocovariance(piece - mean, lags) for piece in pieces]
    return torch.stack(parts).sum(0)


def least_squares(pieces: list[Tensor], order: int) -> ARFit:
    """Every value that has `order` before it, regressed on these and on 1."""
    rows = [
        torch.cat([torch.ones_like(part[..., :1]), part[..., :-1].flip(-1)], -1).flatten(0, 1)
        for part in (piece.unfold(1, order + 1, 1) for piece in pieces)
    ]
    aims = [piece[:, order:].reshape(-1) for piece in pieces]
    a, y = torch.cat(rows), torch.cat(aims)
    inverse = torch.linalg.pinv(a.mT @ a, hermitian=True)
    b = inverse @ (a.mT @ y)
    v = (y - a @ b).square().sum() / max(len(y) - order - 1, 1)
    return ARFit(
        b[0], b[1:], v.clamp_min(1e-12), (v * inverse.diagonal()).clamp_min(0).sqrt()[1:], len(y)
    )


def yule_walker(pieces: list[Tensor], order: int) -> ARFit:
    """From autocovariances about the mean; always stationary."""
    gamma = covariances(pieces, order)
    gamma = torch.cat([gamma[:1].clamp_min(1e-12), gamma[1:]])
    kappa, v = levinson(gamma)
    phi, count = step_up(kappa), sum(piece.numel() for piece in pieces)
    mean = sum(float(piece.sum()) for piece in pieces) / count
    return ARFit(
        mean * (1 - phi.sum()), phi, v[-1].clamp_min(1e-12), errors(gamma, v[-1], count), count
    )


def errors(gamma: Tensor, v: Tensor, count: int) -> Tensor:
    """sqrt(v / n) of the roots of the diagonal of the inverse covariance matrix, (p,)."""
    order = len(gamma) - 1
    place = torch.arange(order)
    matrix = gamma[(place[:, None] - place).abs()]
    inverse = torch.linalg.pinv(matrix, hermitian=True)
    return (v / count * inverse.diagonal()).clamp_min(0).sqrt()


def maximum_likelihood(pieces: list[Tensor], order: int) -> ARFit:
    """The maximum of the exact likelihood, by quasi-Newton steps from Yule-Walker: over the mean,
    the logarithm of the scale and artanh of each partial autocorrelation, which keeps the series
    stationary."""
    from scipy.optimize import minimize

    begin = yule_walker(pieces, order)
    kappa, _ = step_down(begin.phi)
    reach = math.tanh(CLOSEST)
    start = torch.cat(
        [
            (begin.intercept / (1 - begin.phi.sum()))[None],
            begin.v.log()[None] / 2,
            kappa.clamp(-reach, reach).atanh(),
        ]
    )
    scale = begin.v.sqrt()  # what a step of the mean is measured in
    count = sum(piece.numel() for piece in pieces)

    def read(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        phi = step_up(u[2:].tanh())
        return scale * u[0] * (1 - phi.sum()), phi, (2 * u[1]).exp()

    def cost(point: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            u = torch.from_numpy(point).requires_grad_()
            each = [log_likelihood(piece, *read(u)).sum() for piece in pieces]
            value = -torch.stack(each).sum() / count
            (slope,) = torch.autograd.grad(value, u)
        return float(value.detach()), slope.numpy()

    start[0] /= scale
    found = minimize(
        cost,
        start.numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 200, "ftol": 1e-12, "gtol": 1e-8},
    )
    intercept, phi, v = read(torch.from_numpy(found.x))
    return ARFit(intercept, phi, v, errors(covariances(pieces, order), v, count), count)


def log_likelihood(x: Tensor, intercept: Tensor, phi: Tensor, v: Tensor) -> Tensor:
    """Of stationary series x (N, T), exactly, (N,)."""
    first, spread = beginning(phi[None], v[None], x.shape[1])
    mean = conditional_means(x[..., None], intercept[None], phi[None], first)[..., 0]
    each = (x - mean).square() / spread[0] + spread[0].log() + math.log(2 * math.pi)
    return -0.5 * each.sum(1)


def beginning(phi: Tensor, v: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The predictors of the first p values of stationary series, (C, p, p), and the variance of
    every value given those before it, (C, T)."""
    order = phi.shape[-1]
    kappa, predictors = step_down(phi)
    rows = [torch.nn.functional.pad(each, (0, order - each.shape[-1])) for each in predictors]
    first = torch.stack(rows[:order], 1) if order else phi[:, None, :][:, :0]
    early = prediction_variances(kappa, v)[:, :order]
    late = v[:, None].expand(-1, max(steps - order, 0))
    return first, torch.cat([early, late], 1)[:, :steps]
