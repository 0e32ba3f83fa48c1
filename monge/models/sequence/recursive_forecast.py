r"""Roll-out: the future of a series step after step, each given what was drawn before it

A law of the next few steps, trained on true pasts, is applied to its own draws until the horizon
is reached (Graves 2013; Salinas et al. 2020). Any network that forecasts can be rolled out.
"""

from __future__ import annotations

from typing import Annotated, Any

from ...core.config import Range
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.forecasters import Recurrence
from ...nn.recurrent import GRU
from ._forecaster import Foresight

SMALL = 1000
"""Below so many training windows a small network does as well."""


class Rollout(Foresight):
    r"""$p(y \mid x) = \prod_k p(y_k \mid x, y_{<k})$ over blocks of `block` steps, one law for all
    of them, that reads the last L values; each block has heavy-tailed margins and a Gaussian
    copula. Trajectories are drawn by feeding back what was drawn, so that the law of the whole
    future has no closed form but its density.
    """

    class Config(Foresight.Config):
        tag = "model/sequence.recursive_forecast"
        block: Annotated[int, Range(1)] = 1
        """Steps drawn at once: the largest number up to this that divides the horizon."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        horizon = space.shape[0]
        steps = next(n for n in range(min(config.block, horizon), 0, -1) if horizon % n == 0)
        super().__init__(config, space, steps)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """A recurrent network, which reads any past, a few steps at a time where the horizon is
        long."""
        small = space.rows < SMALL
        net = Recurrence.Config(net=GRU.Config(width=32 if small else 64))
        config = cls.Config(net=net, block=max(1, space.shape[0] // 12), rank=4 if small else 16)
        return Defaults(config, TrainConfig(lr=3e-3, batch_size=64, grad_clip=1.0, ema_decay=0.99))

    @classmethod
    def smallest_config(cls, space: Space) -> Any:
        return cls.Config(rank=1)
