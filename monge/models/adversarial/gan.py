"""Generative adversarial network (GAN): generator against a discriminator, both MLPs

min over G, max over D of V(G, D) = E log D(x) + E log(1 - D(G(z))) (Goodfellow et al. 2014); with
conditions both networks read them (Mirza & Osindero 2014).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from .._generator import CHOSEN_KINDS, MLPGeneratorModel, default_share_weight
from ._base import AdversarialModel, check_rows
from ._losses import discriminator_terms, generator_terms


class GAN(AdversarialModel, MLPGeneratorModel):
    """x = G(z, given) with z ~ N(0, I): a distribution without a density. V(G, D) is at most
    -log 4 + 2 JS(data || G), with equality for the optimal D."""

    events = {"real", "levels", "binary", "label", "counts", "columns"}

    class Config(AdversarialModel.Config, MLPGeneratorModel.Config):
        tag = "model/adversarial.gan"
        discriminator: MLP.Config = MLP.Config(width=256, depth=3, activation="leaky")
        """Network from an event to the logit that it is real."""

    config: Config
    generator: MLP

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        inputs = self.coordinates.width + self.conditions.width
        self.discriminator: MLP = config.discriminator.build(inputs, 1)

    def loss(self, batch: Batch) -> Losses:
        """The discriminator minimises the cross entropy of real and fake rows, the generator its
        own loss at fake rows."""
        return self.discriminator_loss(batch) | self.generator_loss(batch)

    def discriminator_loss(self, batch: Batch) -> Losses:
        """-(log D(x) + log(1 - D(G(z)))) / 2, or the loss of another `game`, with the R1 penalty
        if its weight is positive."""
        check_rows(self, batch)
        real, fake = self.logits(batch)
        terms = discriminator_terms(self.config.game, real, fake, self.config.label_smoothing)
        return {**terms, "penalty": self.r1_penalty(batch)} if self.config.penalty else terms

    def generator_loss(self, batch: Batch) -> Losses:
        """-log D(G(z)) / 2, or the loss of another `game`."""
        context = self.context(batch.given, len(batch))
        z = self.noise(len(batch))
        logits = self.discriminate(self.generate(z, context), context)  # (B,)
        terms = {"generator_loss": generator_terms(self.config.game, logits)}
        return terms | self.share_losses(z, context)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x = G(z, given) with z ~ N(0, I), or one of k candidates by the discriminator."""
        return self.sample_event(self.sample_points(n, given, options, generator), generator)

    def discriminate(self, y: Tensor, context: Tensor) -> Tensor:
        return self.discriminator(torch.cat([y, context], 1))[:, 0]  # (B,)

    def discriminate_both(
        self, real: Tensor, fake: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """In one pass."""
        first, second = self.discriminate(torch.cat([real, fake]), context.repeat(2, 1)).chunk(2)
        return first, second

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # The held-out distance is noisy: evaluate rarely, without early stopping.
        train_config = TrainConfig(
            lr=5e-4, betas=(0.5, 0.99), batch_size=256, ema_decay=0.999, eval_every=500, patience=0
        )
        if space.kind in CHOSEN_KINDS:
            net = MLP.Config(width=256, depth=3, residual=True)
            config = cls.Config(
                generator=net, penalty=1.0, share_weight=default_share_weight(space)
            )
            return Defaults(config, train_config)
        if space.dims <= 32:
            net = MLP.Config(width=128, depth=3, activation="relu")
            rival = MLP.Config(width=128, depth=3, activation="leaky")
            # In few dimensions training oscillates around the optimum without the R1 penalty.
            config = cls.Config(
                latent=max(space.dims, 2), generator=net, discriminator=rival, penalty=0.1
            )
            return Defaults(config, replace(train_config, lr=1e-3))
        # With dropout and smooth labels instead of the penalty all samples were alike: their
        # energy distance to held-out digits was 2.8 after a minute, and is 0.006 so.
        net = replace(cls.Config().generator, residual=True)
        rival = MLP.Config(width=256, depth=3, activation="leaky", residual=True)
        config = cls.Config(generator=net, discriminator=rival, penalty=1.0)
        return Defaults(config, replace(train_config, lr=1e-3, batch_size=64))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=2,
            generator=MLP.Config(width=16, depth=1, activation="relu"),
            discriminator=MLP.Config(width=16, depth=1, activation="leaky"),
        )
