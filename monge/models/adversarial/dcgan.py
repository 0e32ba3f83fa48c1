"""Deep convolutional GAN (DCGAN): images of any size

Transposed convolutions generate an image, strided ones discriminate; batch norm everywhere but
at the generator's output and the discriminator's input, ReLU in the generator, leaky ReLU in the
discriminator, tanh at the output, neither pooling nor dense layers (Radford, Metz & Chintala
2016).
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.init import Init
from ._base import AdversarialModel, check_rows
from ._convnets import ConditionMaps, broken_rules, depth_for, downsampler, upsampler
from ._losses import discriminator_terms, generator_terms


class DCGAN(AdversarialModel):
    """x = G(z, given) with z ~ N(0, I), for images. For unbounded real values the generator has no
    tanh; conditions are channels beside the image, numbers and names constant ones."""

    family_priority = 2

    class Config(AdversarialModel.Config):
        tag = "model/adversarial.dcgan"
        width: Annotated[int, Range(1)] = 32
        """Channels at half resolution, in both networks; each halving doubles them."""
        depth: Annotated[int, Range(0, MAX_LAYERS)] = 0
        """Number of downsampling steps; 0 downsamples to about 4 pixels."""
        init: Init = "auto"
        """Initial weights of both networks: N(0, 0.02^2) as in the paper (auto), by the activation
        (he, xavier, orthogonal), small, or torch's own."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        channels, *sides = space.shape
        depth = config.depth or depth_for(sides)
        self.maps, bounded = ConditionMaps(self.conditions, space), space.kind == "levels"
        self.generator: nn.Sequential = upsampler(
            config.latent + self.conditions.width,
            channels,
            sides,
            config.width,
            depth,
            bounded,
            config.init,
        )
        self.discriminator: nn.Sequential = downsampler(
            channels + self.maps.channels, sides, config.width, depth, config.init
        )
        if broken := broken_rules(self.generator, self.discriminator, bounded):
            raise UsageError(f"not a DCGAN: {broken[0]}")

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
        fake = self.generate(self.noise(len(batch)), context)
        logits = self.discriminate(fake, context)  # (B,)
        return {"generator_loss": generator_terms(self.config.game, logits)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x = G(z, given) with z ~ N(0, I), or one of k candidates by the discriminator."""
        k = self.candidates_per_sample(options)
        z = self.noise(n * k, generator)  # (n k, latent)
        if k > 1:
            return self.to_event(self.resample(z, given, n, generator))
        return self.to_event(self.generate(z, self.context(given or {}, n)))

    def generate(self, z: Tensor, context: Tensor) -> Tensor:
        seed = torch.cat([z, context], 1)[:, :, None, None]  # (n, latent + C, 1, 1)
        return self.generator(seed).flatten(1)

    def discriminate(self, y: Tensor, context: Tensor) -> Tensor:
        image = self.maps.beside(y.unflatten(1, self.space.shape), context)
        return self.discriminator(image).flatten()  # (B,)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if not space.is_image or min(space.shape[1:]) < 2:
            return (
                f"dcgan expected images (channels, rows, columns) of at least 2x2 pixels, "
                f"found {space}; use adversarial.gan"
            )
        return super().unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # The held-out distance is noisy: evaluate rarely, without early stopping.
        train_config = TrainConfig(
            lr=2e-4, betas=(0.5, 0.999), batch_size=64, ema_decay=0.999, eval_every=500, patience=0
        )
        return Defaults(cls.Config(), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(latent=4, width=32, penalty=1.0)
