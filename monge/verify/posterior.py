r"""Identities of posterior inference: ranks of parameters among samples of their posterior, and
annealed weights of latent codes.

Given a parameter and data of it, $(\theta, x) \sim p(\theta) p(x | \theta)$, the rank of $\theta$
among samples of $p(\theta | x)$ is uniform. Annealed weights have the mean p(x) for any number of
temperatures, and with one they are importance weights.
"""

from __future__ import annotations

import math

import torch

from ..core.batch import Batch
from ..core.rng import make_generator
from ..evaluate.ranks import DRAWS, Ranks, ranks_of, uniformity
from ..models.latent._elbo import LatentVariableModel
from ..models.latent.vae import VAE
from ._helpers import normal
from .framework import Control, Residual
from .latent import INTEGRATED, MAX_STANDARD_ERRORS, evidence

ROWS = 4000
"""Pairs of a parameter and an observation."""
GRAIN = 0.5
"""Parameters are rounded to multiples of this, so that some are equal."""
DIGITS = 6.0
"""Minus the logarithm of the p-value of ranks, to base 10, from which they are not uniform: one
check in a million fails by chance."""


def x150_ranks_among_posterior_samples_are_uniform() -> Residual:
    """(theta, x) ~ p, theta_1..L ~ p(theta|x): #{theta_l < theta} is uniform on 0..L.

    theta ~ N(0, 1) and x | theta ~ N(theta, 1), so that theta | x ~ N(x/2, 1/2); theta and the
    samples are rounded, and ties are broken at random.

    Examines: evaluate.ranks.ranks_of, evaluate.ranks.Ranks.counts, evaluate.ranks.uniformity.

    Source: Talts et al. 2018, Validating Bayesian Inference Algorithms with Simulation-Based
    Calibration, theorem 1."""
    return Residual(unevenness(math.sqrt(0.5)), DIGITS)


def r150_a_narrow_posterior_has_uniform_ranks() -> Control:
    """Wrong: samples of N(x/2, 0.8^2 / 2) leave the ranks of theta uniform.

    Examines: evaluate.ranks.ranks_of, evaluate.ranks.uniformity.

    Source: Talts et al. 2018, Validating Bayesian Inference Algorithms with Simulation-Based
    Calibration, sec. 4.2."""
    exact = math.sqrt(0.5)
    return Control(unevenness(0.8 * exact), unevenness(exact), DIGITS)


def unevenness(scale: float) -> float:
    """-log10 of the p-value that ranks are uniform, for samples of N(x/2, scale^2)."""
    theta = normal(ROWS, 1)
    x = theta + normal(ROWS, 1)
    samples = x / 2 + scale * normal(ROWS, DRAWS)
    values = (torch.cat([theta, samples], 1) / GRAIN).round()[..., None]
    ranks = Ranks(("theta",), ranks_of(values, make_generator(int(torch.randint(1 << 30, ())))))
    return -math.log10(max(uniformity(ranks.counts()[0]), 1e-300))


def x151_annealed_weights_have_the_mean_p_of_x(model: VAE, batch: Batch) -> Residual:
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


def x152_one_temperature_is_importance_sampling(
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
