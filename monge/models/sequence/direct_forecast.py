r"""Direct forecast: the joint distribution of the whole horizon given the past, in one step

A network, by default the ridge regression NLinear (Zeng et al. 2023), gives the mean of all steps
and channels; their errors have a joint distribution, so that sampled trajectories move like the
series and all intervals are consistent with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from ...core.abilities import Given, HasMarginals, HasMean, HasMode
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.marginals import Marginals
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._forecaster import PAST, ForecastModel, cut, taken


class DirectForecast(ForecastModel, HasMarginals, HasMean, HasMode):
    r"""$y = \mu(x) + s(x) \odot r$ for the future y (H, C) given the past x (L, C), with
    $p(r) = c(F_1(r_1), ..., F_D(r_D)) \prod_i f_i(r_i)$ over its D = H C numbers: margins f with
    heavy tails and a Gaussian copula c of low rank.

    The mean is fitted by least squares, margins and scales by the marginal likelihood, and the
    copula by their normal scores (inference functions for margins; Joe & Xu 1996), so that
    intervals do not depend on the copula; `fit=likelihood` trains all parts by the joint
    likelihood.
    """

    family_priority = 2

    class Config(ForecastModel.Config):
        tag = "model/sequence.direct_forecast"

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, space.shape[0])

    def read(self, given: Given) -> tuple[Tensor, Tensor]:
        """The mean (n, H, C) and the log-scale of each channel (n, 1, C), standardised."""
        n = len(given[PAST]) if PAST in given else 1
        ready = broadcast_conditions(given, self.space, n)
        past = self.frame.past(self.name, ready)
        centre = self.net(past) + self.beside(ready, n, self.frame.horizon)
        return centre, self.unsteadiness(past)[:, None]

    @torch.no_grad()
    def mean(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        return self.frame.outside(self.read(given)[0])

    def mode(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        return self.mean(given, options)

    @torch.no_grad()
    def marginals(self, given: Given, options: BaseConfig | None = None) -> Marginals:
        return ForecastMarginals(self, *self.read(given))

    def loss(self, batch: Batch) -> Losses:
        """Squared error of the mean, and negative log-likelihoods of the margins and the copula of
        its errors."""
        past, y, beside = self.laid(batch)
        first = self.random_block(y)  # (B, 1)
        window = taken(torch.cat([past, y], 1), first, self.frame.lookback)
        mean = self.net(window) + taken(beside, first, self.steps)
        gap, spread = taken(y, first, self.steps) - mean, self.unsteadiness(window)[:, None]
        if self.config.fit == "likelihood":
            return {"nll": -self.blocks * self.density(gap, spread)}
        alone, z = self.alone(gap.detach() * self.excess, spread)
        return {
            "squared_error": gap.square().mean((1, 2)),
            "margins": -self.blocks * alone,
            "dependence": -self.blocks * self.dependence.log_density(z.detach()),
        }

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y = mu(x) + s(x) r with r ~ p(r): copula samples z mapped through the margins."""
        ready = broadcast_conditions(given or {}, self.space, n)
        beside, full = self.beside(ready, n, self.frame.horizon), self.frame.past(self.name, ready)
        for start in range(0, self.frame.horizon, self.steps):
            window = full[:, -self.frame.lookback :]
            centre = self.net(window) + cut(beside, start, self.steps)
            r = self.margins.inverse(self.dependence.sample(n, centre, generator))
            spread = self.unsteadiness(window)[:, None].exp()
            full = torch.cat([full, centre + spread * r.reshape(centre.shape)], 1)
        return self.frame.outside(full[:, -self.frame.horizon :])

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """A linear mean, which is hard to beat on short and long series; training fits the
        distribution of its errors."""
        rank = 16 if space.rows >= 1000 else 4
        train_config = TrainConfig(
            lr=3e-3, batch_size=128, grad_clip=10.0, ema_decay=0.99, warmup=20, patience=6
        )
        return Defaults(cls.Config(rank=rank), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config(rank=1)


class ForecastMarginals(Marginals):
    """The marginal distribution of each step and channel."""

    def __init__(self, model: DirectForecast, centre: Tensor, spread: Tensor) -> None:
        self.space, self.model = model.space, model
        self.centre, self.spread = centre, spread.exp()

    @property
    def probabilities(self) -> Sequence[Tensor]:
        """Empty: reals have none."""
        return [self.centre.new_empty(len(self.centre), 0)] * self.space.dims

    def cumulative(self, t: Tensor) -> Tensor:
        y = self.model.frame.inside(t.reshape(-1, *self.space.shape))
        z, _ = self.model.margins(((y - self.centre) / self.spread).flatten(1))
        return torch.special.ndtr(z)

    def quantile(self, level: float) -> Tensor:
        """In closed form."""
        z = torch.special.ndtri(self.centre.new_tensor(level)).expand(1, self.space.dims)
        r = self.model.margins.inverse(z).reshape(1, *self.centre.shape[1:])
        return self.model.frame.outside(self.centre + self.spread * r).flatten(1)
