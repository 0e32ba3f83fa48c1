r"""Masked autoencoder for density estimation (MADE): all conditionals in one pass

Masks keep each conditional independent of its own entry and of those that follow it (Germain,
Gregor, Murray and Larochelle 2015). Members (an order and an assignment of degrees each) share the
weights. Sampling sorts hidden units by the entries they depend on and computes each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.masked_mlp import EntryStepper, MaskedMLP
from ...nn.inputs.features import Features
from ._base import AutoregressiveModel
from ._orders import Orders


class MADE(AutoregressiveModel):
    r"""$p(x \mid c) = \frac1K \sum_k \prod_i p(x_i \mid x_{<i}, c)$ with Bernoulli or categorical
    conditionals, or mixtures of Gaussians or discretised logistics, by the kind of the entry.

    A training step takes one random member; the mean of the members' losses is an upper bound of
    the mixture's loss. Completion is exact if the observed entries come first in the order.
    """

    family_priority = 2

    class Config(AutoregressiveModel.Config, Orders, MaskedMLP.Config):
        tag = "model/autoregressive.made"
        masks: Annotated[int, Range(1, MAX_LAYERS)] = 1
        """Assignments of degrees to the hidden units per order; all share the weights."""
        number_steps: Annotated[int, Range(0, MAX_LAYERS)] = 0
        """Tables: smooth steps over the range of a number that the network reads beside it."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        places = config.places(space)  # (orders, D)
        super().__init__(config, space, places.repeat_interleave(config.masks, 0))
        # Clamped, or one rare sample would push all entries after it out of the data's range.
        self.features = Features(space, held=True, steps=config.number_steps)
        self.net = MaskedMLP(
            config,
            self.features.owner,
            self.head.owner,
            places,
            self.conditions.width,
            config.masks,
        )
        self.init_output_bias()

    @torch.no_grad()
    def init_output_bias(self) -> None:
        self.net.out.bias.copy_(self.head.initial_params())

    def loss(self, batch: Batch) -> Losses:
        """-sum_i log p(x_i | x_<i) with the order and masks of one random member."""
        self.check_no_missing(batch)
        member = self.random_member()
        params = self.net(self.features(batch), self.context(batch), member)  # (B, P)
        return {"nll": -self.head.log_prob(params, self.flat(batch.x)).sum(1)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_i ~ p(x_i | x_<i, c), one entry after the other."""
        batch = self.unobserved_rows(n, given)
        with torch.inference_mode():
            for rows in self.row_groups(batch, options, generator):
                for place in range(self.space.dims):
                    params = rows.steps.parameters(place)  # (m, P_i)
                    rows.steps.feed(place, rows.sample_entry(place, params))
                batch.x[rows.index] = rows.x.T
        return self.to_event(batch.x)

    def outputs(self, batch: Batch, member: int) -> Tensor:
        return self.net(self.features(batch), self.context(batch), member)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], EntryStepper]:
        return self.net.stepper(member, cached)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Few rows: a narrow network, strong dropout, and a mixture of four orders, whose errors
        differ. Fine levels with few rows: a mixture of logistics, which uses their order. Tables:
        steps beside numbers, without which few units see what follows from a number alone."""
        few, fewer = space.rows < 2000, space.rows < 1000
        ordered = space.kind == "levels" and space.size > 8 and space.rows < 20_000
        config = cls.Config(
            width=128 if fewer else 512,
            components=3 if few else 5,
            orders=4 if few else 1,
            dropout=0.5 if fewer else 0.3 if space.rows < 50_000 else 0.1,
            levels="logistic" if ordered else "auto",
            number_steps=12 if space.kind == "columns" and not few else 0,
        )
        batch = 128 if space.rows < 50_000 else 256
        train_config = TrainConfig(
            optimiser="adamw", weight_decay=0.01, ema_decay=0.998, batch_size=batch
        )
        return Defaults(config, train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(width=16, depth=1, components=2)
