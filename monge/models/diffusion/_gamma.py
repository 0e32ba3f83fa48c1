r"""A schedule that is learned: $\lambda(t) = \lambda_0 - (\lambda_0 - \lambda_1)\, m(t)$.

$m(t) = \frac{r(t) - r(0)}{r(1) - r(0)}$ with
$r(t) = t + \sum_j v_j\, \varsigma(a_j (t - c_j))$ and $v_j, a_j > 0$ rises from 0 to 1 for every
value of its parameters (Kingma et al. 2021, app. H). So $\bar\alpha = \varsigma(\lambda)$ and
$1 - \bar\alpha = \varsigma(-\lambda)$ with the logistic $\varsigma$.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...prob.schedule import Family, Noising, check_end

HALVINGS = 50
"""Steps of the search for a time: as many as there are bits in a number, nearly."""
STEEP = 10.0
"""The slope at which each bend begins."""


class Gamma(Configured, nn.Module, Noising):
    """The ends of lambda are parameters where they are learned; its bend always is."""

    family: Family = "preserving"

    class Config(BaseConfig):
        tag = "noise/gamma"
        high: Annotated[float, Range(-2, 30)] = 10.0
        """Log-SNR at the data, at first."""
        low: Annotated[float, Range(-30)] = -6.0
        """Log-SNR at the noise, at first."""
        ends: bool = True
        """Learn both ends with the bound; those of reals stay, since their bound has no best."""
        width: Annotated[int, Range(1)] = 16
        """Bends."""

        def __post_init__(self) -> None:
            super().__post_init__()
            check_end(self.low)

    def __init__(self, config: Config, fixed: bool = False) -> None:
        super().__init__()
        ends = torch.tensor([config.high, config.low])
        self.ends = nn.Parameter(ends, requires_grad=config.ends and not fixed)
        self.size = nn.Parameter(torch.full((config.width,), -3.0))
        self.steep = nn.Parameter(torch.full((config.width,), STEEP).expm1().log())
        self.centre = nn.Parameter((torch.arange(config.width) + 0.5) / config.width)

    @property
    def bend(self) -> list[nn.Parameter]:
        """What shapes the way between the ends."""
        return [self.size, self.steep, self.centre]

    def rise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """r(t) and its derivative, of the shape of t."""
        v, a = F.softplus(self.size), F.softplus(self.steep)
        s = torch.sigmoid(a * (t[..., None] - self.centre))
        return t + (v * s).sum(-1), 1 + (v * a * s * (1 - s)).sum(-1)

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """lambda and its derivative."""
        ends, _ = self.rise(torch.stack([t.new_zeros(()), t.new_ones(())]))
        here, slope = self.rise(t)
        high, per = self.ends[0], (self.ends[1] - self.ends[0]) / (ends[1] - ends[0])
        return high + per * (here - ends[0]), per * slope

    def log_snr(self, t: Tensor) -> Tensor:
        return self.curve(t)[0]

    def slope(self, t: Tensor) -> Tensor:
        return self.curve(t)[1]

    @torch.no_grad()
    def time(self, log_snr: Tensor) -> Tensor:
        low, high = torch.zeros_like(log_snr), torch.ones_like(log_snr)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            early = self.log_snr(middle) > log_snr
            low, high = torch.where(early, middle, low), torch.where(early, high, middle)
        return (low + high) / 2
