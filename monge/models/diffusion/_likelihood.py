r"""Log-likelihoods of diffusion models: a denoising bound, or an estimate by an ODE.

The bound is (Sohl-Dickstein et al. 2015; Kingma et al. 2021)

$\log p(x) \ge E \log p(x | z_0) - KL(q(z_1 | x) \| p(z_1)) - L$, with L over T steps
$\sum_t E\, KL(q(z_s | z_t, x) \| p(z_s | z_t)) = \frac12 \sum_t (e^{\lambda_s - \lambda_t} - 1)
E |\epsilon - \hat\epsilon|^2$ and in continuous time
$\frac12 \int E |\epsilon - \hat\epsilon|^2 d\lambda$, which depends only on the ends of the
schedule.

A row has two sets of samples, whose times and noise are each spread evenly over the unit cube.
The variance of $|\epsilon - \hat\epsilon|^2$ is mostly that of
$|\epsilon - \sigma z / (\alpha^2 + \sigma^2)|^2$, the error of the denoiser of N(0, I), whose mean
is known. It serves as a control variate, with the coefficient from the other set, which is
independent of this set's noise and so leaves the bound unbiased.

The probability flow (Song et al. 2021), with $\tau = -\lambda / 2$ for time and z scaled to
preserve variance, is $dz/d\tau = \sigma \hat\epsilon - \sigma^2 z$. It gives a density of z_0, and
$\log p(x) \ge E[\log p(z_0) + \log p(x | z_0) - \log q(z_0 | x)]$, which is tight where z_0
determines x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.rng import derive_seed, keyed_normal, keyed_uniform
from ...prob.distributions import normal_log_prob_rows
from ...prob.noise_schedule import NoiseProcess, alpha_sigma
from ...solve.jacobian_trace import exact_trace, hutchinson_trace
from ...solve.ode import Solver, State, integrate
from ._parameterisation import DenoiserPrediction
from ._units import EventUnits

MIN_UNIFORM = 1e-15
"""Distance to 0 and 1 at which uniforms are clamped before they become normals."""
LOG_SNR_RANGES = 8
"""Ranges of the log-SNR by which the diffusion term is reported."""
SMOOTHING_WINDOWS = 8
"""Errors are smoothed over samples within this fraction of all times."""
PredictAt = Callable[[Tensor, Tensor], DenoiserPrediction]
"""The prediction at z (B, D) and a log-SNR (B,)."""


@dataclass(frozen=True)
class LikelihoodInputs:
    """A model and the rows whose likelihood is computed."""

    predict: PredictAt
    noising: NoiseProcess
    units: EventUnits
    y: Tensor  # (B, D)
    rows: Tensor  # (B,): row numbers that key the noise
    seed: int
    steps: int = 0  # T; 0 is continuous time
    variance: str = "posterior"
    # (B,): log p(x | y) of what y does not hold of x, and log p(k) of its cluster
    detail: Tensor | float = 0.0

    @property
    def has_own_variance(self) -> bool:
        """Whether the reverse step has another variance than the posterior."""
        return self.steps > 0 and self.variance != "posterior"

    def normal(self, name: str) -> Tensor:  # (B, D)
        noise = keyed_normal(self.rows, self.y.shape[1:], derive_seed(self.seed, name))
        return noise.to(self.y.dtype)

    def ends(self) -> tuple[Tensor, Tensor]:
        """The log-SNR at data and at noise, each ()."""
        first, last = self.noising.log_snr(self.y.new_tensor([0.0, 1.0]))
        return first, last


@dataclass(frozen=True)
class BoundTerms:
    """The three parts of a bound, log p(x) >= -(prior + reconstruction + diffusion)."""

    prior: Tensor  # (B,)
    reconstruction: Tensor  # (B,)
    matching: Tensor  # (B, sets, K): samples of the diffusion term
    log_snr: Tensor  # (B, sets, K): their log-SNR
    edges: Tensor  # (LOG_SNR_RANGES + 1,) of the log-SNR, from noise to data
    times: Tensor  # (LOG_SNR_RANGES + 1,): the times of the edges

    def named(self) -> dict[str, Tensor]:
        """All terms, the diffusion term by ranges of the log-SNR from noise to data."""
        each = self.matching / self.matching[0].numel()
        place = torch.bucketize(self.log_snr, self.edges[1:-1])
        spans = zip(pairwise(self.times.tolist()), pairwise(self.edges.tolist()), strict=True)
        names = [
            f"diffusion, t {t:.2f} to {s:.2f}, log-SNR {low:.1f} to {high:.1f}"
            for (t, s), (low, high) in spans
        ]
        parts = {name: (each * (place == k)).sum((1, 2)) for k, name in enumerate(names)}
        return {"prior": self.prior, "reconstruction": self.reconstruction, **parts}

    @property
    def diffusion(self) -> Tensor:
        return self.matching.mean((1, 2))

    @property
    def value(self) -> Tensor:
        return -(self.prior + self.reconstruction + self.diffusion)

    @property
    def stderr(self) -> Tensor | None:
        """Standard error from the difference of the two sets; None with one set."""
        sets = self.matching.mean(2)
        return sets.std(1) / sets.shape[1] ** 0.5 if sets.shape[1] > 1 else None


def concat_terms(chunks: Sequence[BoundTerms]) -> BoundTerms:
    """The terms of rows that were computed in chunks."""
    prior, first, matching, log_snr = (
        torch.cat([getattr(chunk, name) for chunk in chunks])
        for name in ("prior", "reconstruction", "matching", "log_snr")
    )
    return BoundTerms(prior, first, matching, log_snr, chunks[0].edges, chunks[0].times)


def denoising_bound(inputs: LikelihoodInputs, samples: int) -> BoundTerms:
    """The denoising bound with this number of samples per row."""
    sets = 2 if samples > 1 else 1
    steps = math.ceil(samples / sets)
    terms = [
        sample_diffusion_term(inputs, number, place, steps)
        for number in range(sets)
        for place in range(steps)
    ]
    error, usual, mean, weight, log_snr = (
        torch.stack(each, 1).unflatten(1, (sets, steps)) for each in zip(*terms, strict=True)
    )
    if sets > 1 and not inputs.has_own_variance:
        share = smooth_over_time(error) / smooth_over_time(usual).clamp_min(
            torch.finfo(error.dtype).tiny
        )
        error = error - share.clamp(0, 1).roll(1, 1) * (usual - mean)
    high, low = inputs.ends()
    edges = torch.lerp(low, high, torch.linspace(0, 1, LOG_SNR_RANGES + 1).to(low))
    return BoundTerms(
        prior_kl(inputs.noising, inputs.y),
        reconstruction(inputs),
        error * weight,
        log_snr,
        edges,
        inputs.noising.time(edges),
    )


def sample_diffusion_term(
    inputs: LikelihoodInputs, number: int, place: int, steps: int
) -> tuple[Tensor, ...]:
    """One sample of the diffusion term, number `place` of `steps` in a set: |eps - eps_hat|^2,
    the same of the denoiser of N(0, I), the mean of that over eps, the weight of the first and
    the log-SNR, each (B,)."""
    dims = inputs.y.shape[1]
    start = keyed_uniform(inputs.rows, (dims + 1,), derive_seed(inputs.seed, "draws", number))
    share = ((start[:, 0] + place) / steps).to(inputs.y.dtype)
    moved = (start[:, 1:] + place * richtmyer_strides(dims).to(start.device)) % 1
    noise = torch.special.ndtri(moved.clamp(MIN_UNIFORM, 1 - MIN_UNIFORM)).to(inputs.y.dtype)
    log_snr, weight = log_snr_and_weight(inputs, share)
    alpha, sigma = alpha_sigma_columns(inputs.noising, log_snr)
    prediction = inputs.predict(alpha * inputs.y + sigma * noise, log_snr)
    if inputs.has_own_variance:
        return (
            step_kl(inputs, prediction, share),
            *[torch.zeros_like(share)] * 2,
            weight**0,
            log_snr,
        )
    error = (noise - prediction.noise).square().sum(1)
    return error, *gaussian_denoiser_error(inputs.y, noise, alpha, sigma), weight, log_snr


def consistency_bound(inputs: LikelihoodInputs, samples: int) -> BoundTerms:
    r"""The same bound written with the terms

    $\log q(z_s | z_r) - \log p(z_s | z_t)$, r < s < t neighbours and $q(z_0 | x)$ at the first,

    in expectation over $q(z_r, z_s, z_t | x)$, and with $E\,\mathrm{KL}(q(z_1 | z_r) \| p(z_1))$
    in place of the prior. $z_t$ depends on $z_s$, so that the KL divergence of $q(z_s | z_r)$ from
    $p(z_s | z_t)$ under independent ends is another value. Three samples for each term make its
    error much larger than that of the denoising bound. Time has a finite number of steps.
    """
    sets = 2 if samples > 1 else 1
    steps = math.ceil(samples / sets)
    terms = [
        sample_consistency_term(inputs, number, place, steps)
        for number in range(sets)
        for place in range(steps)
    ]
    matching, log_snr = (
        torch.stack(each, 1).unflatten(1, (sets, steps)) for each in zip(*terms, strict=True)
    )
    high, low = inputs.ends()
    edges = torch.lerp(low, high, torch.linspace(0, 1, LOG_SNR_RANGES + 1).to(low))
    return BoundTerms(
        last_step_kl(inputs),
        reconstruction(inputs),
        matching,
        log_snr,
        edges,
        inputs.noising.time(edges),
    )


def sample_consistency_term(
    inputs: LikelihoodInputs, number: int, place: int, steps: int
) -> tuple[Tensor, Tensor]:
    """T times a sample of one of the T terms, and the log-SNR of its z_t, each (B,)."""
    y, noising, total = inputs.y, inputs.noising, inputs.steps
    seed = derive_seed(inputs.seed, "walk", number)
    share = keyed_uniform(inputs.rows, (1,), seed)[:, 0].to(y.dtype)
    s, t = enclosing_step((share + place) / steps, total)
    r = (s - 1 / total).clamp_min(0)[:, None]
    s, t = s[:, None], t[:, None]
    first, second, third = (inputs.normal(f"walk{number}.{place}.{k}") for k in range(3))
    start = s < 0.5 / total  # z_0, which follows x itself
    ahead = noising.step(torch.where(start, 0.0, r), torch.where(start, 1 / total, s))
    mean = torch.where(
        start,
        noising.alpha(s) * y,
        noising.alpha(s) / noising.alpha(r) * (noising.alpha(r) * y + noising.sigma(r) * first),
    )
    variance = torch.where(start, noising.sigma(s).square(), ahead.forward)
    z_s = mean + variance.sqrt() * second
    step = noising.step(s, t)
    z_t = noising.alpha(t) / noising.alpha(s) * z_s + step.forward.sqrt() * third
    log_snr = noising.log_snr(t[:, 0])
    prediction = inputs.predict(z_t, log_snr)
    wider = (step.forward / step.variance).log() * (
        float(inputs.variance == "forward") if prediction.share is None else prediction.share
    )
    own = step.variance * wider.exp()
    miss = z_s - step.on_z * z_t - step.on_x * prediction.x0
    ratio = 0.5 * (miss.square() / own + own.log() - second.square() - variance.log())
    return total * ratio.sum(1), log_snr


def last_step_kl(inputs: LikelihoodInputs) -> Tensor:
    """KL(q(z_1 | z_r) || p(z_1)) in expectation over z_r, one step before, (B,)."""
    one, noising = inputs.y.new_ones(()), inputs.noising
    before = one - 1 / inputs.steps
    variance, spread = noising.step(before, one).forward, noising.spread(one).square()
    # the mean of q(z_1 | z_r) varies with z_r by what z_1 varies beyond its step
    square = (noising.alpha(one) * inputs.y).square() + noising.sigma(one).square()
    return 0.5 * (square / spread - 1 + (spread / variance).log()).sum(1)


def smooth_over_time(value: Tensor) -> Tensor:
    """The mean over samples of a set (B, sets, K) at neighbouring times."""
    reach = value.shape[2] // SMOOTHING_WINDOWS
    return F.avg_pool1d(value, 2 * reach + 1, 1, reach, count_include_pad=False)


@cache
def richtmyer_strides(dims: int) -> Tensor:
    """The fractional parts of the square roots of the first primes, (D,): multiples of them fill
    the unit cube evenly (Richtmyer 1951)."""
    most = max(16, int(2 * dims * math.log(dims + 2)))
    sieve = torch.ones(most, dtype=torch.bool)
    sieve[:2] = False
    for p in range(2, math.isqrt(most) + 1):
        sieve[p * p :: p] = False
    return sieve.nonzero()[:dims, 0].double().sqrt() % 1


def log_snr_and_weight(inputs: LikelihoodInputs, share: Tensor) -> tuple[Tensor, Tensor]:
    """The log-SNR at a fraction (B,) of the way to noise, and the weight of |eps - eps_hat|^2."""
    if inputs.steps:
        s, t = enclosing_step(share, inputs.steps)
        before, after = inputs.noising.log_snr(s), inputs.noising.log_snr(t)
        return after, 0.5 * inputs.steps * torch.expm1(before - after)
    high, low = inputs.ends()
    return torch.lerp(high, low, share), (0.5 * (high - low)).expand_as(share)


def enclosing_step(share: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The step s < t of `steps` that contains a fraction in [0, 1) of the time."""
    place = (share * steps).floor().clamp(0, steps - 1)
    return place / steps, (place + 1) / steps


