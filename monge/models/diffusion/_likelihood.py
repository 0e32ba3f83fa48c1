r"""What a diffusion law gives a datum, in nats: a bound by denoising, or an estimate by a flow.

The bound is (Sohl-Dickstein et al. 2015; Kingma et al. 2021)

$\log p(x) \ge E \log p(x | z_0) - KL(q(z_1 | x) \| p(z_1)) - L$, with L over T steps
$\sum_t E\, KL(q(z_s | z_t, x) \| p(z_s | z_t)) = \frac12 \sum_t (e^{\lambda_s - \lambda_t} - 1)
E |\epsilon - \hat\epsilon|^2$ and in continuous time
$\frac12 \int E |\epsilon - \hat\epsilon|^2 d\lambda$, which no schedule between the ends changes.

A row has two sets of draws, in each of which times and noise are spread evenly over the cube.
The noise of $|\epsilon - \hat\epsilon|^2$ is mostly that of
$|\epsilon - \sigma z / (\alpha^2 + \sigma^2)|^2$, what the denoiser of N(0, I) misses, whose mean
is known: it is taken off in the proportion that the other set shows there, which knows nothing of
this one's noise and so biases nothing.

The flow of the same marginals (Song et al. 2021) is, with $\tau = -\lambda / 2$ for time and z
scaled to preserve variance, $dz/d\tau = \sigma \hat\epsilon - \sigma^2 z$. It gives a density of
z_0, and $\log p(x) \ge E[\log p(z_0) + \log p(x | z_0) - \log q(z_0 | x)]$, which is tight where
z_0 tells x.
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
from ...prob.distributions import log_normal
from ...prob.noise_schedule import Noising, coefficients
from ...solve.jacobian_trace import exact_trace, hutchinson_trace
from ...solve.ode import Solver, State, integrate
from ._parameterisation import Prediction
from ._units import Units

TINY = 1e-15
"""Nearest that a uniform comes to 0 and 1 before it is made a normal."""
RANGES = 8
"""Ranges of the log-SNR in which the diffusion term is told."""
NEAR = 8
"""Draws that are near in time lie within this part of the whole."""
PredictAt = Callable[[Tensor, Tensor], Prediction]
"""What is known of z (B, D) at a log-SNR (B,)."""


@dataclass(frozen=True)
class Asked:
    """A law and the rows it is asked about."""

    predict: PredictAt
    noising: Noising
    units: Units
    y: Tensor  # (B, D)
    rows: Tensor  # (B,): what keys the noise
    seed: int
    steps: int = 0  # T; 0 is continuous time
    variance: str = "posterior"

    @property
    def is_unequal(self) -> bool:
        """Whether a step back has another variance than the posterior's."""
        return self.steps > 0 and self.variance != "posterior"

    def normal(self, name: str) -> Tensor:  # (B, D)
        drawn = keyed_normal(self.rows, self.y.shape[1:], derive_seed(self.seed, name))
        return drawn.to(self.y.dtype)

    def ends(self) -> tuple[Tensor, Tensor]:
        """The log-SNR at data and at noise, each ()."""
        first, last = self.noising.log_snr(self.y.new_tensor([0.0, 1.0]))
        return first, last


@dataclass(frozen=True)
class Terms:
    """The three parts of a bound, log p(x) >= -(prior + reconstruction + diffusion)."""

    prior: Tensor  # (B,)
    reconstruction: Tensor  # (B,)
    matching: Tensor  # (B, sets, K): draws of the diffusion term
    log_snr: Tensor  # (B, sets, K): where they were drawn
    edges: Tensor  # (RANGES + 1,) of the log-SNR, from noise to data
    times: Tensor  # (RANGES + 1,): when it has these values

    def named(self) -> dict[str, Tensor]:
        """The diffusion term cut into ranges of the log-SNR, from noise to data."""
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
        """From the difference of the two sets."""
        sets = self.matching.mean(2)
        return sets.std(1) / sets.shape[1] ** 0.5 if sets.shape[1] > 1 else None


