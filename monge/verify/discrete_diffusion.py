r"""Identities of discrete diffusion: chains of states, and any order as its limit.

A step of the forward chain is the matrix $Q = a I + (1 - a) 1 \pi^\top$, so that products of such
matrices have the same form, with the product of the a. Bayes' rule gives the step back given the
data. Where values are masked, the bound in continuous time is the integral over t of a polynomial,
which D points of Gauss and Legendre integrate exactly, and equals the mean over all D! orders of
the autoregressive log-likelihood.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.batch import Batch
from ..models.diffusion.d3pm import D3PM, CodedRows, Corruption
from .framework import Residual, SkipIdentity

STATES, STEPS = 5, 4
"""States and steps of the chains whose matrices are multiplied."""
MAX_ENTRIES = 6
"""Entries whose orders and masks are listed."""
ROUNDING = 1e-11
"""What float64 leaves of sums over orders or masks, for each nat."""


def chains() -> tuple[Corruption, Tensor, Tensor]:
    """One chain that masks values and one that replaces them, the matrices of their steps
    (STEPS, 2, S, S), rows the states they start from, and the shares that are kept (STEPS,)."""
    masked = F.one_hot(torch.tensor(STATES - 1), STATES).double()
    uniform = torch.ones(STATES, dtype=torch.float64) / STATES
    rest = torch.stack([masked, uniform])  # (2, S)
    kept = torch.tensor([0.9, 0.7, 0.5, 0.2], dtype=torch.float64)
    still = torch.eye(STATES, dtype=torch.float64)
    a = kept[:, None, None, None]
    return Corruption(rest), a * still + (1 - a) * rest[:, None], kept


def states() -> Tensor:
    """Every state of both chains at once, (S, 2)."""
    return torch.arange(STATES)[:, None].expand(-1, 2)


def x127_noise_is_the_product_of_its_steps() -> Residual:
    """q(x_t | x) is a row of the product of the matrices of the steps.

    Examines: models.diffusion.d3pm.

    Source: Austin et al. 2021, Structured Denoising Diffusion Models in Discrete State-Spaces,
    sec. 3."""
    chain, matrices, kept = chains()
    worst, product = [], torch.eye(STATES, dtype=torch.float64).expand(2, -1, -1)
    for step in range(STEPS):
        product = product @ matrices[step]  # (2, S, S)
        alpha = kept[: step + 1].prod().expand(STATES, 1)
        away = chain.marginal(states(), alpha).transpose(0, 1)  # (2, S, S)
        back = chain.arrival(states(), alpha).transpose(0, 1)
        worst += [(away - product).abs().amax(), (back - product.mT).abs().amax()]
    return Residual(float(torch.stack(worst).amax()), 1e-14)


def x127_a_step_back_follows_from_bayes_rule() -> Residual:
    """q(x_s | x_t, x) = q(x_t | x_s) q(x_s | x) / q(x_t | x).

    Examines: models.diffusion.d3pm.

    Source: Austin et al. 2021, Structured Denoising Diffusion Models in Discrete State-Spaces,
    sec. 3."""
    chain, matrices, kept = chains()
    before, worst = matrices[0] @ matrices[1], []  # (2, S, S): q(x_s | x)
    after = before @ matrices[2]  # q(x_t | x)
    there, here = kept[:2].prod().expand(1, 1), kept[:3].prod().expand(1, 1)
    for z, x in itertools.product(range(STATES), repeat=2):
        rows = torch.full((1, 2), z), torch.full((1, 2), x)
        joint = matrices[2, :, :, z] * before[:, x]  # (2, S)
        found = chain.posterior(*rows, here, there)[0]
        p = F.one_hot(rows[1], STATES).double()
        mixed = chain.reverse(p, rows[0], here, there)[0]
        possible = after[:, x, z] > 0  # a masked value comes back as x, an unmasked one is x
        exact = joint / after[:, x, z, None]
        worst += [(each - exact)[possible].abs().amax() for each in (found, mixed)]
    return Residual(float(torch.stack(worst).amax()), 1e-14)


def masked_sets(dims: int) -> list[tuple[int, ...]]:
    """All sets of entries but the empty one."""
    sizes = range(1, dims + 1)
    return [each for size in sizes for each in itertools.combinations(range(dims), size)]


def predictions(model: D3PM, rows: CodedRows) -> dict[tuple[int, ...], Tensor]:
    """log p of the masked entries given the others, (B, D), of every set of masked entries."""
    dims = model.space.dims
    if not model.is_absorbing or model.space.varies or dims > MAX_ENTRIES:
        raise SkipIdentity(f"needs values that are masked, of at most {MAX_ENTRIES} entries")
    found = {}
    for entries in masked_sets(dims):
        masked = torch.zeros_like(rows.exist)
        masked[:, entries] = True
        found[entries] = model.masked_log_prob(rows, masked) * masked
    return found


def x127_continuous_time_is_the_mean_over_orders(model: D3PM, batch: Batch) -> Residual:
    """int 1/t E_M sum_M log p(x_i | x_not M) dt = E_o log p_o(x).

    Source: Hoogeboom et al. 2022, Autoregressive Diffusion Models, sec. 3; Shi et al. 2024,
    Simplified and Generalized Masked Diffusion for Discrete Data."""
    rows, dims = model.read(batch), model.space.dims
    log_p = predictions(model, rows)
    along = []
    for order in itertools.permutations(range(dims)):
        rest = [tuple(sorted(order[place:])) for place in range(dims)]
        steps = zip(rest, order, strict=True)
        along.append(torch.stack([log_p[masked][:, entry] for masked, entry in steps]).sum(0))
    orders = torch.stack(along).mean(0)  # (B,)
    nodes, shares = np.polynomial.legendre.leggauss(dims)
    integral = torch.zeros_like(orders)
    for node, share in zip((nodes + 1) / 2, shares / 2, strict=True):
        for masked, each in log_p.items():
            chance = node ** len(masked) * (1 - node) ** (dims - len(masked))
            integral += share * chance / node * each.sum(1)
    bound = model.summed_bound(rows, None)
    gap = torch.maximum((integral - orders).abs().amax(), (bound - orders).abs().amax())
    return Residual(float(gap), ROUNDING * max(float(orders.abs().amax()), 1.0))


def x127_the_bound_is_the_sum_of_its_divergences(model: D3PM, batch: Batch) -> Residual:
    """sum_t E KL(q(x_s | x_t, x), p(x_s | x_t)) = -sum of log p of the masked.

    Source: Sahoo et al. 2024, Simple and Effective Masked Diffusion Language Models; Austin et al.
    2021, Structured Denoising Diffusion Models in Discrete State-Spaces."""
    rows, dims = model.read(batch), model.space.dims
    predictions(model, rows)  # skips what cannot be listed
    total, one = torch.zeros(len(batch), dtype=torch.float64), torch.ones(len(batch), 1).double()
    for step, entries in itertools.product(range(1, STEPS + 1), masked_sets(dims)):
        t, m = step / STEPS, len(entries)
        if not (chance := t**m * (1 - t) ** (dims - m)):
            continue
        z = rows.codes.clone()
        z[:, entries] = model.values
        p = F.pad(model.predict(z, one * (1 - t), rows.conditions).exp(), (0, 1))
        p = torch.where((z == model.values)[..., None], p, model.corruption.indicator(z))
        kl = model.corruption.divergence(
            p, z, rows.codes, one * (1 - t), one * (1 - t + 1 / STEPS)
        )
        total += chance * kl.sum(1)
    bound = model.summed_bound(rows, STEPS)
    scale = max(float(bound.abs().amax()), 1.0)
    return Residual(float((total + bound).abs().amax()), ROUNDING * scale)