def step_kl(inputs: LikelihoodInputs, prediction: DenoiserPrediction, share: Tensor) -> Tensor:
    """T KL(q(z_s | z_t, x) || p(z_s | z_t)) if p has a variance of its own, (B,)."""
    s, t = enclosing_step(share, inputs.steps)
    kl = entrywise_step_kl(inputs.noising, s, t, inputs.y, prediction, inputs.variance)
    return inputs.steps * kl.sum(1)


def entrywise_step_kl(
    noising: NoiseProcess,
    s: Tensor,
    t: Tensor,
    y: Tensor,
    prediction: DenoiserPrediction,
    variance: str,
) -> Tensor:
    """KL(N(mu_q, v_q) || N(mu_p, v_p)) of each entry, (B, D), with v_p the forward variance or
    learned between both: (log v_p / v_q - 1 + v_q / v_p + (mu_q - mu_p)^2 / v_p) / 2."""
    step = noising.step(s[:, None], t[:, None])
    ratio = (step.forward / step.variance).log()
    fixed = float(variance == "forward")
    log_ratio = ratio * (fixed if prediction.share is None else prediction.share)
    apart = step.on_x.square() / step.variance * (y - prediction.x0).square()
    return 0.5 * (log_ratio - 1 + torch.exp(-log_ratio) * (1 + apart))