def together(pieces: Sequence[Terms]) -> Terms:
    """Terms of rows that were scored in pieces."""
    prior, first, matching, log_snr = (
        torch.cat([getattr(piece, name) for piece in pieces])
        for name in ("prior", "reconstruction", "matching", "log_snr")
    )
    return Terms(prior, first, matching, log_snr, pieces[0].edges, pieces[0].times)


def bound(ask: Asked, samples: int) -> Terms:
    """The denoising bound with so many draws a row."""
    sets = 2 if samples > 1 else 1
    steps = math.ceil(samples / sets)
    drawn = [draw(ask, number, place, steps) for number in range(sets) for place in range(steps)]
    error, usual, mean, weight, log_snr = (
        torch.stack(each, 1).unflatten(1, (sets, steps)) for each in zip(*drawn, strict=True)
    )
    if sets > 1 and not ask.is_unequal:
        share = near(error) / near(usual).clamp_min(torch.finfo(error.dtype).tiny)
        error = error - share.clamp(0, 1).roll(1, 1) * (usual - mean)
    high, low = ask.ends()
    edges = torch.lerp(low, high, torch.linspace(0, 1, RANGES + 1).to(low))
    return Terms(
        prior(ask.noising, ask.y),
        reconstruction(ask),
        error * weight,
        log_snr,
        edges,
        ask.noising.time(edges),
    )


def draw(ask: Asked, number: int, place: int, steps: int) -> tuple[Tensor, ...]:
    """|eps - eps_hat|^2, that of the denoiser of N(0, I), the mean of that over eps, the weight of
    the first and the log-SNR, each (B,), at the place-th of so many steps of a set of draws."""
    dims = ask.y.shape[1]
    start = keyed_uniform(ask.rows, (dims + 1,), derive_seed(ask.seed, "draws", number))
    share = ((start[:, 0] + place) / steps).to(ask.y.dtype)
    moved = (start[:, 1:] + place * strides(dims).to(start.device)) % 1
    noise = torch.special.ndtri(moved.clamp(TINY, 1 - TINY)).to(ask.y.dtype)
    log_snr, weight = at_share(ask, share)
    alpha, sigma = columns(ask.noising, log_snr)
    said = ask.predict(alpha * ask.y + sigma * noise, log_snr)
    if ask.is_unequal:
        return unequal(ask, said, share), *[torch.zeros_like(share)] * 2, weight**0, log_snr
    error = (noise - said.noise).square().sum(1)
    return error, *gaussian_miss(ask.y, noise, alpha, sigma), weight, log_snr


def near(value: Tensor) -> Tensor:
    """The mean over the draws of a set (B, sets, K) that are near in time."""
    reach = value.shape[2] // NEAR
    return F.avg_pool1d(value, 2 * reach + 1, 1, reach, count_include_pad=False)


@cache
def strides(dims: int) -> Tensor:
    """The square roots of the first primes, less their whole part, (D,): points that move by them
    fill the cube evenly (Richtmyer 1951)."""
    most = max(16, int(2 * dims * math.log(dims + 2)))
    sieve = torch.ones(most, dtype=torch.bool)
    sieve[:2] = False
    for p in range(2, math.isqrt(most) + 1):
        sieve[p * p :: p] = False
    return sieve.nonzero()[:dims, 0].double().sqrt() % 1


def at_share(ask: Asked, share: Tensor) -> tuple[Tensor, Tensor]:
    """The log-SNR at a share (B,) of the way, and the weight of |eps - eps_hat|^2 there."""
    if ask.steps:
        s, t = step_of(share, ask.steps)
        before, after = ask.noising.log_snr(s), ask.noising.log_snr(t)
        return after, 0.5 * ask.steps * torch.expm1(before - after)
    high, low = ask.ends()
    return torch.lerp(high, low, share), (0.5 * (high - low)).expand_as(share)


