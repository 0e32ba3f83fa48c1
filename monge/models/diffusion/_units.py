r"""The units of the data: numbers near one, and the last step from z_0 back to what is observed.

$y = (x - \text{mean}) / \text{scale}$ is what noise is added to. What is left at t = 0 is a normal
law around a mean m with deviation $s = \sigma_0/\alpha_0$:

reals    $\log p(x | z_0) = \log N(y; m, s^2) - \log \text{scale}$;
levels   $P(x | z_0) = \Phi((y + h - m)/s) - \Phi((y - h - m)/s)$ with h half the step between
         levels; the first and the last level take the tails, so that it sums to one.

What a noisy entry tells of itself, by the law of that entry over the training rows.

With shares $\pi_k$ of its levels $y_k$, the posterior
$p_k \propto \pi_k\, N(z; \alpha y_k, \sigma^2)$ has the mean m(z) and the deviation s(z); of
reals, taken as N(0, 1), they are $\alpha z / (\alpha^2 + \sigma^2)$ and
$\sigma / \sqrt{\alpha^2 + \sigma^2}$. A network that predicts the rest,
$\hat x = m(z) + s(z) f$, begins as the law of independent entries, has only to learn how they hang
together, and is silent where an entry is certain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...core.space import Space
from .._ordering import check_codes

LEAST = 0.3
"""Scale below which no whole number is taken, so that a rare level is not blown up."""
STEPS = 8.0
"""Deviations of the noise at t = 0 between two levels, where nothing is learned: certain."""
FINE = 10.0
"""Log-SNR at t = 0 for reals."""


class Units(nn.Module):
    """x (B, *event) to y (B, D) and back."""

    shift: Tensor
    scale: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, self.whole = space, space.kind != "real"
        self.top = (1 if space.kind == "binary" else space.size - 1) if self.whole else 0
        scale = space.spread("scale").flatten()
        scale = scale.clamp_min(LEAST) if self.whole else scale
        self.register_buffer("shift", space.spread("mean").flatten().clone(), persistent=False)
        self.register_buffer("scale", scale.clone(), persistent=False)  # (D,)

    def enter(self, x: Tensor) -> Tensor:  # (B, *event) -> (B, D)
        x = x.reshape(len(x), -1).to(self.scale.dtype)
        check_codes("diffusion", self.space, x)
        return (x - self.shift) / self.scale

    def leave(self, y: Tensor) -> Tensor:  # (B, D) -> (B, *event)
        x = self.shift + self.scale * y
        if self.whole:
            x = x.round().clamp(0, self.top) + 0.0  # which makes -0 a 0
        return x.reshape(len(y), *self.space.shape)

    def within(self, y: Tensor) -> Tensor:
        """y held within the range of the levels; reals as they are."""
        if not self.whole:
            return y
        low, high = -self.shift / self.scale, (self.top - self.shift) / self.scale
        return y.clamp(low, high)

    def log_prob(self, y: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """log p(x | z_0) in the units of the data, (B,), for y and mean (B, D), deviation (B, 1)
        or ()."""
        if not self.whole:
            normal = -0.5 * ((y - mean) / deviation).square() - deviation.log() - self.scale.log()
            return (normal - 0.5 * math.log(2 * math.pi)).sum(1)
        half, x = 0.5 / self.scale, (self.shift + self.scale * y).round()
        below = torch.where(x <= 0, -torch.inf, (y - half - mean) / deviation)
        above = torch.where(x >= self.top, torch.inf, (y + half - mean) / deviation)
        return log_between(below, above).sum(1)


def log_between(a: Tensor, b: Tensor) -> Tensor:
    """log(Phi(b) - Phi(a)) for a < b, also far out in either tail."""
    turned = a > 0
    low, high = torch.where(turned, -b, a), torch.where(turned, -a, b)
    upper, lower = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    # A difference below the least number is as good as none, and its slope stays finite.
    gap = (lower - upper).clamp(max=-torch.finfo(a.dtype).eps)
    return upper + torch.log(-torch.expm1(gap))


def finest(space: Space) -> float:
    """The log-SNR at t = 0 that tells neighbouring levels apart; a customary one for reals."""
    if space.kind == "real":
        return FINE
    scale = space.spread("scale").clamp_min(LEAST).max().item()
    return round(2 * math.log(STEPS * scale), 1)


def coarseness(space: Space) -> Tensor:
    """Half the period of the slowest wave worth telling a network of, (D,): one level for whole
    numbers, a deviation for reals."""
    if space.kind == "real":
        return torch.ones(space.dims)
    return 1 / space.spread("scale").flatten().clamp_min(LEAST)


LEVELS = 64
"""Levels up to which it pays to go through all of them."""
PSEUDO = 2.0
"""Rows that the law of all entries together counts for in that of one."""


TINY = 1e-12
"""Least variance, so that the root of none has a slope."""


class Alone(nn.Module):
    """(mean, deviation) of each entry given its noisy self, each (B, D)."""

    log_shares: Tensor

    def __init__(self, space: Space, units: Units) -> None:
        super().__init__()
        self.units = units
        if units.whole:
            even = torch.full((space.dims, units.top + 1), 1 / (units.top + 1))
            self.register_buffer("log_shares", even.log())

    @torch.no_grad()
    def fit(self, y: Tensor) -> None:
        """Count the levels of training rows (B, D)."""
        if not self.units.whole:
            return
        codes = (self.units.shift + self.units.scale * y).round().long()
        counts = torch.zeros_like(self.log_shares)
        counts.scatter_add_(1, codes.T, torch.ones_like(codes.T, dtype=counts.dtype))
        every = counts.sum(0) + 1
        counts += PSEUDO * every / every.sum()
        self.log_shares.copy_((counts / counts.sum(1, keepdim=True)).log())

    def forward(self, z: Tensor, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        if not self.units.whole:
            square = alpha.square() + sigma.square()
            return alpha * z / square, (sigma / square.sqrt()).expand_as(z)
        codes = torch.arange(self.units.top + 1, device=z.device)
        levels = (codes - self.units.shift[:, None]) / self.units.scale[:, None]  # (D, K)
        away = (z[..., None] - alpha[..., None] * levels) / sigma[..., None]  # (B, D, K)
        share = torch.softmax(self.log_shares - 0.5 * away.square(), 2)
        mean = (share * levels).sum(2)
        square = (share * (levels - mean[..., None]).square()).sum(2)
        return mean, square.clamp_min(TINY).sqrt()