def gaussian_denoiser_error(
    y: Tensor, noise: Tensor, alpha: Tensor, sigma: Tensor
) -> tuple[Tensor, Tensor]:
    """|eps - sigma z / (alpha^2 + sigma^2)|^2 and its mean over eps, each (B,)."""
    whole = alpha.square() + sigma.square()
    miss = (alpha * (alpha * noise - sigma * y) / whole).square().sum(1)
    mean = (alpha.square() / whole.square() * (alpha.square() + (sigma * y).square())).sum(1)
    return miss, mean


def prior_kl(noising: NoiseProcess, y: Tensor) -> Tensor:
    """KL(q(z_1 | x) || p(z_1)), (B,)."""
    one = y.new_ones(())
    alpha, sigma, spread = noising.alpha(one), noising.sigma(one), noising.spread(one)
    square = (sigma.square() + (alpha * y).square()) / spread.square()
    return 0.5 * (square - 1 + 2 * (spread / sigma).log()).sum(1)


def reconstruction(inputs: LikelihoodInputs, noise: Tensor | None = None) -> Tensor:
    """-log p(x | z_0) at a sample of z_0, (B,)."""
    log_snr, _ = inputs.ends()
    noise = inputs.normal("first") if noise is None else noise
    alpha, sigma = alpha_sigma_columns(inputs.noising, log_snr[None])
    mean = final_mean(inputs, alpha * inputs.y + sigma * noise)
    lost = -(inputs.units.log_prob(inputs.y, mean, sigma / alpha) + inputs.detail)
    if inputs.units.discrete:
        return lost
    # For reals it is close to |eps|^2 / 2 + const, whose mean is known.
    numbers = inputs.units.numbers_in(inputs.y)
    return lost - 0.5 * torch.where(numbers, noise.square() - 1, 0.0).sum(1)


