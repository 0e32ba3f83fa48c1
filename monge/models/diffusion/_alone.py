r"""What a noisy entry tells of itself, by the law of that entry over the training rows.

With shares $\pi_k$ of its levels $y_k$, the posterior
$p_k \propto \pi_k\, N(z; \alpha y_k, \sigma^2)$ has the mean m(z) and the deviation s(z); of
reals, taken as N(0, 1), they are $\alpha z / (\alpha^2 + \sigma^2)$ and
$\sigma / \sqrt{\alpha^2 + \sigma^2}$. A network that predicts the rest,
$\hat x = m(z) + s(z) f$, begins as the law of independent entries, has only to learn how they hang
together, and is silent where an entry is certain.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.space import Space
from ._units import Units

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
