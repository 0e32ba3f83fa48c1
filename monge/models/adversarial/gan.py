"""Generative adversarial network: a generator against a discriminator, for vectors and pictures

min over G, max over D of V(G, D) = E log D(x) + E log(1 - D(G(z))) (Goodfellow et al. 2014); with
conditions both players are told them (Mirza & Osindero 2014).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from .._generator import Dense
from ._base import Duel


class GAN(Duel, Dense):
    """x = G(z, given) with z ~ N(0, I): a law without a density, at the game's end that of the
    data. Along the way V(G, D) is at most -log 4 + 2 JS(data || G), which D's best attains."""

    class Config(Duel.Config, Dense.Config):
        tag = "model/adversarial.gan"
        discriminator: MLP.Config = MLP.Config(width=256, depth=3, activation="leaky")
        """Network from an event to the logit of its being real."""

    config: Config
    generator: MLP

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        inputs = space.dims + self.conditions.width
        self.discriminator: MLP = config.discriminator.build(inputs, 1)

    def judge(self, y: Tensor, context: Tensor) -> Tensor:
        return self.discriminator(torch.cat([y, context], 1))[:, 0]  # (B,)

    def judge_both(self, real: Tensor, fake: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """In one pass."""
        first, second = self.judge(torch.cat([real, fake]), context.repeat(2, 1)).chunk(2)
        return first, second

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # The held-out distance is noisy: few looks, and no early end by it.
        recipe = TrainConfig(
            lr=5e-4, betas=(0.5, 0.99), batch_size=256, ema_decay=0.999, eval_every=500, patience=0
        )
        if space.dims <= 32:
            net = MLP.Config(width=128, depth=3, activation="relu")
            rival = MLP.Config(width=128, depth=3, activation="leaky")
            # In few dimensions the game circles around its end without the price of slopes.
            config = cls.Config(
                latent=max(space.dims, 2), generator=net, discriminator=rival, penalty=0.1
            )
            return Defaults(config, replace(recipe, lr=1e-3))
        rival = MLP.Config(width=256, depth=3, activation="leaky", dropout=0.3)
        return Defaults(
            cls.Config(discriminator=rival, smooth=0.1), replace(recipe, lr=2e-4, batch_size=64)
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=2,
            generator=MLP.Config(width=16, depth=1, activation="relu"),
            discriminator=MLP.Config(width=16, depth=1, activation="leaky"),
        )
