r"""Identities of energy-based models, $p(v) = e^{-F(v)} / Z$, on machines that can be enumerated
and on energies of one number, which can be integrated.

$\nabla \log Z = -E_p \nabla F$, so that the gradient of $-\log p$ of data is that of F at data
less that of F at samples; Gibbs turns and Hamiltonian moves leave p as it is; logistic regression
against a base b is best at $-E = \log p / b$; and annealed weights have the mean Z.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.model import Model
from ..core.rng import make_generator
from ..core.space import Space
from ..models._annealing import NormalPath, leap
from ..models.energy.ebm import EBM
from ..models.energy.rbm import RBM
from ..nn.mlp import MLP
from ..solve.quadrature import lattice
from .framework import Residual, SkipIdentity

MAX_UNITS = 10
"""Units of a side whose states are enumerated."""
LINE, PLANE = (4001, 9.0), (241, 8.0)
"""Points of a grid over a line and along each side of a plane, and how far it reaches."""
QUANTILES = 40_000
"""Equally likely points that stand for samples."""
MAX_STANDARD_ERRORS = 5.0
"""Standard errors by which an estimate may be off."""


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


def x125_contrastive_divergence_follows_the_likelihood() -> Residual:
    """With chains that are samples of p, grad of the loss = grad of -log p.

    Examines: models.energy.ebm.

    Source: Hinton 2002, Training Products of Experts by Minimizing Contrastive Divergence, eq. 3;
    Du & Mordatch 2019, Implicit Generation and Modeling with Energy-Based Models, eq. 2."""
    model, rows = on_a_line(chains=QUANTILES, moved=QUANTILES), Batch(torch.randn(16, 1).double())
    w, _ = lattice(1, *LINE)
    with torch.enable_grad():
        direct = gradients(model, log_z(model) - model.log_density(rows.x).mean())
        model.states.copy_(quantiles(w, -model.energy(w).detach() - w[:, 0].square() / 2))
        found = gradients(model, model.loss(rows)["energy"].mean())
    return Residual(float((direct - found).abs().amax() / direct.abs().amax()), 1e-3)


def x125_noise_contrast_is_least_at_the_log_ratio() -> Residual:
    """At -E = log p / b, log Z included, the gradient of the NCE loss is 0.

    Examines: models.energy.ebm.

    Source: Gutmann & Hyvärinen 2010, Noise-contrastive Estimation: A New Estimation Principle for
    Unnormalized Statistical Models, theorem 1."""
    model, (w, _) = on_a_line(), lattice(1, *LINE)
    assert isinstance(model.net, MLP)
    model.net.out.bias.add_(log_z(model))
    data = quantiles(w, -model.energy(w) - w[:, 0].square() / 2)
    levels = (torch.arange(2 * QUANTILES, dtype=torch.float64) + 0.5) / (2 * QUANTILES)
    noise = torch.special.ndtri(levels)[:, None]

    def gradient() -> Tensor:
        with torch.enable_grad():
            return gradients(model, model.regression(data, noise).mean())

    found = gradient()
    model.net.out.bias.sub_(0.1)
    beside = gradient()
    return Residual(float(found.abs().amax() / beside.abs().amax()), 1e-2)  # of the quantiles


def x125_a_hamiltonian_move_keeps_the_distribution() -> Residual:
    """E f(w') = E f(w) if w ~ b e^(-beta E) and w' is w after a move.

    Examines: models.energy.ebm.

    Source: Shahbaba et al. 2014, Split Hamiltonian Monte Carlo, sec. 2; Neal 2011, MCMC Using
    Hamiltonian Dynamics, sec. 3.2."""
    model, beta = on_a_line(), 0.7
    points, _ = lattice(2, *PLANE)
    w, momentum = points[:, :1], points[:, 1:]
    p = (-beta * model.energy(w) - points.square().sum(1) / 2).softmax(0)
    start = model.evaluate(w)
    step = torch.full((1, 1), 0.9, dtype=torch.float64)
    end, chance = leap(model.evaluate, start, momentum, beta, step, leaps=2)

    def statistics(w: Tensor) -> Tensor:
        return torch.cat([w, w.square(), w.sin()], 1)

    moved = chance[:, None] * (statistics(end.w) - statistics(w))
    return Residual(float((p @ moved).abs().amax()), 1e-3)


def x125_annealed_weights_have_the_mean_z() -> Residual:
    """E_b e^-E = the mean weight of few temperatures, in standard errors.

    The energy is (k - 1) (w - m)^2 / 2, so that Z = k^(-D/2) e^(-D m^2 (k - 1) / (2 k)).

    Examines: models.energy.ebm.

    Source: Neal 2001, Annealed Importance Sampling, sec. 2."""
    model, k, m, dims = on_a_line(dims=3), 4.0, 0.5, 3

    class Bowl(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return (k - 1) * (y - m).square().sum(1) / 2

    model.net = Bowl()
    known = -dims / 2 * (math.log(k) + m * m * (k - 1) / k)
    generator = make_generator(int(torch.randint(1 << 30, ())))
    start, noise = model.sample_base(20_000, generator), model.move_noise(20_000, generator)
    path = NormalPath(model.evaluate, 1, torch.full((1, 1), 0.5, dtype=torch.float64))
    _, log_weight = path.run(start, 4, noise)
    ratio = (log_weight - known).exp()  # its mean is 1
    error = ratio.std() / math.sqrt(len(ratio))
    return Residual(float((ratio.mean() - 1).abs() / error), MAX_STANDARD_ERRORS)


def x125_the_estimate_is_the_integral(model: EBM, batch: Batch) -> Residual:
    """log b - E - log p is log of the integral of b e^-E, in standard errors.

    Source: Neal 2001, Annealed Importance Sampling, sec. 2."""
    if model.space.dims > 2:
        raise SkipIdentity(f"it has {model.space.dims} entries, too many to integrate over")
    if model.discrete:
        raise SkipIdentity("its events are dequantised by noise")
    found = model.likelihood(batch)
    assert found.stderr is not None
    estimate = model.log_density(model.dequantise(batch, None)) - found.value
    apart = (estimate - log_z(model)).abs() / found.stderr
    return Residual(float(apart.amax()), MAX_STANDARD_ERRORS)


def x125_the_score_is_the_slope_of_log_p(model: EBM, batch: Batch) -> Residual:
    """score(x) . v = (log p(x + h v) - log p(x - h v)) / (2 h).

    Source: Hyvärinen 2005, Estimation of Non-Normalized Statistical Models by Score Matching, sec.
    2."""
    if model.discrete:
        raise SkipIdentity("its events are dequantised by noise")
    way = torch.randn_like(batch.x) * model.space.spread("scale").double()
    h = 1e-6
    ends = [model.likelihood(Batch(batch.x + sign * h * way)).value for sign in (1, -1)]
    found = (model.score(batch) * way).flatten(1).sum(1)
    quotient = (ends[0] - ends[1]) / (2 * h)
    return Residual(float(((found - quotient).abs() / (1 + found.abs())).amax()), 1e-5)


def on_a_line(dims: int = 1, **fields: Any) -> EBM:
    """A model of some numbers with random weights, whose base is N(0, I)."""
    space = Space(kind="real", shape=(dims,), rows=100)
    model = EBM.Config(net=MLP.Config(width=8, depth=1), **fields).build(space).double().eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter))
    return model


def log_z(model: EBM) -> Tensor:
    """log of the integral of b e^-E over one number or two."""
    dims = model.space.dims
    w, log_volume = lattice(dims, *(LINE if dims == 1 else PLANE))
    log_b = -w.square().sum(1) / 2 - dims / 2 * math.log(2 * math.pi)
    return (log_b - model.energy(w)).logsumexp(0) + log_volume


def quantiles(w: Tensor, log_p: Tensor) -> Tensor:
    """Equally likely points (N, 1) of an unnormalised density on a grid (K, 1)."""
    mass = log_p.softmax(0)
    upto = mass.cumsum(0) - mass / 2
    levels = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    high = torch.searchsorted(upto, levels).clamp(1, len(w) - 1)
    part = (levels - upto[high - 1]) / (upto[high] - upto[high - 1])
    return w[high - 1] + part[:, None] * (w[high] - w[high - 1])


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


def gradients(model: Model, value: Tensor) -> Tensor:
    found = torch.autograd.grad(value, [*model.parameters()])
    return torch.cat([each.flatten() for each in found])
