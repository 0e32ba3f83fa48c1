r"""Recursive forecast: block after block, each given the past and the blocks sampled before

A distribution of the next few steps, trained on true pasts, is applied to its own samples until
the horizon is reached (Graves 2013; Salinas et al. 2020), with any forecasting network.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.forecasters import RecurrentForecast
from ...nn.recurrent import GRU
from ._forecaster import ForecastModel, cut, taken

SMALL_DATA_WINDOWS = 1000
"""Training windows below which a small network suffices."""


class RecursiveForecast(ForecastModel):
    r"""$p(y \mid x) = \prod_k p(y_k \mid x, y_{<k})$ over blocks of `block` steps: one network for
    all of them reads the last L values; each block has heavy-tailed margins and a Gaussian copula.
    Samples are fed back, so that the density of the whole future is exact but its margins have no
    closed form.
    """

    class Config(ForecastModel.Config):
        tag = "model/sequence.recursive_forecast"
        block: Annotated[int, Range(1)] = 1
        """Steps sampled at once: the largest number up to this that divides the horizon."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        horizon = space.shape[0]
        steps = next(n for n in range(min(config.block, horizon), 0, -1) if horizon % n == 0)
        super().__init__(config, space, steps)

    def loss(self, batch: Batch) -> Losses:
        """Squared error, margins and copula of one random block, given the true past."""
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
        """y_k ~ p(y_k | x, y_<k), block after block; each sample becomes part of the past."""
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
        """A recurrent network; long horizons are sampled a few steps at a time."""
        small = space.rows < SMALL_DATA_WINDOWS
        net = RecurrentForecast.Config(net=GRU.Config(width=32 if small else 64))
        config = cls.Config(net=net, block=max(1, space.shape[0] // 12), rank=4 if small else 16)
        return Defaults(config, TrainConfig(lr=3e-3, batch_size=64, grad_clip=1.0, ema_decay=0.99))

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config(rank=1)
