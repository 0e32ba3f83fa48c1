r"""What a denoiser predicts: x, the noise, the score or the velocity, and their conversions.

With $z = \alpha x + \sigma \epsilon$, a prediction of x is also one of the noise
$\epsilon = (z - \alpha x)/\sigma$, of the score $-\epsilon/\sigma$ (Tweedie:
$\alpha E[x|z] = z + \sigma^2 \nabla \log p(z)$) and of the velocity
$v = \alpha \epsilon - \sigma x$ (Salimans & Ho 2022). Predictions are means given z: a score is
$-E[\epsilon|z]/\sigma$, not $-\epsilon/\sigma$ of the noise that was added.

A network learns these means by regression on x or $\epsilon$. A stable target (Xu, Tong & Jaakkola
2023) has $\bar x_i = \sum_j w_{ij} x_j$ in place of $x_i$, over the rows of the batch with
$w_{ij} \propto N(z_i; \alpha_i x_j, \sigma_i^2 I)$: given these rows in any order and $z_i$,
it was $x_j$ that was noised with probability $w_{ij}$, so that $E[\bar x_i | z_i] = E[x_i | z_i]$.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Target = Literal["x0", "noise", "score", "velocity"]


@dataclass(frozen=True)
class DenoiserPrediction:
    """`value` (B, D) of the kind `of`, predicted at z (B, D), where alpha and sigma are (B, 1).

    Nothing is cached: a cached property takes a lock, which torch.export cannot trace.
    """

    z: Tensor
    alpha: Tensor
    sigma: Tensor
    of: Target
    value: Tensor
    share: Tensor | None = None  # (B, D): a learned log-variance between its two bounds
    components: Tensor | None = None  # (B, components): of tables their probabilities

    @property
    def x0(self) -> Tensor:
        alpha, sigma = self.alpha, self.sigma
        if self.of == "x0":
            return self.value
        if self.of == "velocity":
            return (alpha * self.z - sigma * self.value) / (alpha.square() + sigma.square())
        return (self.z - sigma * self.noise) / alpha

    @property
    def noise(self) -> Tensor:
        alpha, sigma = self.alpha, self.sigma
        if self.of == "noise":
            return self.value
        if self.of == "score":
            return -sigma * self.value
        if self.of == "velocity":
            return (sigma * self.z + alpha * self.value) / (alpha.square() + sigma.square())
        return (self.z - alpha * self.value) / sigma

    @property
    def score(self) -> Tensor:
        return self.value if self.of == "score" else -self.noise / self.sigma

    @property
    def velocity(self) -> Tensor:
        if self.of == "velocity":
            return self.value
        return self.alpha * self.noise - self.sigma * self.x0

    @property
    def noise_error_scale(self) -> Tensor:
        """The error of the noise that corresponds to an error of `value` by 1, (B, 1)."""
        alpha, sigma = self.alpha, self.sigma
        return {
            "x0": alpha / sigma,
            "noise": torch.ones_like(sigma),
            "score": sigma,
            "velocity": alpha / (alpha.square() + sigma.square()),
        }[self.of]

    def map_x0(self, change: Callable[[Tensor], Tensor]) -> DenoiserPrediction:
        """The prediction whose x0 is changed by a function, such as clamping."""
        return replace(self, of="x0", value=change(self.x0))


def regression_target(
    of: Target, x: Tensor, noise: Tensor, alpha: Tensor, sigma: Tensor
) -> Tensor:
    """The regression target of a prediction of this kind."""
    return {
        "x0": lambda: x,
        "noise": lambda: noise,
        "score": lambda: -noise / sigma,
        "velocity": lambda: alpha * noise - sigma * x,
    }[of]()


def stable_target(
    z: Tensor, x: Tensor, noise: Tensor, alpha: Tensor, sigma: Tensor
) -> tuple[Tensor, Tensor]:
    """The means of the rows x (B, D) that each z (B, D) may come from, and of the noise (B, D),
    for alpha and sigma (B, 1)."""
    # by differences: where there is little noise squares would cancel
    distance = torch.cdist(z / alpha, x, compute_mode="donot_use_mm_for_euclid_dist")
    mean = torch.softmax(-0.5 * (alpha / sigma * distance).square(), 1) @ x
    return mean, noise + alpha / sigma * (x - mean)
