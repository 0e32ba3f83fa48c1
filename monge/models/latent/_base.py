"""What laws with Gaussian codes share: codes and their rates, checks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.error import DataError, WordError
from ...core.space import Space
from ...prob.heads import Head
from ...prob.laws import Gaussians

WIDEST = 10.0
"""|log sigma| of a law of codes stays below this, so that no datum, however odd, overflows."""


@dataclass(frozen=True)
class Code:
    """Codes drawn from q(z | x), with what they cost."""

    z: Tensor  # (S, B, latent)
    ratios: Tensor  # (S, B, U): terms of log q(z | x) - log p(z), one for each unit or one in all
    rates: Tensor | None  # (S or 1, B, U): the same in the mean, with less noise or none

    def terms(self, drawn: bool = False) -> Tensor:
        """What each unit adds to the rate, with as little noise as can be, (*, B, U)."""
        return self.ratios if drawn or self.rates is None else self.rates


def bounded(raw: Tensor) -> Tensor:
    """A log-scale within -WIDEST..WIDEST."""
    return WIDEST * torch.tanh(raw / WIDEST)


def rates_of(mean: Tensor, log_scale: Tensor) -> Tensor:
    """KL(N(mean, scale^2) || N(0, 1)) of each unit."""
    return 0.5 * (mean.square() + (2 * log_scale).exp() - 1) - log_scale


def at_floor(head: Head, params: Tensor) -> int:
    """How many entries have Gaussians whose scales rest on their floor."""
    count = 0
    for law, own in zip(head.each(), head.own(params), strict=True):
        if isinstance(law, Gaussians):
            above = law.split(own)[2].log() - law.floor[:, None]  # (B, d, K)
            count += int((above.mean(0).amin(-1) < 0.1).sum())
    return count


def check_width(latent: int, features: int, space: Space) -> None:
    most = max(space.dims, features)
    if latent > most:
        raise WordError(f"latent={latent} is wider than the data, whose rows have {most} entries; "
                        f"choose latent={most} at most")


def check_shape(z: Tensor, latent: Space) -> None:
    """Raise unless z holds a code in each row."""
    if z.shape[1:] != latent.shape:
        found = "x".join(map(str, z.shape[1:])) or "none"
        raise DataError(f"a code here has {latent.dims} units, not {found}; give rows of "
                        f"{latent.dims} numbers")