def step_of(share: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The step s < t of `steps` into which a share in [0, 1) falls."""
    place = (share * steps).floor().clamp(0, steps - 1)
    return place / steps, (place + 1) / steps


def unequal(ask: Asked, said: Prediction, share: Tensor) -> Tensor:
    """T KL(q(z_s | z_t, x) || p(z_s | z_t)) where the variance of p is not that of q, (B,)."""
    s, t = step_of(share, ask.steps)
    kl = gaussian_step(ask.noising, s, t, ask.y, said, ask.variance)
    return ask.steps * kl.sum(1)


def gaussian_step(
    noising: Noising, s: Tensor, t: Tensor, y: Tensor, said: Prediction, variance: str
) -> Tensor:
    """KL(N(mu_q, v_q) || N(mu_p, v_p)) of each entry, (B, D), with v_p the forward variance or
    between both as learned: (log v_p / v_q - 1 + v_q / v_p + (mu_q - mu_p)^2 / v_p) / 2."""
    step = noising.step(s[:, None], t[:, None])
    ratio = (step.forward / step.variance).log()
    log_ratio = ratio * (said.share if said.share is not None else float(variance == "forward"))
    apart = step.on_x.square() / step.variance * (y - said.x0).square()
    return 0.5 * (log_ratio - 1 + torch.exp(-log_ratio) * (1 + apart))


def gaussian_miss(y: Tensor, noise: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """|eps - sigma z / (alpha^2 + sigma^2)|^2 and its mean over eps, each (B,)."""
    whole = alpha.square() + sigma.square()
    miss = (alpha * (alpha * noise - sigma * y) / whole).square().sum(1)
    mean = (alpha.square() / whole.square() * (alpha.square() + (sigma * y).square())).sum(1)
    return miss, mean


def prior(noising: Noising, y: Tensor) -> Tensor:
    """KL(q(z_1 | x) || p(z_1)), (B,)."""
    one = y.new_ones(())
    alpha, sigma, spread = noising.alpha(one), noising.sigma(one), noising.spread(one)
    square = (sigma.square() + (alpha * y).square()) / spread.square()
    return 0.5 * (square - 1 + 2 * (spread / sigma).log()).sum(1)


def reconstruction(ask: Asked, noise: Tensor | None = None) -> Tensor:
    """-log p(x | z_0) at a draw of z_0, (B,)."""
    log_snr, _ = ask.ends()
    noise = ask.normal("first") if noise is None else noise
    alpha, sigma = columns(ask.noising, log_snr[None])
    lost = -ask.units.log_prob(ask.y, last_mean(ask, alpha * ask.y + sigma * noise), sigma / alpha)
    # Of reals it is near |eps|^2 / 2 + const, whose mean is known.
    return lost if ask.units.whole else lost - 0.5 * (noise.square() - 1).sum(1)


def last_mean(ask: Asked, z: Tensor) -> Tensor:
    """The mean of y given z_0: of levels, the rescaled z_0; of reals, what the network says."""
    log_snr, _ = ask.ends()
    if ask.units.whole:
        return z / columns(ask.noising, log_snr[None])[0]
    return ask.predict(z, log_snr.expand(len(z))).x0


def flow(ask: Asked, solver: Solver, probes: Tensor | None) -> Tensor:
    """log p(x) by the flow, with each of the probes (B, K, D) or with the exact trace, (B, K)."""
    high, low = ask.ends()
    alpha, sigma = coefficients("preserving", high)
    noise = ask.normal("first")
    z = alpha * ask.y + sigma * noise

    def noise_of(z: Tensor, tau: Tensor) -> Tensor:
        log_snr = (-2 * tau).expand(len(z))
        scale = torch.hypot(*columns(ask.noising, log_snr))
        return ask.predict(scale * z, log_snr).noise

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
    first = log_normal(noise) - ask.y.shape[1] * sigma.log()  # log q(z_0 | x)
    scale = ask.noising.spread(ask.y.new_zeros(()))
    last = ask.units.log_prob(ask.y, last_mean(ask, scale * z), sigma / alpha)
    return (log_normal(end) + last - first)[:, None] + total


def columns(noising: Noising, log_snr: Tensor) -> tuple[Tensor, Tensor]:
    """alpha and sigma as columns (B, 1)."""
    alpha, sigma = coefficients(noising.family, log_snr)
    return alpha[:, None], sigma[:, None]
