r"""Identities of scores: Tweedie's formula, what score matching minimises, and guidance.

On mixtures of normals all sides are known: $\nabla \log p(z)$ by differentiating the density, the
means given z by the posterior of the components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core.space import Space
from ..models.diffusion._denoisers import MLPDenoiser
from ..models.diffusion._guidance import (
    Guidance,
    classifier_free_guidance,
    classifier_guidance,
)
from ..models.diffusion._parameterisation import DenoiserPrediction
from ..models.diffusion.score_sde import ScoreSDE
from ..nn.mlp import MLP
from ..prob.noise_schedule import NoiseSchedule
from ._helpers import gap, most, normal
from ._noisy_mixtures import (
    NoisyGaussianMixture,
    PerfectClassifier,
    PerfectDiffusion,
    alone,
    line,
    plane,
)
from .framework import Residual
from .subjects import build

SAMPLES = 200_000
GAMMAS = (0.0, 0.5, 1.0, 3.0)


def gradient(log_p: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """The gradient of a log-density, (B, D)."""
    with torch.enable_grad():
        point = z.detach().requires_grad_()
        (found,) = torch.autograd.grad(log_p(point).sum(), point)
    return found


def noisy(
    distribution: NoisyGaussianMixture, n: int = 200
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z, the noise in it, alpha and sigma at n times."""
    noising, t = NoiseSchedule.Config().build(), torch.linspace(0.02, 0.98, n, dtype=torch.float64)
    alpha, sigma = noising.alpha(t)[:, None], noising.sigma(t)[:, None]
    noise = normal(n, distribution.means.shape[1])
    return alpha * distribution.sample(n) + sigma * noise, noise, alpha, sigma


def x97_tweedie() -> Residual:
    """alpha E[x|z] = z + sigma^2 grad log p(z).

    Examines: models.diffusion._parameterisation.

    Source: Efron 2011, Tweedie's Formula and Selection Bias."""
    distribution = plane()
    z, _, alpha, sigma = noisy(distribution)
    score = gradient(lambda z: distribution.log_prob(z, alpha, sigma), z)
    mean = distribution.denoised(z, alpha, sigma)
    found = DenoiserPrediction(z, alpha, sigma, "score", score).x0
    return Residual(
        most(gap(alpha * mean, z + sigma.square() * score), gap(alpha * found, alpha * mean)),
        1e-12,
    )


def x98_score_is_the_mean_noise() -> Residual:
    """grad log p(z) = -E[eps|z] / sigma.

    Examines: models.diffusion._parameterisation.

    Source: Vincent 2011, A Connection Between Score Matching and Denoising Autoencoders."""
    distribution = plane()
    z, _, alpha, sigma = noisy(distribution)
    prediction = DenoiserPrediction(z, alpha, sigma, "x0", distribution.denoised(z, alpha, sigma))
    score = gradient(lambda z: distribution.log_prob(z, alpha, sigma), z)
    return Residual(
        most(gap(sigma * prediction.score, sigma * score), gap(prediction.noise, -sigma * score)),
        1e-11,
    )


def x98_score_is_not_the_noise_itself() -> Residual:
    """grad log p(z) is not -eps / sigma of the added noise: less their gap^2.

    Examines: mathematics only.

    Source: Vincent 2011, A Connection Between Score Matching and Denoising Autoencoders."""
    distribution = plane()
    z, noise, alpha, sigma = noisy(distribution)
    score = gradient(lambda z: distribution.log_prob(z, alpha, sigma), z)
    return Residual(-float((sigma * score + noise).square().sum(1).mean()), -0.1)


def networks() -> list[Callable[[Tensor], Tensor]]:
    """Two random fields on the line that stay finite."""
    config = MLP.Config(width=16, depth=2, activation="tanh")
    return [nn.Sequential(config.build(1, 1), nn.Linear(1, 1)).double() for _ in range(2)]


