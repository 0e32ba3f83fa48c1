"""A mixture of Gaussians with known modes, for counting samples per mode."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class GaussianModes:
    """log p(x) of an equal mixture of isotropic Gaussians: p = (1 / K) sum_k N(x; c_k, s^2 I)."""

    centres: Tensor  # (K, D)
    spread: float

    def __call__(self, x: Tensor) -> Tensor:  # (..., D) -> (...)
        count, dims = self.centres.shape
        square = ((x[..., None, :] - self.centres.to(x)) / self.spread).square().sum(-1)
        constant = dims / 2 * math.log(2 * math.pi * self.spread**2) + math.log(count)
        return (-square / 2).logsumexp(-1) - constant
