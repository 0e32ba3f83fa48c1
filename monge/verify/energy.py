r"""Identities of energy-based models, $p(v) = e^{-F(v)} / Z$, on machines that can be enumerated.

$\nabla \log Z = -E_p \nabla F$, so that the gradient of $-\log p$ of data is that of F at data
less that of F at samples; and a Gibbs turn leaves p as it is.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ..core.batch import Batch
from ..models.energy.rbm import RBM
from .framework import Residual, SkipIdentity

MAX_UNITS = 10
"""Units of a side whose states are enumerated."""


def x125_the_gradient_is_that_of_free_energies(model: RBM, batch: Batch) -> Residual:
    """grad of -log p(v) = grad F(v) - E_p grad F.

    Source: Hinton 2002, Training Products of Experts by Minimizing Contrastive Divergence, eq.
    3."""
    visible, _ = both_sides(model)
    v = model.flat(batch)
    with torch.enable_grad():
        direct = gradients(model, -model.likelihood(batch).value.mean())
        p = (-model.free_energy(visible)).softmax(0).detach()
        gap = model.free_energy(v).mean() - (p * model.free_energy(visible)).sum()
        found = gradients(model, gap)
    return Residual(float((direct - found).abs().amax()), 1e-10)


def x125_a_gibbs_turn_keeps_the_distribution(model: RBM, batch: Batch) -> Residual:
    """sum_v p(v) sum_h p(h|v) p(v'|h) = p(v').

    Source: Salakhutdinov & Murray 2008, On the Quantitative Analysis of Deep Belief Networks, sec.
    2."""
    visible, hidden = both_sides(model)
    p = (-model.free_energy(visible)).softmax(0)
    forward = chances(model.hidden_probabilities(visible), hidden)  # (V, H)
    back = chances(model.visible_probabilities(hidden), visible)  # (H, V)
    found = model.likelihood(Batch(visible.reshape(-1, *model.space.shape))).value.exp()
    return Residual(float(torch.stack([p @ forward @ back - p, found - p]).abs().amax()), 1e-10)


def both_sides(model: RBM) -> tuple[Tensor, Tensor]:
    """All states of the visible and of the hidden units."""
    sizes = model.space.dims, model.config.hidden
    if max(sizes) > MAX_UNITS:
        raise SkipIdentity(f"it has {sizes[0]} and {sizes[1]} units, too many to enumerate")
    visible, hidden = (
        torch.tensor([*itertools.product((0.0, 1.0), repeat=size)]).to(model.visible)
        for size in sizes
    )
    return visible, hidden


def chances(probabilities: Tensor, states: Tensor) -> Tensor:
    """The probability of every state (S, U) given those of its units (N, U), (N, S)."""
    one, zero = probabilities.log() @ states.T, (-probabilities).log1p() @ (1 - states).T
    return (one + zero).exp()


def gradients(model: RBM, value: Tensor) -> Tensor:
    found = torch.autograd.grad(value, [*model.parameters()])
    return torch.cat([each.flatten() for each in found])
