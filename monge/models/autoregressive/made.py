r"""Masked autoencoder: exact log-likelihood in one pass, for any kind of entries

One network whose masks leave each conditional blind to its own entry and to those that follow
(Germain, Gregor, Murray and Larochelle 2015). Members (an order and an assignment of degrees each)
share its weights. Drawing sorts hidden units by the entries they need and computes each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.masked_mlp import Masked, Stepping
from ...nn.inputs.features import Features
from ._base import Ordered
from ._orders import Orders


class MADE(Ordered):
    r"""p(x | c) = (1/K) sum_k prod_i p(x_i | x_<i, c), the conditionals being Bernoulli,
    categorical, or mixtures of Gaussians or discretised logistics, as the entry is.

    A step of training takes one member, drawn at random, whose mean over members bounds the
    mixture's loss from above. A completion is exact, and so given only where what is seen comes
    first in the order.
    """

    family_priority = 2

    class Config(Ordered.Config, Orders, Masked.Config):
        tag = "model/autoregressive.made"
        masks: Annotated[int, Range(1)] = 1
        """How many assignments of degrees to the hidden units share the weights of each order."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        places = config.places(space)  # (orders, D)
        super().__init__(config, space, places.repeat_interleave(config.masks, 0))
        # Or one rare draw would throw all that follow it out of the data.
        self.features = Features(space, held=True)
        self.net = Masked(
            config,
            self.features.owner,
            self.head.owner,
            places,
            self.conditions.width,
            config.masks,
        )
        self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        self.net.out.bias.copy_(self.head.start())

    def outputs(self, batch: Batch, member: int) -> Tensor:
        return self.net(self.features(batch), self.context(batch), member)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], Stepping]:
        return self.net.stepper(member, cached)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Few rows: a narrow network, much dropout, and the mean over four orders, each of which
        errs elsewhere. Fine levels with few rows: a mixture, which knows that they are ordered."""
        few, fewer = space.rows < 2000, space.rows < 1000
        ordered = space.kind == "levels" and space.size > 8 and space.rows < 20_000
        config = cls.Config(
            width=128 if fewer else 512,
            components=3 if few else 5,
            orders=4 if few else 1,
            dropout=0.5 if fewer else 0.3 if space.rows < 50_000 else 0.1,
            levels="logistic" if ordered else "auto",
        )
        batch = 128 if space.rows < 50_000 else 256
        recipe = TrainConfig(
            optimiser="adamw", weight_decay=0.01, ema_decay=0.998, batch_size=batch
        )
        return Defaults(config, recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(width=16, depth=1, components=2)
