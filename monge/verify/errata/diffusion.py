r"""Common errors on diffusion: the step, the mean, the power.

In the letters of Ho et al. 2020, $A_t = \bar\alpha_t = \alpha(t)^2$ and $a_t = \alpha_t =
\bar\alpha_t / \bar\alpha_s$ between two times s < t of a schedule that preserves variance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...models.diffusion._parameterisation import DenoiserPrediction
from ...models.diffusion._samplers import ancestral
from ...prob.noise_schedule import NoiseSchedule, PosteriorStep
from .._helpers import gap, most, normal, relative
from .._noisy_mixtures import plane
from ..diffusion import NoisingChain, divergence, log_normal, pairs
from ..framework import Control
from ..score_matching import gradient, guided, matched, noisy

ROUNDING = 1e-11


class Letters(NamedTuple):
    """Fifty steps in these letters, and as steps of the schedule."""

    now: Tensor  # alpha_t
    bar: Tensor  # alpha_1 ... alpha_t
    before: Tensor  # alpha_1 ... alpha_(t-1)
    step: PosteriorStep
    fall: Tensor  # SNR(t-1) - SNR(t)


def letters() -> Letters:
    noising, (s, t) = NoiseSchedule.Config().build(), pairs()
    bar, before = noising.alpha_bar(t), noising.alpha_bar(s)
    return Letters(bar / before, bar, before, noising.step(s, t), noising.snr(s) - noising.snr(t))


def chains(steps: int = 4) -> list[NoisingChain]:
    return [NoisingChain.of_denoiser(steps) for _ in range(10)]


def r3_the_consistency_term_is_no_divergence() -> Control:
    """Common error: E KL(q(x_t|x_t-1) || p(x_t|x_t+1)) in the bound; correct: E log q / p.

    Examines: models.diffusion._likelihood.

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on variational
    diffusion models."""
    found = [
        (each.scored(), each.consistency(as_printed=True), each.consistency()) for each in chains()
    ]
    return Control(
        most(relative(printed, whole) for whole, printed, _ in found),
        most(relative(proper, whole) for whole, _, proper in found),
        ROUNDING,
    )


def r4_a_score_is_a_mean_of_noise() -> Control:
    """Common error: grad log p(x_t) = -eps / sigma; correct: -E[eps | x_t] / sigma.

    Examines: models.diffusion._parameterisation.

    Source: Vincent 2011, A Connection Between Score Matching and Denoising Autoencoders."""
    distribution = plane()
    z, noise, alpha, sigma = noisy(distribution)
    score = sigma * gradient(lambda z: distribution.log_prob(z, alpha, sigma), z)
    mean = DenoiserPrediction(z, alpha, sigma, "x0", distribution.denoised(z, alpha, sigma)).noise
    return Control(gap(score, -noise), gap(score, -mean), ROUNDING)


def r9_guidance_adds_the_difference() -> Control:
    """Common error: guidance = uncond + gamma uncond; correct: uncond + gamma (cond - uncond).

    Examines: models.diffusion._guidance.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance."""
    plain, given, tilted, found = guided(3.0)
    right = most(gap(found, plain + 3 * (given - plain)), gap(found, tilted))
    return Control(gap(plain + 3 * plain, found), right, ROUNDING)


def r88_guidance_leaves_the_conditional_distribution() -> Control:
    """Common error: gamma = 3 gives the score of p(x|y); correct: that of p(x) p(y|x)^3.

    Examines: models.diffusion._guidance.

    Source: Ho & Salimans 2022, Classifier-Free Diffusion Guidance; Bradley & Nakkiran 2024,
    Classifier-Free Guidance Is a Predictor-Corrector."""
    _, given, tilted, found = guided(3.0)
    return Control(gap(found, given), gap(found, tilted), ROUNDING)


def r78_steps_lead_back() -> Control:
    """Common error: p = p(x_T) prod p(x_(t+1) | x_t); correct: p(x_T) prod p(x_(t-1) | x_t).

    Examines: models.diffusion._samplers.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 1."""
    wrong, right = [], []
    for chain in chains():
        assert chain.noising is not None
        times = chain.noising.grid(chain.last - 1, normal(1))
        sides = ancestral_moments(chain, times)
        mean, variance = chain.c[-1], chain.s[-1]
        other, spread = mean, variance
        for i in range(chain.last - 1, 0, -1):
            mean, variance = (
                chain.a[i] * mean + chain.c[i],
                chain.a[i] ** 2 * variance + chain.s[i],
            )
        for i in range(1, chain.last):
            other, spread = chain.a[i] * other + chain.c[i], chain.a[i] ** 2 * spread + chain.s[i]
        right.append(relative(sides, torch.stack([mean, variance])))
        wrong.append(relative(sides, torch.stack([other, spread])))
    return Control(most(wrong), most(right), ROUNDING)


def ancestral_moments(chain: NoisingChain, times: Tensor) -> Tensor:
    """Mean and variance of z_0 sampled by ancestral steps from z_1 ~ N(0, 1), (2,)."""
    assert chain.noising is not None
    assert chain.gain is not None
    assert chain.shift is not None
    mean, variance, (zero, one) = chain.c[-1], chain.s[-1], torch.eye(2).double()[0].flip(0)
    for i in range(chain.last - 2, -1, -1):
        s, t = times[i], times[i + 1]
        alpha, sigma = (
            each(t).reshape(1, 1) for each in (chain.noising.alpha, chain.noising.sigma)
        )
        moved = []
        for z, noise in ((mean, zero), (mean + 1, zero), (mean, one)):
            z, noise = z.reshape(1, 1), noise.reshape(1, 1)
            guess = DenoiserPrediction(z, alpha, sigma, "x0", chain.gain[i] * z + chain.shift[i])
            moved.append(ancestral(guess, chain.noising, z, s, t, noise)[0, 0])
        slope, spread = moved[1] - moved[0], moved[2] - moved[0]
        mean, variance = moved[0], slope**2 * variance + spread**2
    return torch.stack([mean, variance])


def r79_the_square_is_completed_in_the_earlier_step() -> Control:
    """Common error: log q(x'|x_t,x_0) has 2 (a x_t + b x_0); correct: 2 (a x_t + b x_0) x'.

    Examines: prob.noise_schedule.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 6-7."""
    _, _, _, step, _ = letters()
    x, z, first, second = normal(4, 50)
    mean = step.on_z * z + step.on_x * x

    def apart(exponent: Tensor, other: Tensor) -> Tensor:
        return (other - exponent) / (2 * step.variance)

    truth = log_normal(first, mean, step.variance) - log_normal(second, mean, step.variance)
    printed = apart(first.square() - 2 * mean, second.square() - 2 * mean)
    proper = apart(first.square() - 2 * mean * first, second.square() - 2 * mean * second)
    size = float(truth.abs().amax())
    return Control(gap(printed, truth) / size, gap(proper, truth) / size, ROUNDING)


def r80_the_prior_is_met_at_the_end() -> Control:
    """Common error: the bound has KL(q(x_t|x_0) || p(x_t)) at t < T; correct: at t = T alone.

    Examines: models.diffusion._likelihood.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 5."""
    wrong, right = [], []
    for chain in chains():
        early, late = (
            divergence(
                chain.variance[i], chain.s[-1], (chain.alpha[i] * chain.x - chain.c[-1]).square()
            )
            for i in (1, -1)
        )
        bound = chain.bound()
        right.append(relative(chain.scored(), bound))
        wrong.append(relative(chain.scored() + late - early, bound))
    return Control(most(wrong), most(right), ROUNDING)


def r81_the_root_ends_before_the_bracket() -> Control:
    """Common error: E x_t-1 has sqrt(a_t (1 - A_t-1)) x_t; correct: sqrt(a_t) (1 - A_t-1).

    Examines: prob.noise_schedule.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 7."""
    now, bar, before, step, _ = letters()
    wrong, right = (
        relative(each / (1 - bar), step.on_z)
        for each in ((now * (1 - before)).sqrt(), now.sqrt() * (1 - before))
    )
    return Control(wrong, right, 1e-9)


def r82_the_weight_has_the_step_above() -> Control:
    """Common error: the weight of the x_0 loss has (1 - A_t)^2; correct: (1 - a_t)^2.

    Examines: prob.noise_schedule.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 7; Luo 2022,
    Understanding Diffusion Models: A Unified Perspective."""
    now, bar, before, step, fall = letters()
    printed, proper = (
        before * (1 - own).square() / (1 - bar).square() / (2 * step.variance)
        for own in (bar, now)
    )
    return Control(relative(printed, fall / 2), relative(proper, fall / 2), 1e-8)


def r83_the_datum_is_weighed_by_the_earlier_step() -> Control:
    """Common error: E x_t-1 has sqrt(A_t) (1 - a_t) x_0; correct: sqrt(A_t-1) (1 - a_t).

    Examines: prob.noise_schedule.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 7."""
    now, bar, before, step, _ = letters()
    printed, proper = (each.sqrt() * (1 - now) / (1 - bar) for each in (bar, before))
    return Control(relative(printed, step.on_x), relative(proper, step.on_x), 1e-8)


def r84_tweedie_speaks_of_all_the_noise() -> Control:
    """Common error: sqrt(a_t) E[x_0|x_t] = x_t + (1 - a_t) grad log p; correct: A_t for a_t.

    Examines: models.diffusion._parameterisation.

    Source: Efron 2011, Tweedie's Formula and Selection Bias; Luo 2022, Understanding Diffusion
    Models: A Unified Perspective."""
    distribution = plane()
    z, _, alpha, sigma = noisy(distribution)
    mean, score = (
        distribution.denoised(z, alpha, sigma),
        gradient(lambda z: distribution.log_prob(z, alpha, sigma), z),
    )
    before = torch.cat([torch.ones(1, 1).double(), alpha[:-1]])
    now = (alpha / before).square()
    printed = (z + (1 - now) * score) / now.sqrt()
    found = DenoiserPrediction(z, alpha, sigma, "score", score).x0
    return Control(gap(alpha * printed, alpha * mean), gap(alpha * found, alpha * mean), ROUNDING)


def r86_a_half_of_the_whole_square() -> Control:
    """Common error: |s - g|^2 / 2 = |s|^2 / 2 - 2 <s, g> + |g|^2; correct: half of each term.

    The term in <s, g> becomes the trace of the loss of score_sde.

    Examines: models.diffusion.score_sde.

    Source: Hyvärinen 2005, Estimation of Non-Normalized Statistical Models by Score Matching."""
    loss, s, g, density = matched("implicit")
    explicit = (density * 0.5 * (s - g).square()).sum()
    printed = (density * (0.5 * s.square() - 2 * s * g + g.square())).sum()
    proper = (density * (loss + 0.5 * g.square())).sum()
    return Control(gap(printed, explicit), gap(proper, explicit), 1e-8)
