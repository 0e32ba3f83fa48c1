r"""Distributions that stay known under noise: mixtures of normals at every time of a schedule.

If $x \sim \sum_k w_k N(m_k, s_k^2)$, then $z = \alpha x + \sigma \epsilon$ has the density
$\sum_k w_k N(\alpha m_k, v_k)$, $v_k = \alpha^2 s_k^2 + \sigma^2$, and
$E[x | z] = \sum_k p(k | z) (m_k + \frac{\alpha s_k^2}{v_k} (z - \alpha m_k))$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..core.space import Space
from ..models.diffusion._conditioning import Conditioning
from ..models.diffusion._guidance import NoiseConditionalClassifier
from ..models.diffusion._parameterisation import DenoiserPrediction
from ..models.diffusion._samplers import Predict
from ..prob.noise_schedule import NoiseProcess


@dataclass(frozen=True)
class NoisyGaussianMixture:
    """A mixture of K isotropic normals in D dimensions, known at every noise level."""

    weights: Tensor  # (K,)
    means: Tensor  # (K, D)
    scales: Tensor  # (K,)

    def log_each(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """log w_k + log N(z; alpha m_k, alpha^2 s_k^2 + sigma^2), (B, K); alpha, sigma (B, 1)."""
        variance = (alpha * self.scales).square() + sigma.square()  # (B, K)
        far = (z[:, None] - alpha[..., None] * self.means).square().sum(2)  # (B, K)
        dims = z.shape[1]
        return self.weights.log() - 0.5 * (far / variance + dims * (2 * math.pi * variance).log())

    def log_prob(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:  # (B,)
        return self.log_each(z, alpha, sigma).logsumexp(1)

    def denoised(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """E[x | z], (B, D)."""
        share = self.log_each(z, alpha, sigma).softmax(1)  # (B, K)
        variance = (alpha * self.scales).square() + sigma.square()
        gain = alpha * self.scales.square() / variance  # (B, K)
        away = z[:, None] - alpha[..., None] * self.means  # (B, K, D)
        return (share[..., None] * (self.means + gain[..., None] * away)).sum(1)

    def denoiser(self, noising: NoiseProcess) -> Predict:
        """The prediction of a perfectly trained network."""

        def predict(z: Tensor, t: Tensor) -> DenoiserPrediction:
            alpha, sigma = noising.alpha(t)[:, None], noising.sigma(t)[:, None]
            return DenoiserPrediction(z, alpha, sigma, "x0", self.denoised(z, alpha, sigma))

        return predict

    def cumulative(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """P(Z <= z) in one dimension, of z (B, 1), (B,)."""
        spread = ((alpha * self.scales).square() + sigma.square()).sqrt()
        return (self.weights * torch.special.ndtr((z - alpha * self.means[:, 0]) / spread)).sum(1)

    def quantile(self, levels: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """z (B, 1) with these probabilities (B,) below it, by bisection."""
        reach = 12 * torch.hypot(alpha * (1 + self.means.abs().amax()), sigma)
        low, high = (sign * reach.expand(len(levels), 1) for sign in (-1, 1))
        for _ in range(80):
            middle = (low + high) / 2
            below = (self.cumulative(middle, alpha, sigma) < levels)[:, None]
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def sample(self, n: int) -> Tensor:  # (n, D)
        which = torch.multinomial(self.weights, n, replacement=True)
        noise = torch.randn(n, self.means.shape[1], dtype=self.means.dtype)
        return self.means[which] + self.scales[which, None] * noise


def line() -> NoisyGaussianMixture:
    """Three normals on a line."""
    return NoisyGaussianMixture(
        torch.tensor([0.5, 0.3, 0.2]).double(),
        torch.tensor([[-1.2], [0.3], [1.5]]).double(),
        torch.tensor([0.2, 0.1, 0.3]).double(),
    )


def plane() -> NoisyGaussianMixture:
    """Three normals in the plane."""
    return NoisyGaussianMixture(
        torch.tensor([0.5, 0.3, 0.2]).double(),
        torch.tensor([[-1.2, 0.4], [0.3, -1.0], [1.2, 1.0]]).double(),
        torch.tensor([0.2, 0.15, 0.3]).double(),
    )


def alone(distribution: NoisyGaussianMixture, y: int) -> NoisyGaussianMixture:
    """One component as a distribution."""
    return replace(
        distribution,
        weights=distribution.weights[y : y + 1] ** 0,
        means=distribution.means[y : y + 1],
        scales=distribution.scales[y : y + 1],
    )


class PerfectClassifier(NoiseConditionalClassifier):
    """p(component | z) of a mixture, for variance-preserving noise."""

    def __init__(self, distribution: NoisyGaussianMixture) -> None:
        self.distribution = distribution
        self.space = Space(kind="label", size=len(distribution.weights), name="component")

    @property
    def input_space(self) -> Space:
        return Space(kind="real", shape=(self.distribution.means.shape[1],))

    def log_snr_range(self) -> tuple[float, float]:
        return -math.inf, math.inf

    def log_prob_noisy(self, z: Tensor, log_snr: Tensor, y: Tensor) -> Tensor:
        alpha, sigma = (torch.sigmoid(sign * log_snr).sqrt()[:, None] for sign in (1, -1))
        each = self.distribution.log_each(z, alpha, sigma).log_softmax(1)
        return each.gather(1, y[:, None])[:, 0]


class PerfectDiffusion:
    """What guidance reads of a diffusion model: predictions of a perfectly trained network, of a
    mixture without conditions and of one component with them."""

    def __init__(self, distribution: NoisyGaussianMixture, schedule: NoiseProcess, y: int) -> None:
        self.distribution, self.given, self.schedule = (
            distribution,
            alone(distribution, y),
            schedule,
        )
        self.name, self.config = "perfect", SimpleNamespace(drop=0.1)
        self.space = SimpleNamespace(given={"component": None})
        self.condition_encoder, self.width = self, 1

    def empty(self, n: int) -> Conditioning:
        return Conditioning(torch.zeros(n, 1).double(), torch.zeros(n, 0).double())

    def encode_conditions(self, given: Any, n: int, cluster: Tensor | None = None) -> Conditioning:
        return replace(self.empty(n), vector=torch.ones(n, 1).double())

    def predict(self, z: Tensor, t: Tensor, conditions: Conditioning) -> DenoiserPrediction:
        alpha, sigma = self.schedule.alpha(t)[:, None], self.schedule.sigma(t)[:, None]
        with_y, without = (
            each.denoised(z, alpha, sigma) for each in (self.given, self.distribution)
        )
        x0 = torch.where(conditions.vector > 0, with_y, without)
        return DenoiserPrediction(z, alpha, sigma, "x0", x0)
