r"""Identities of scores: Tweedie's formula, what score matching minimises, and guidance.

On mixtures of normals all sides are known: $\nabla \log p(z)$ by differentiating the density, the
means given z by the posterior of the components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..models.diffusion._parameterisation import DenoiserPrediction
from ..nn.mlp import MLP
from ..prob.noise_schedule import NoiseSchedule
from ._helpers import gap, most, normal
from ._noisy_mixtures import NoisyGaussianMixture, line, plane
from .framework import Residual

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

    Source: Efron 2011, Tweedie's Formula and Selection Bias."""
    distribution = plane()
    z, _, alpha, sigma = noisy(distribution)
    score = gradient(lambda z: distribution.log_prob(z, alpha, sigma), z)
    return Residual(
        gap(alpha * distribution.denoised(z, alpha, sigma), z + sigma.square() * score), 1e-12
    )


def x98_score_is_the_mean_noise() -> Residual:
    """grad log p(z) = -E[eps|z] / sigma.

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


def x99_implicit_is_explicit_score_matching() -> Residual:
    """E |s - grad log p|^2 / 2 = E[tr grad s + |s|^2 / 2] + a constant.

    Source: Hyvärinen 2005, Estimation of Non-Normalized Statistical Models by Score Matching,
    theorem 1."""
    distribution, grid = line(), torch.linspace(-6, 6, 40001, dtype=torch.float64)[:, None]
    weight = distribution.log_prob(grid, *no_noise()).exp() * (grid[1, 0] - grid[0, 0])
    true = gradient(lambda x: distribution.log_prob(x, *no_noise()), grid)[:, 0]
    missed = []
    for field in networks():
        s, ds = field(grid)[:, 0], gradient(lambda x: field(x)[:, 0], grid)[:, 0]  # noqa: B023
        explicit = (weight * 0.5 * (s - true).square()).sum()
        implicit = (weight * (ds + 0.5 * s.square())).sum()
        missed.append(gap(explicit - implicit, (weight * 0.5 * true.square()).sum()))
    return Residual(most(missed), 1e-8)


def x99_needs_its_boundary_condition() -> Residual:
    """Exp(1) with s = 1, where p s does not vanish: 1.5 there, 0.5 here.

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


def alone(distribution: NoisyGaussianMixture, y: int) -> NoisyGaussianMixture:
    """One component as a distribution."""
    return replace(
        distribution,
        weights=distribution.weights[y : y + 1] ** 0,
        means=distribution.means[y : y + 1],
        scales=distribution.scales[y : y + 1],
    )


def x101_conditional_score_is_bayes_rule() -> Residual:
    """grad log p(z|y) = grad log p(z) + grad log p(y|z).

    Source: Dhariwal & Nichol 2021, Diffusion Models Beat GANs on Image Synthesis, sec. 4."""
    distribution = plane()
    z, _, alpha, sigma = noisy(distribution)
    missed = []
    for y in range(len(distribution.weights)):
        given = gradient(lambda z: alone(distribution, y).log_prob(z, alpha, sigma), z)  # noqa: B023
        plain = gradient(lambda z: distribution.log_prob(z, alpha, sigma), z)
        classifier = gradient(lambda z: component(distribution, z, alpha, sigma, y), z)  # noqa: B023
        missed.append(gap(sigma * given, sigma * (plain + classifier)))
    return Residual(most(missed), 1e-11)


def x102_guidance_is_one_combination() -> Residual:
    """gamma cond + (1 - gamma) uncond = grad log p(z) p(y|z)^gamma.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance."""
    distribution, missed = plane(), []
    z, _, alpha, sigma = noisy(distribution)
    with_y, without = (
        DenoiserPrediction(z, alpha, sigma, "x0", each.denoised(z, alpha, sigma))
        for each in (alone(distribution, 1), distribution)
    )
    for gamma in GAMMAS:

        def tilted(z: Tensor, gamma: float = gamma) -> Tensor:
            return distribution.log_prob(z, alpha, sigma) + gamma * component(
                distribution, z, alpha, sigma, 1
            )

        wanted, w = gradient(tilted, z), gamma - 1
        scores = gamma * with_y.score + (1 - gamma) * without.score
        x0 = torch.lerp(without.x0, with_y.x0, gamma)
        noise = (1 + w) * with_y.noise - w * without.noise
        missed += [
            gap(sigma * scores, sigma * wanted),
            gap(noise, -sigma * wanted),
            gap(sigma * DenoiserPrediction(z, alpha, sigma, "x0", x0).score, sigma * wanted),
        ]
    return Residual(most(missed), 1e-10)


def x102_guidance_at_its_ends() -> Residual:
    """gamma = 0 ignores the condition, gamma = 1 is the conditional score.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance."""
    distribution = plane()
    z, _, alpha, sigma = noisy(distribution)
    with_y, without = (
        each.denoised(z, alpha, sigma) for each in (alone(distribution, 2), distribution)
    )
    return Residual(
        most(
            gap(torch.lerp(without, with_y, 0.0), without),
            gap(torch.lerp(without, with_y, 1.0), with_y),
        ),
        1e-12,
    )
