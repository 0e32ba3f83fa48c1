"""Deep convolutional GAN: pictures of any size from noise

Transposed convolutions grow a picture from a code, strided ones judge it; batch norm everywhere
but at the generator's output and the discriminator's input, relu here and leaky relu there, tanh
at the end, neither pooling nor dense layers (Radford, Metz & Chintala 2016).
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import Duel
from ._convnets import breaches, depth_for, grower, maps, shrinker


class DCGAN(Duel):
    """x = G(z, given) with z ~ N(0, I): the law of `gan`, for pictures. Real values have no ends,
    so that their generator has no tanh; conditions are constant maps beside the picture."""

    family_priority = 2

    class Config(Duel.Config):
        tag = "model/adversarial.dcgan"
        width: Annotated[int, Range(1)] = 32
        """Channels at half resolution, in both players; each halving doubles them."""
        depth: Annotated[int, Range(0)] = 0
        """Halvings between the picture and its lowest map; 0 halves down to about 4 pixels."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        channels, *sides = space.shape
        self.sides, depth = tuple(sides), config.depth or depth_for(sides)
        told, bounded = self.conditions.width, space.kind == "levels"
        self.generator: nn.Sequential = grower(
            config.latent + told, channels, sides, config.width, depth, bounded
        )
        self.discriminator: nn.Sequential = shrinker(channels + told, sides, config.width, depth)
        if broken := breaches(self.generator, self.discriminator, bounded):
            raise UsageError(f"a rule of dcgan is broken: {broken[0]}")

    def generate(self, z: Tensor, context: Tensor) -> Tensor:
        seed = torch.cat([z, context], 1)[:, :, None, None]  # (n, latent + C, 1, 1)
        return self.generator(seed).flatten(1)

    def judge(self, y: Tensor, context: Tensor) -> Tensor:
        picture = y.unflatten(1, self.space.shape)
        if context.shape[1]:
            picture = torch.cat([picture, maps(context, self.sides)], 1)
        return self.discriminator(picture).flatten()  # (B,)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if not space.is_picture or min(space.shape[1:]) < 2:
            return (
                f"dcgan makes pictures (channels, rows, columns) of 2x2 pixels and more, of "
                f"any sides, got {space}; use adversarial.gan"
            )
        return super().unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # The held-out distance is noisy: few looks, and no early end by it.
        recipe = TrainConfig(
            lr=2e-4, betas=(0.5, 0.999), batch_size=64, ema_decay=0.999, eval_every=500, patience=0
        )
        return Defaults(cls.Config(), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(latent=4, width=32, penalty=1.0)