def final_mean(inputs: LikelihoodInputs, z: Tensor) -> Tensor:
    """The mean of y given z_0: for levels the rescaled z_0, for reals the prediction."""
    log_snr, _ = inputs.ends()
    rescaled = z / alpha_sigma_columns(inputs.noising, log_snr[None])[0]
    if inputs.units.discrete:
        return rescaled
    predicted = inputs.predict(z, log_snr.expand(len(z))).x0
    return torch.where(inputs.units.continuous, predicted, rescaled)


def ode_log_likelihood(inputs: LikelihoodInputs, solver: Solver, probes: Tensor | None) -> Tensor:
    """log p(x) by the probability flow, with each of the probes (B, K, D) or with the exact
    trace, (B, K)."""
    high, low = inputs.ends()
    alpha, sigma = alpha_sigma("preserving", high)
    noise = inputs.normal("first")
    z = alpha * inputs.y + sigma * noise

    def noise_of(z: Tensor, tau: Tensor) -> Tensor:
        log_snr = (-2 * tau).expand(len(z))
        scale = torch.hypot(*alpha_sigma_columns(inputs.noising, log_snr))
        return inputs.predict(scale * z, log_snr).noise

    def field(tau: Tensor, state: State) -> State:
        sigma = torch.sigmoid(2 * tau).sqrt().reshape(-1, 1)

        def velocity(z: Tensor) -> Tensor:
            return sigma * noise_of(z, tau) - sigma.square() * z

        if probes is None:
            v, trace = exact_trace(velocity, state[0])
            return v, trace[:, None]
        return hutchinson_trace(velocity, state[0], probes)

    times = (-0.5 * high.item(), -0.5 * low.item())
    end, total = integrate(
        field, (z, z.new_zeros(len(z), 1 if probes is None else probes.shape[1])), times, solver
    ).end
    first = normal_log_prob_rows(noise) - inputs.y.shape[1] * sigma.log()  # log q(z_0 | x)
    scale = inputs.noising.spread(inputs.y.new_zeros(()))
    last = inputs.units.log_prob(inputs.y, final_mean(inputs, scale * z), sigma / alpha)
    last = last + inputs.detail
    return (normal_log_prob_rows(end) + last - first)[:, None] + total


def alpha_sigma_columns(noising: NoiseProcess, log_snr: Tensor) -> tuple[Tensor, Tensor]:
    """alpha and sigma as columns (B, 1)."""
    alpha, sigma = alpha_sigma(noising.family, log_snr)
    return alpha[:, None], sigma[:, None]
