r"""Identities of diffusion: the noising process, its posterior, and the bounds they give.

Expectations are closed-form: over $q(z_{0:n} | x)$ with $Cov(z_s, z_t) = \frac{\alpha_t}{\alpha_s}
\sigma_s^2$ for s < t, and reverse steps $p(z_{i-1} | z_i) = N(A_i z_i + c_i, S_i)$ that are linear
and otherwise arbitrary, every mean of a quadratic form is a number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from ..models.diffusion._likelihood import (
    LikelihoodInputs,
    alpha_sigma_columns,
    log_snr_and_weight,
    prior_kl,
)
from ..models.diffusion._parameterisation import DenoiserPrediction, Target, regression_target
from ..models.diffusion.vdm import LearnedSchedule
from ..prob.noise_schedule import NoiseProcess, NoiseSchedule
from ._helpers import gap, most, normal, relative
from .framework import Residual

FAMILIES = ("preserving", "exploding", "sub")
SHAPES = ("linear", "cosine", "sigmoid", "logsnr", "edm")
STEPS, FINE = (10, 100, 1000), 20_000
"""Numbers of steps of a bound, and of points by which continuous time is integrated."""
TARGETS: tuple[Target, ...] = ("x0", "noise", "score", "velocity")


def noisings() -> list[NoiseProcess]:
    """Every shape in every family."""
    return [
        NoiseSchedule.Config(shape=shape, family=family).build()  # type: ignore[arg-type]
        for family in FAMILIES
        for shape in SHAPES
    ]


def log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((x - mean).square() / variance + (2 * math.pi * variance).log())


def pairs() -> tuple[Tensor, Tensor]:
    """Times s < t all over the unit interval, each (N,)."""
    s, t = torch.rand(2, 50, dtype=torch.float64).sort(0).values
    return s, t


def x91_steps_compose_to_the_marginal() -> Residual:
    """T steps compose to q(z_t | x) = N(alpha_t x, sigma_t^2) in every family.

    Examines: prob.noise_schedule.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 4; Kingma et al.
    2021, Variational Diffusion Models, sec. 3.1."""
    missed = []
    for noising in noisings():
        t = noising.grid(20, normal(1))
        alpha, variance = noising.alpha(t[0]), noising.sigma(t[0]).square()
        for before, after in itertools.pairwise(t):
            ratio = noising.alpha(after) / noising.alpha(before)
            alpha = ratio * alpha
            variance = ratio.square() * variance + noising.step(before, after).forward
        scale = noising.spread(t[-1])
        missed += [
            gap(alpha / scale, noising.alpha(t[-1]) / scale),
            gap(variance / scale**2, noising.sigma(t[-1]).square() / scale**2),
        ]
    return Residual(most(missed), 1e-12)


def x91_unit_variance_is_preserved() -> Residual:
    """Var z_t = 1 at every t if Var x = 1 and the schedule preserves variance.

    Examines: prob.noise_schedule.

    Source: Song et al. 2021, Score-Based Generative Modeling through SDEs, sec. 3.4."""
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    found = [each.spread(t) for each in noisings() if each.family == "preserving"]
    return Residual(most(gap(each, torch.ones_like(each)) for each in found), 1e-12)


def x92_posterior_is_bayes_rule() -> Residual:
    """log q(z_t|z_s) + log q(z_s|x) - log q(z_t|x) = log q(z_s|z_t, x).

    Examines: prob.noise_schedule.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 6-7."""
    missed = []
    for noising in noisings():
        s, t = pairs()
        step, x = noising.step(s, t), normal(50)
        spread = noising.spread(s), noising.spread(t)
        z_s, z_t = normal(50) * spread[0], normal(50) * spread[1]
        ratio = noising.alpha(t) / noising.alpha(s)
        left = (
            log_normal(z_t, ratio * z_s, step.forward)
            + log_normal(z_s, noising.alpha(s) * x, noising.sigma(s).square())
            - log_normal(z_t, noising.alpha(t) * x, noising.sigma(t).square())
        )
        right = log_normal(z_s, step.on_z * z_t + step.on_x * x, step.variance)
        missed.append(gap(left, right) / float(right.abs().amax()))
    return Residual(most(missed), 1e-11)


@dataclass(frozen=True)
class NoisingChain:
    """Latents u_1..u_n of a number x = u_0, noised at rising times, and linear reverse steps."""

    x: Tensor  # ()
    alpha: Tensor  # (n + 1,): of u_0, which is 1, to u_n
    variance: Tensor  # (n + 1,): of u_i given x
    a: Tensor  # (n + 1,): p(u_i | u_{i+1}) = N(a_i u_{i+1} + c_i, s_i), and for i = n N(c_n, s_n)
    c: Tensor
    s: Tensor
    noising: NoiseProcess | None = None  # of a chain whose steps are those of a denoiser
    gain: Tensor | None = None  # (n - 1,): the denoiser gives gain z + shift at each time but 0
    shift: Tensor | None = None

    @classmethod
    def of_denoiser(cls, steps: int) -> NoisingChain:
        """A chain whose reverse steps are q(z_s | z_t, x) at a linear denoiser's estimate of x,
        which is what a diffusion model of these steps is."""
        noising = NoiseSchedule.Config(high=3.0, low=-4.0, shape="logsnr").build()
        free, t = cls.make(steps), noising.grid(steps - 1, normal(1))
        step, gain, shift = noising.step(t[:-1], t[1:]), normal(steps - 1), normal(steps - 1)
        a, c, s = free.a.clone(), free.c.clone(), free.s.clone()
        a[1:-1], c[1:-1] = step.on_z + step.on_x * gain, step.on_x * shift
        s[1:-1] = step.variance
        return replace(free, a=a, c=c, s=s, noising=noising, gain=gain, shift=shift)

    def scored(self) -> Tensor:
        """The bound of `denoising_bound` for this denoiser: its prior term, its weights of
        E |eps - eps_hat|^2 at each step, and E log p(x | u_1)."""
        assert self.noising is not None
        assert self.gain is not None
        assert self.shift is not None
        y, steps = self.x.reshape(1, 1), len(self.gain)
        inputs = LikelihoodInputs(
            cast(Any, None), self.noising, cast(Any, None), y, torch.zeros(1), 0, steps
        )
        share = (torch.arange(steps).double() + 0.5) / steps
        log_snr, weight = log_snr_and_weight(inputs, share)
        alpha, sigma = alpha_sigma_columns(self.noising, log_snr)
        missed = self.gain * alpha[:, 0] * self.x + self.shift - self.x
        square = missed.square() + (self.gain * sigma[:, 0]).square()  # E (x_hat - x)^2
        error = (alpha / sigma)[:, 0].square() * square
        prior = prior_kl(self.noising, y)[0]
        return self.log_back(0) - prior - (weight * error).mean()

    @classmethod
    def make(cls, steps: int) -> NoisingChain:
        noising = NoiseSchedule.Config(high=3.0, low=-4.0, shape="logsnr").build()
        t = noising.grid(steps - 1, normal(1))
        one, zero = normal(1) ** 0, normal(1) * 0
        a = torch.cat([0.3 + torch.rand(steps, dtype=torch.float64), zero])
        c = torch.cat([0.3 * normal(steps), zero])
        s = torch.cat([0.2 + torch.rand(steps, dtype=torch.float64), one])
        return cls(
            normal(1)[0],
            torch.cat([one, noising.alpha(t)]),
            torch.cat([zero, noising.sigma(t).square()]),
            a,
            c,
            s,
        )

    @property
    def last(self) -> int:
        return len(self.a) - 1

    def covariance(self, i: int, j: int) -> Tensor:
        i, j = sorted((i, j))
        return self.alpha[j] / self.alpha[i] * self.variance[i]

    def square(self, i: int, on_i: Tensor, j: int, on_j: Tensor, plus: Tensor) -> Tensor:
        """E (on_i u_i + on_j u_j + plus)^2."""
        mean = on_i * self.alpha[i] * self.x + on_j * self.alpha[j] * self.x + plus
        return (
            mean.square()
            + on_i.square() * self.variance[i]
            + on_j.square() * self.variance[j]
            + 2 * on_i * on_j * self.covariance(i, j)
        )

    def forward(self, i: int) -> tuple[Tensor, Tensor]:
        """The factor and the variance of q(u_i | u_{i-1})."""
        ratio = self.alpha[i] / self.alpha[i - 1]
        return ratio, self.variance[i] - ratio.square() * self.variance[i - 1]

    def log_back(self, i: int) -> Tensor:
        """E log p(u_i | u_{i+1}), or of the prior for the last."""
        one, j = torch.ones_like(self.x), min(i + 1, self.last)
        square = self.square(i, one, j, -self.a[i], -self.c[i])
        return -0.5 * (square / self.s[i] + (2 * math.pi * self.s[i]).log())

    def log_forth(self, i: int) -> Tensor:
        """E log q(u_i | u_{i-1})."""
        return -0.5 * ((2 * math.pi * self.forward(i)[1]).log() + 1)

    def bound(self) -> Tensor:
        """E log p(u_{0:n}) / q(u_{1:n} | u_0)."""
        back = sum((self.log_back(i) for i in range(self.last + 1)), 0 * self.x)
        return back - sum(self.log_forth(i) for i in range(1, self.last + 1))

    def evidence(self) -> Tensor:
        """log p(x)."""
        mean, variance = self.c[-1], self.s[-1]
        for i in range(self.last - 1, -1, -1):
            mean = self.a[i] * mean + self.c[i]
            variance = self.a[i].square() * variance + self.s[i]
        return log_normal(self.x, mean, variance)

    def denoising(self) -> Tensor:
        """E log p(x|u_1) - KL(q(u_n|x) | p) - sum_i E KL(q(u_i|u_{i+1}, x) | p(u_i|u_{i+1}))."""
        total = self.log_back(0) - divergence(
            self.variance[-1], self.s[-1], (self.alpha[-1] * self.x - self.c[-1]).square()
        )
        for i in range(1, self.last):
            ratio, forward = self.forward(i + 1)
            variance = forward * self.variance[i] / self.variance[i + 1]
            on_u = ratio * self.variance[i] / self.variance[i + 1]
            on_x = self.alpha[i] * forward / self.variance[i + 1]
            apart = self.square(
                i + 1, on_u - self.a[i], i + 1, 0 * self.x, on_x * self.x - self.c[i]
            )
            total = total - divergence(variance, self.s[i], apart)
        return total

    def consistency(self, as_printed: bool = False) -> Tensor:
        """E log p(x|u_1) - E KL(q(u_n|u_{n-1}) | p) - sum_i E log q(u_i|u_{i-1}) / p(u_i|u_{i+1}),
        or, as printed, with E KL(q(u_i|u_{i-1}) | p(u_i|u_{i+1})) for the last mean."""
        ratio, forward = self.forward(self.last)
        one = torch.ones_like(self.x)
        ends = self.square(self.last - 1, ratio, self.last - 1, 0 * one, -self.c[-1])
        total = self.log_back(0) - divergence(forward, self.s[-1], ends)
        for i in range(1, self.last):
            ratio, forward = self.forward(i)
            if as_printed:
                apart = self.square(i - 1, ratio, i + 1, -self.a[i], -self.c[i])
                total = total - divergence(forward, self.s[i], apart)
            else:
                total = total - self.log_forth(i) + self.log_back(i)
        return total

    def missing(self) -> Tensor:
        """What the printed form loses: the covariance of u_i and u_{i+1} given u_{i-1}."""
        lost = [
            self.a[i] * self.forward(i + 1)[0] * self.forward(i)[1] / self.s[i]
            for i in range(1, self.last)
        ]
        return torch.stack(lost).sum()


def divergence(v_q: Tensor, v_p: Tensor, apart: Tensor) -> Tensor:
    """E KL(N(m, v_q) | N(m', v_p)), given the mean of (m - m')^2."""
    return 0.5 * ((v_p / v_q).log() - 1 + (v_q + apart) / v_p)


def x93_denoising_bound_is_the_bound() -> Residual:
    """Denoising bound = E_q log p(u_0:T) / q(u_1:T | u_0) <= log p(u_0).

    The left side is that of a diffusion model: its prior term and its weights.

    Examines: models.diffusion._likelihood.

    Source: Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models, eq. 3 and 5."""
    missed = []
    for chain in (NoisingChain.of_denoiser(4) for _ in range(20)):
        bound = chain.bound()
        missed += [
            gap(bound, chain.denoising()) / float(bound.abs()),
            gap(bound, chain.scored()) / float(bound.abs()),
            float((bound - chain.evidence()).clamp_min(0)),
        ]
    return Residual(most(missed), 1e-11)


def x94_consistency_bound_is_the_bound() -> Residual:
    """The bound by E_q log q(u_t|u_t-1) / p(u_t|u_t+1) is the bound.

    Examines: models.diffusion._likelihood.

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on variational
    diffusion models."""
    chains = [NoisingChain.of_denoiser(4) for _ in range(20)]
    return Residual(most(relative(each.scored(), each.consistency()) for each in chains), 1e-11)


def x94_printed_consistency_form_misses() -> Residual:
    """Its KL form misses the bound by sum_t A sqrt(a_t+1) (1 - a_t) / S.

    Examines: models.diffusion._likelihood.

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on variational
    diffusion models."""
    chains = [NoisingChain.of_denoiser(4) for _ in range(20)]
    missed = [
        relative(each.scored() - each.consistency(as_printed=True), each.missing())
        for each in chains
    ]
    return Residual(most(missed), 1e-9)


def x94_printed_form_of_two_steps_is_a_looser_bound() -> Residual:
    """T = 2: KL form = bound under q(u_1|x) q(u_2|x) less I_q(u_1; u_2 | x).

    Examines: mathematics only.

    Source: Luo 2022, Understanding Diffusion Models: A Unified Perspective, section on variational
    diffusion models."""
    missed = []
    for chain in (NoisingChain.make(2) for _ in range(20)):
        share = chain.covariance(1, 2).square() / (chain.variance[1] * chain.variance[2])
        mean = chain.alpha[2] * chain.x
        apart = (
            (chain.alpha[1] * chain.x - chain.a[1] * mean - chain.c[1]).square()
            + chain.variance[1]
            + chain.a[1].square() * chain.variance[2]
        )
        between = -0.5 * (apart / chain.s[1] + (2 * math.pi * chain.s[1]).log())
        entropies = 0.5 * ((2 * math.pi * chain.variance[1:]).log() + 1).sum()
        bound = chain.log_back(0) + between + chain.log_back(2) + entropies
        mutual = -0.5 * (1 - share).log()
        missed.append(gap(chain.consistency(as_printed=True), bound - mutual))
    return Residual(most(missed), 1e-11)


def x95_parametrisations_agree() -> Residual:
    """x0, noise, score and velocity give one mean and, weighted, one loss.

    Examines: models.diffusion._parameterisation.

    Source: Salimans & Ho 2022, Progressive Distillation for Fast Sampling of Diffusion Models; Luo
    2022, Understanding Diffusion Models: A Unified Perspective."""
    missed = []
    for noising in noisings():
        s, t = pairs()
        alpha, sigma = noising.alpha(t)[:, None], noising.sigma(t)[:, None]
        x, noise, x0 = normal(50, 3), normal(50, 3), normal(50, 3)
        z, step = alpha * x + sigma * noise, noising.step(s[:, None], t[:, None])
        first = DenoiserPrediction(z, alpha, sigma, "x0", x0)
        apart = (noising.snr(s) - noising.snr(t))[:, None] / 2  # the weight of |x - x0|^2
        loss, mean = apart * (x - x0).square(), step.on_z * z + step.on_x * x0
        values = {
            "x0": x0,
            "noise": first.noise,
            "score": first.score,
            "velocity": first.velocity,
        }
        weights = {
            "x0": apart,
            "noise": apart / noising.snr(t)[:, None],
            "score": apart / noising.snr(t)[:, None] * sigma.square(),
            "velocity": apart * (sigma / (alpha.square() + sigma.square())).square(),
        }
        for of in TARGETS:
            prediction = DenoiserPrediction(z, alpha, sigma, of, values[of])
            error = (prediction.value - regression_target(of, x, noise, alpha, sigma)).square()
            missed += [
                relative(weights[of] * error, loss),
                gap(step.on_z * z + step.on_x * prediction.x0, mean) / float(mean.abs().amax()),
            ]
    return Residual(most(missed), 1e-8)


def x96_weight_is_the_fall_of_the_snr() -> Residual:
    """on_x^2 / (2 var q) = (SNR(s) - SNR(t)) / 2, which telescopes.

    Examines: prob.noise_schedule.

    Source: Kingma et al. 2021, Variational Diffusion Models."""
    missed = []
    for noising in noisings():
        t = noising.grid(30, normal(1))
        step = noising.step(t[:-1], t[1:])
        weight = step.on_x.square() / (2 * step.variance)
        snr = noising.snr(t)
        missed += [
            relative(weight, (snr[:-1] - snr[1:]) / 2),
            relative(weight.sum(), (snr[0] - snr[-1]) / 2),
        ]
    return Residual(most(missed), 1e-11)


def x104_learned_schedule_is_monotone() -> Residual:
    """SNR = alpha^2 / (1 - alpha^2) falls with t for any parameters.

    Examines: models.diffusion.vdm.

    Source: Kingma et al. 2021, Variational Diffusion Models, sec. 3.2."""
    t, missed = torch.linspace(0, 1, 401, dtype=torch.float64), []
    for _ in range(20):
        gamma: LearnedSchedule = LearnedSchedule.Config(width=8).build().double()
        for parameter in gamma.shape_params:
            parameter.add_(3 * torch.randn_like(parameter))
        share = gamma.alpha_bar(t)
        rises = float((gamma.log_snr(t).diff() >= 0).any())
        missed += [
            rises,
            relative(gamma.snr(t), share / gamma.sigma(t).square()),
            relative(share, torch.sigmoid(gamma.log_snr(t))),
            gap(gamma.log_snr(gamma.time(gamma.log_snr(t))), gamma.log_snr(t)),
        ]
    return Residual(most(missed), 1e-11)


def x105_finer_steps_lower_the_loss_to_its_integral() -> Residual:
    """N(0, 1/4): the exact denoiser's loss falls with T to -1/2 int SNR' mmse.

    Weights and noise levels are those by which the bounds of models are computed.

    Examines: models.diffusion._likelihood.

    Source: Kingma et al. 2021, Variational Diffusion Models; Guo, Shamai & Verdú 2005, Mutual
    Information and Minimum Mean-Square Error in Gaussian Channels."""
    noising = NoiseSchedule.Config(shape="logsnr", high=6.0, low=-6.0).build()
    found = [diffusion_term(noising, lambda v: v.exp() / (4 + v.exp()), steps) for steps in STEPS]
    limit = 0.5 * math.log((4 + math.exp(6)) / (4 + math.exp(-6)))
    falls = all(a > b for a, b in itertools.pairwise(found))
    known = []
    for steps, value in zip(STEPS, found, strict=True):
        snr = noising.snr(noising.grid(steps, normal(1)))
        known.append(abs(float((0.5 * (snr[:-1] - snr[1:]) / (4 + snr[1:])).sum()) - value))
    endless = diffusion_term(noising, lambda v: v.exp() / (4 + v.exp()), 0)
    return Residual(most(known, abs(endless - limit), float(not falls)), 1e-8)


def diffusion_term(noising: NoiseProcess, error: Callable[[Tensor], Tensor], steps: int) -> float:
    """The diffusion term of a bound over these steps, or over continuous time if 0, where the
    squared error of the noise is a known function of the log-SNR."""
    y = torch.zeros(1, 1, dtype=torch.float64)
    inputs = LikelihoodInputs(
        cast(Any, None), noising, cast(Any, None), y, torch.zeros(1), 0, steps
    )
    count = steps or FINE
    share = (torch.arange(count).double() + 0.5) / count
    log_snr, weight = log_snr_and_weight(inputs, share)
    return float((weight * error(log_snr)).mean())