def no_noise() -> tuple[Tensor, Tensor]:
    """alpha and sigma without noise, each (1, 1)."""
    return torch.ones(1, 1).double(), torch.zeros(1, 1).double()


TIME, FINE = 0.4, 4001
"""When scores are matched, and points of the line at which they are."""


def matched(objective: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of score_sde on the line at one noise level with random weights, its scores and
    the true ones, and the density of the noisy data there, (N,) each; the loss is sigma^2 times
    that of the theory."""
    space = Space(kind="real", shape=(1,), mean=(0.0,), scale=(1.0,))
    net = MLPDenoiser.Config(width=16, depth=2)
    config = ScoreSDE.Config(net=net, probes=4).override(f"objective={objective}")
    model = build(config, space)
    assert isinstance(model, ScoreSDE)
    t = torch.full((FINE,), TIME, dtype=torch.float64)
    alpha, sigma = model.schedule.alpha(t)[:, None], model.schedule.sigma(t)[:, None]
    distribution = line()
    reach = 10 * float(torch.hypot(alpha[0], sigma[0]))
    grid = torch.linspace(-reach, reach, FINE, dtype=torch.float64)[:, None]
    density = distribution.log_prob(grid, alpha, sigma).exp() * (grid[1, 0] - grid[0, 0])
    true = gradient(lambda z: distribution.log_prob(z, alpha, sigma), grid)[:, 0]
    log_snr, conditions = model.schedule.log_snr(t), model.condition_encoder.empty(FINE)
    loss = model.trace_loss(grid, log_snr, conditions) / sigma[:, 0].square()
    return loss, model.predict(grid, t, conditions).score[:, 0], true, density


def x99_implicit_is_explicit_score_matching() -> Residual:
    """E |s - grad log p|^2 / 2 = E[tr grad s + |s|^2 / 2] + a constant.

    The right side is the loss of score_sde, its trace exact or along random signs, of which all
    are alike in one dimension.

    Examines: models.diffusion.score_sde.

    Source: Hyvärinen 2005, Estimation of Non-Normalized Statistical Models by Score Matching,
    theorem 1; Song et al. 2019, Sliced Score Matching."""
    missed = []
    for objective in ("implicit", "sliced"):
        loss, s, true, density = matched(objective)
        explicit = (density * 0.5 * (s - true).square()).sum()
        constant = (density * 0.5 * true.square()).sum()
        missed.append(gap(explicit - (density * loss).sum(), constant))
    return Residual(most(missed), 1e-8)


def x99_needs_its_boundary_condition() -> Residual:
    """Exp(1) with s = 1, where p s does not vanish: 1.5 there, 0.5 here.

    Examines: mathematics only.

    Source: Hyvärinen 2005, Estimation of Non-Normalized Statistical Models by Score Matching,
    theorem 1."""
    grid = torch.linspace(0, 40, 400_001, dtype=torch.float64)
    weight = torch.exp(-grid)
    mass = torch.trapezoid(weight, grid)
    true, s = -1.0, 1.0
    explicit, implicit = 0.5 * (s - true) ** 2 * mass, 0.5 * s**2 * mass
    gaps = torch.stack([explicit - implicit - 1.5, 0.5 * true**2 * mass - 0.5])
    return Residual(float(gaps.abs().amax()), 1e-6)


def x100_denoising_is_explicit_up_to_a_constant() -> Residual:
    """E |s + eps / sigma|^2 - E |s - grad log p|^2 is the same for every s.

    Examines: mathematics only.

    Source: Vincent 2011, A Connection Between Score Matching and Denoising Autoencoders."""
    distribution, sigma = line(), 0.6
    one, spread = torch.ones(1, 1).double(), torch.full((1, 1), sigma).double()
    noise = normal(SAMPLES, 1)
    z = distribution.sample(SAMPLES) + sigma * noise
    true = (distribution.denoised(z, one, spread) - z) / sigma**2
    constants = []
    for field in networks():
        s = field(z)
        constants.append(0.5 * ((s + noise / sigma).square() - (s - true).square()).mean())
    return Residual(gap(*constants), 2e-2)


def component(
    distribution: NoisyGaussianMixture, z: Tensor, alpha: Tensor, sigma: Tensor, y: int
) -> Tensor:
    """log p(y | z) of a component, (B,)."""
    return distribution.log_each(z, alpha, sigma).log_softmax(1)[:, y]


def x101_conditional_score_is_bayes_rule() -> Residual:
    """grad log p(z|y) = grad log p(z) + grad log p(y|z), as guidance adds it.

    With a weight gamma it is the score of p(z) p(y|z)^gamma.

    Examines: models.diffusion._guidance.

    Source: Dhariwal & Nichol 2021, Diffusion Models Beat GANs on Image Synthesis, sec. 4."""
    distribution, missed = plane(), []
    z, _, alpha, sigma = noisy(distribution)
    t = torch.linspace(0.02, 0.98, len(z), dtype=torch.float64)
    for y in range(len(distribution.weights)):
        perfect = PerfectDiffusion(distribution, NoiseSchedule.Config().build(), y)
        plain, label = distribution.denoiser(perfect.schedule), torch.full((len(z),), y)
        given = gradient(lambda z: alone(distribution, y).log_prob(z, alpha, sigma), z)  # noqa: B023
        for gamma in GAMMAS:
            predict = classifier_guidance(
                cast(Any, perfect),
                plain,
                PerfectClassifier(distribution),
                label,
                Guidance(gamma=gamma),
            )
            wanted = given if gamma == 1 else tilted_score(distribution, z, alpha, sigma, y, gamma)
            missed.append(gap(sigma * predict(z, t).score, sigma * wanted))
    return Residual(most(missed), 1e-10)


def tilted_score(
    distribution: NoisyGaussianMixture,
    z: Tensor,
    alpha: Tensor,
    sigma: Tensor,
    y: int,
    gamma: float,
) -> Tensor:
    """The gradient of log p(z) p(y | z)^gamma, (B, D)."""

    def tilted(z: Tensor) -> Tensor:
        own = component(distribution, z, alpha, sigma, y)
        return distribution.log_prob(z, alpha, sigma) + gamma * own

    return gradient(tilted, z)


def guided(gamma: float, y: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sigma times the scores of p(z), of p(z | y) and of p(z) p(y | z)^gamma, and that of
    classifier-free guidance with perfect predictions, (B, D) each."""
    distribution = plane()
    z, _, alpha, sigma = noisy(distribution)
    t = torch.linspace(0.02, 0.98, len(z), dtype=torch.float64)
    perfect = PerfectDiffusion(distribution, NoiseSchedule.Config().build(), y)
    predict = classifier_free_guidance(cast(Any, perfect), {}, len(z), Guidance(gamma=gamma))
    plain = gradient(lambda z: distribution.log_prob(z, alpha, sigma), z)
    given = gradient(lambda z: alone(distribution, y).log_prob(z, alpha, sigma), z)
    tilted = tilted_score(distribution, z, alpha, sigma, y, gamma)
    return sigma * plain, sigma * given, sigma * tilted, sigma * predict(z, t).score


def x102_guidance_is_one_combination() -> Residual:
    """gamma cond + (1 - gamma) uncond = grad log p(z) p(y|z)^gamma.

    Examines: models.diffusion._guidance.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance."""
    missed = []
    for gamma in GAMMAS:
        plain, given, tilted, found = guided(gamma)
        missed += [gap(found, tilted), gap(found, gamma * given + (1 - gamma) * plain)]
    return Residual(most(missed), 1e-10)


def x102_guidance_at_its_ends() -> Residual:
    """gamma = 0 ignores the condition, gamma = 1 is the conditional score.

    Examines: models.diffusion._guidance.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance."""
    (plain, _, _, nothing), (_, given, _, whole) = guided(0.0, 2), guided(1.0, 2)
    return Residual(most(gap(nothing, plain), gap(whole, given)), 1e-10)
