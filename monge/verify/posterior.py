r"""Identities of posterior inference: ranks of parameters among samples of their posterior,
annealed weights of latent codes, and posteriors of the weights of networks.

Given a parameter and data of it, $(\theta, x) \sim p(\theta) p(x | \theta)$, the rank of $\theta$
among samples of $p(\theta | x)$ is uniform. Annealed weights have the mean p(x) for any number of
temperatures, and with one they are importance weights. A Gaussian at the maximum is the posterior
of a linear layer with Gaussian noise; moves of chains keep the energy up to the square of their
steps; and Stein's direction of particles vanishes where they follow the distribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.rng import make_generator
from ..evaluate.ranks import DRAWS, Ranks, ranks_of, uniformity
from ..models._annealing import Chains, evaluate_energy, leap
from ..models.latent._elbo import LatentVariableModel
from ..models.latent._sequential import SequentialLatentModel
from ..models.latent.vae import VAE
from ..prob.laplace import LaplacePosterior, gauss_newton
from ..solve.mcmc import split_rhat, stein_direction
from ._helpers import gap, most, normal
from .framework import Residual
from .latent import INTEGRATED, MAX_STANDARD_ERRORS, evidence

ROWS = 4000
"""Pairs of a parameter and an observation."""
GRAIN = 0.5
"""Parameters are rounded to multiples of this, so that some are equal."""
DIGITS = 6.0
"""Minus the logarithm of the p-value of ranks, to base 10, from which they are not uniform: one
check in a million fails by chance."""


def x141_ranks_among_posterior_samples_are_uniform() -> Residual:
    """The rank of theta among samples of p(theta|x) is uniform on 0..L.

    theta ~ N(0, 1) and x | theta ~ N(theta, 1), so that theta | x ~ N(x/2, 1/2); theta and the
    samples are rounded, and ties are broken at random.

    Examines: evaluate.ranks.

    Source: Talts et al. 2018, Validating Bayesian Inference Algorithms with Simulation-Based
    Calibration, theorem 1."""
    return Residual(unevenness(math.sqrt(0.5)), DIGITS)


def unevenness(scale: float) -> float:
    """-log10 of the p-value that ranks are uniform, for samples of N(x/2, scale^2)."""
    theta = normal(ROWS, 1)
    x = theta + normal(ROWS, 1)
    samples = x / 2 + scale * normal(ROWS, DRAWS)
    values = (torch.cat([theta, samples], 1) / GRAIN).round()[..., None]
    ranks = Ranks(("theta",), ranks_of(values, make_generator(int(torch.randint(1 << 30, ())))))
    return -math.log10(max(uniformity(ranks.counts()[0]), 1e-300))


def x142_annealed_weights_have_the_mean_p_of_x(model: VAE, batch: Batch) -> Residual:
    """E w = p(x) of chains from p(z) by four temperatures, in standard errors.

    Where the encoder says nothing, chains start at the prior, and weights are bounded as p(x | z)
    is, so that their standard error can be trusted.

    Source: Neal 2001, Annealed Importance Sampling, sec. 2; Wu et al. 2017, On the Quantitative
    Analysis of Decoder-Based Generative Models, sec. 3.1."""
    batch = batch[:INTEGRATED]
    known, (h, context) = evidence(model, batch), model.encoder_outputs(batch)
    options = model.LikelihoodConfig(method="ais", temperatures=4, samples=1024, leaps=1)
    found = model.annealed_bound(batch, torch.zeros_like(h), context, options, 0)
    assert found.stderr is not None, "several chains have an error"
    ratio = (found.value - known).exp()
    return Residual(
        float(((ratio - 1).abs() / (ratio * found.stderr)).amax()), MAX_STANDARD_ERRORS
    )


def x143_one_temperature_is_importance_sampling(
    model: LatentVariableModel, batch: Batch
) -> Residual:
    """ais(1 temperature) = log mean p(x,z)/q(z|x).

    Source: Neal 2001, Annealed Importance Sampling, sec. 2; Burda, Grosse & Salakhutdinov 2016,
    Importance Weighted Autoencoders, eq. 8."""
    importance, ais = (
        model.likelihood(
            batch, model.LikelihoodConfig(method=method, samples=20, temperatures=1)
        ).value
        for method in ("importance", "ais")
    )
    return Residual(float((importance - ais).abs().amax()), 1e-9)


def x143_one_temperature_is_importance_sampling_of_sequences(
    model: SequentialLatentModel, batch: Batch
) -> Residual:
    """ais(1 temperature) = log mean p(x,z)/q(z|x), codes z of all steps.

    Source: Neal 2001, Annealed Importance Sampling, sec. 2; Burda, Grosse & Salakhutdinov 2016,
    Importance Weighted Autoencoders, eq. 8."""
    whole, ais = (
        model.likelihood(
            batch, model.LikelihoodConfig(method=method, samples=8, temperatures=1, filter=False)
        ).value
        for method in ("importance", "ais")
    )
    return Residual(float((whole - ais).abs().amax()), 1e-9)


def x144_laplace_is_exact_for_linear_gaussian_models() -> Residual:
    """y|W ~ N(F W, s^2), W ~ N(0, I/a): covariance and evidence are exact.

    Examines: prob.laplace.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, eq. 3.54 and 3.86; Daxberger et
    al. 2021, Laplace Redux, sec. 2."""
    features, noise, precision = normal(30, 4), 0.5, torch.tensor(2.0, dtype=torch.float64)
    y = normal(30)
    covariance = torch.linalg.inv(features.T @ features / noise**2 + precision * torch.eye(4))
    mean = covariance @ features.T @ y / noise**2
    curvature = torch.full((30, 1, 1), 1 / noise**2, dtype=torch.float64)
    found = LaplacePosterior.fit(
        gauss_newton(features, curvature), mean.square().sum(), precision, adapt=False
    )
    gaussian = torch.distributions.Normal(features @ mean, noise)
    evidence = found.log_evidence(gaussian.log_prob(y).sum())
    marginal = features @ features.T / precision + noise**2 * torch.eye(30)
    exact = torch.distributions.MultivariateNormal(torch.zeros(30).double(), marginal).log_prob(y)
    return Residual(most(gap(found.root @ found.root.T, covariance), gap(evidence, exact)), 1e-9)


def x145_the_precision_has_the_highest_evidence() -> Residual:
    """d log p(y) / d a = 0 at the chosen precision, with W at its maximum.

    Examines: prob.laplace.

    Source: MacKay 1992, Bayesian Interpolation, sec. 4; Bishop 2006, Pattern Recognition and
    Machine Learning, eq. 3.92."""
    features, noise = normal(30, 4), 0.5
    y = features @ normal(4) + noise * normal(30)
    hessian = gauss_newton(features, torch.full((30, 1, 1), 1 / noise**2).double())
    precision = torch.ones(()).double()
    for _ in range(100):
        weights = torch.linalg.solve(hessian + precision * torch.eye(4), features.T @ y / noise**2)
        precision = LaplacePosterior.fit(hessian, weights.square().sum(), precision).precision
    with torch.enable_grad():
        a = precision.clone().requires_grad_()
        marginal = features @ features.T / a + noise**2 * torch.eye(30)
        exact = torch.distributions.MultivariateNormal(torch.zeros(30).double(), marginal)
        (slope,) = torch.autograd.grad(exact.log_prob(y), a)
    return Residual(float((slope * precision).abs()), 1e-6)


def x146_the_error_of_a_move_is_of_second_order() -> Residual:
    """H' - H of a move by steps e is O(e^2): a quarter for half the step.

    Examines: models._annealing.

    Source: Neal 2011, MCMC Using Hamiltonian Dynamics, sec. 2.3 and 5.2; Shahbaba et al. 2014,
    Split Hamiltonian Monte Carlo, sec. 2."""

    def evaluate(w: Tensor) -> Chains:
        return evaluate_energy(lambda at: (at.square().square() / 4 + at.sin()).sum(1), w)

    start, momentum = evaluate(0.5 * normal(200, 3)), normal(200, 3)

    def errors(leaps: int) -> Tensor:
        step = torch.full((1, 1), 1 / leaps, dtype=torch.float64)
        return -leap(evaluate, start, momentum, 1.0, step, leaps)[1].log()  # where H rises

    coarse, fine = errors(64), errors(128)
    rising = (coarse > coarse.median()) & (fine > 0)
    ratio = coarse[rising] / fine[rising]
    return Residual(float((ratio - 4).abs().median()), 0.1)


def x147_steins_direction_vanishes_at_the_distribution() -> Residual:
    """E_p[k grad log p(w') + grad_w' k] = 0, and one particle climbs.

    Examines: solve.mcmc.

    Source: Liu & Wang 2016, Stein Variational Gradient Descent: A General Purpose Bayesian
    Inference Algorithm, sec. 2 and 3."""
    levels = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    mean, scale = 1.5, 0.7
    w = mean + scale * torch.special.ndtri(levels)[:, None]
    score = (mean - w) / scale**2
    bandwidth = torch.tensor(1.3, dtype=torch.float64)
    still = stein_direction(w, score, bandwidth)
    moved = stein_direction(w + 0.5, score - 0.5 / scale**2, bandwidth)
    alone = stein_direction(w[:1], score[:1]) - score[:1]
    return Residual(
        most(float(still.abs().amax() / moved.abs().amax()), gap(alone, 0 * alone)), 0.01
    )


def x148_chains_that_agree_have_rhat_one() -> Residual:
    """R-hat^2 = (S-1)/S + var(chain means)/mean(var): 1 if halves agree.

    The states of two chains are those of one set in four orders, so that all halves have one mean
    and one variance; moved apart by d standard deviations the chains have
    R-hat^2 = (S-1)/S + d^2 / 3.

    Examines: solve.mcmc.

    Source: Gelman et al. 2013, Bayesian Data Analysis, eq. 11.4."""
    base = normal(50)
    base = (base - base.mean()) / base.std()
    halves = [base[torch.randperm(50)] for _ in range(4)]
    chains = torch.stack([torch.cat(halves[:2]), torch.cat(halves[2:])], 1)  # (S, 2)
    apart = chains + torch.tensor([0.0, 3.0], dtype=torch.float64)
    found = torch.stack([split_rhat(chains), split_rhat(apart)]).square()
    known = torch.tensor([49 / 50, 49 / 50 + 3.0**2 / 3], dtype=torch.float64)
    return Residual(gap(found, known), 1e-9)
