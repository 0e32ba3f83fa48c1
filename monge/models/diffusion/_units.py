r"""Standardised units of the data, and the last step from z_0 to what is observed.

Noise is added to $y = (x - \text{mean}) / \text{scale}$. At t = 0 a normal distribution with
mean m and standard deviation $s = \sigma_0/\alpha_0$ is left:

reals    $\log p(x | z_0) = \log N(y; m, s^2) - \log \text{scale}$;
levels   $P(x | z_0) = \Phi((y + h - m)/s) - \Phi((y - h - m)/s)$ with h half the distance of two
         levels; the first and the last level take the tails, so that it sums to one.

The entrywise denoiser estimates each entry from its own noisy value alone. With frequencies
$\pi_k$ of its levels $y_k$ in the training rows, the posterior
$p_k \propto \pi_k\, N(z; \alpha y_k, \sigma^2)$ has the mean m(z) and the standard deviation
s(z); for reals, taken as N(0, 1), these are $\alpha z / (\alpha^2 + \sigma^2)$ and
$\sigma / \sqrt{\alpha^2 + \sigma^2}$. A network that predicts the residual,
$\hat x = m(z) + s(z) f$, is the distribution of independent entries at initialisation, learns
only their dependence, and has no effect where an entry is certain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...core.space import Space
from .._ordering import check_codes

MIN_LEVEL_SCALE = 0.3
"""Smallest scale of discrete data, so that a rare level is not blown up."""
NOISE_STDS_PER_LEVEL = 8.0
"""Distance of two levels in standard deviations of the noise at t = 0."""
REAL_MAX_LOG_SNR = 10.0
"""Log-SNR at t = 0 for reals."""
MAX_ENUMERATED_LEVELS = 64
"""Number of levels up to which the posterior over all of them is computed."""
PSEUDO_ROWS = 2.0
"""Weight of the frequencies over all entries in those of one entry, in rows."""
MIN_VARIANCE = 1e-12
"""Smallest variance, so that the gradient of its square root is finite."""


class Units(nn.Module):
    """x (B, *event) to y (B, D) and back."""

    shift: Tensor
    scale: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, self.discrete = space, space.kind != "real"
        self.top = (1 if space.kind == "binary" else space.size - 1) if self.discrete else 0
        scale = space.spread("scale").flatten()
        scale = scale.clamp_min(MIN_LEVEL_SCALE) if self.discrete else scale
        self.register_buffer("shift", space.spread("mean").flatten().clone(), persistent=False)
        self.register_buffer("scale", scale.clone(), persistent=False)  # (D,)

    def to_units(self, x: Tensor) -> Tensor:  # (B, *event) -> (B, D)
        x = x.reshape(len(x), -1).to(self.scale.dtype)
        check_codes("diffusion", self.space, x)
        return (x - self.shift) / self.scale

    def to_data(self, y: Tensor) -> Tensor:  # (B, D) -> (B, *event)
        x = self.shift + self.scale * y
        if self.discrete:
            x = x.round().clamp(0, self.top) + 0.0  # turns -0 into 0
        return x.reshape(len(y), *self.space.shape)

    def clamp(self, y: Tensor) -> Tensor:
        """y clamped to the range of the levels; reals are unchanged."""
        if not self.discrete:
            return y
        low, high = -self.shift / self.scale, (self.top - self.shift) / self.scale
        return y.clamp(low, high)

    def log_prob(self, y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """log p(x | z_0) in the units of the data, (B,), for y and mean (B, D), deviation (B, 1)
        or ()."""
        if not self.discrete:
            normal = -0.5 * ((y - mean) / deviation).square() - deviation.log() - self.scale.log()
            return (normal - 0.5 * math.log(2 * math.pi)).sum(1)
        half, x = 0.5 / self.scale, (self.shift + self.scale * y).round()
        below = torch.where(x <= 0, -torch.inf, (y - half - mean) / deviation)
        above = torch.where(x >= self.top, torch.inf, (y + half - mean) / deviation)
        return log_normal_interval(below, above).sum(1)


def log_normal_interval(a: Tensor, b: Tensor) -> Tensor:
    """log(Phi(b) - Phi(a)) for a < b, accurate in both tails."""
    flipped = a > 0
    low, high = torch.where(flipped, -b, a), torch.where(flipped, -a, b)
    upper, lower = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    # Clamped at the smallest difference, so that its gradient stays finite.
    gap = (lower - upper).clamp(max=-torch.finfo(a.dtype).eps)
    return upper + torch.log(-torch.expm1(gap))


def max_log_snr(space: Space) -> float:
    """The log-SNR at t = 0 at which neighbouring levels are separated; a constant for reals."""
    if space.kind == "real":
        return REAL_MAX_LOG_SNR
    scale = space.spread("scale").clamp_min(MIN_LEVEL_SCALE).max().item()
    return round(2 * math.log(NOISE_STDS_PER_LEVEL * scale), 1)


def feature_half_period(space: Space) -> Tensor:
    """Half the period of the slowest Fourier feature, (D,): one level for discrete data, one
    standard deviation for reals."""
    if space.kind == "real":
        return torch.ones(space.dims)
    return 1 / space.spread("scale").flatten().clamp_min(MIN_LEVEL_SCALE)


class EntrywiseDenoiser(nn.Module):
    """Mean and standard deviation of each entry given its own noisy value, each (B, D)."""

    log_frequencies: Tensor

    def __init__(self, space: Space, units: Units) -> None:
        super().__init__()
        self.units = units
        if units.discrete:
            uniform = torch.full((space.dims, units.top + 1), 1 / (units.top + 1))
            self.register_buffer("log_frequencies", uniform.log())

    @torch.no_grad()
    def fit(self, y: Tensor) -> None:
        """Set the frequencies of the levels from training rows (B, D)."""
        if not self.units.discrete:
            return
        codes = (self.units.shift + self.units.scale * y).round().long()
        counts = torch.zeros_like(self.log_frequencies)
        counts.scatter_add_(1, codes.T, torch.ones_like(codes.T, dtype=counts.dtype))
        overall = counts.sum(0) + 1
        counts += PSEUDO_ROWS * overall / overall.sum()
        self.log_frequencies.copy_((counts / counts.sum(1, keepdim=True)).log())

    def forward(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        if not self.units.discrete:
            square = alpha.square() + sigma.square()
            return alpha * z / square, (sigma / square.sqrt()).expand_as(z)
        codes = torch.arange(self.units.top + 1, device=z.device)
        levels = (codes - self.units.shift[:, None]) / self.units.scale[:, None]  # (D, K)
        distance = (z[..., None] - alpha[..., None] * levels) / sigma[..., None]  # (B, D, K)
        posterior = torch.softmax(self.log_frequencies - 0.5 * distance.square(), 2)
        mean = (posterior * levels).sum(2)
        square = (posterior * (levels - mean[..., None]).square()).sum(2)
        return mean, square.clamp_min(MIN_VARIANCE).sqrt()
