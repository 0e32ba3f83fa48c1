r"""Paired image translation (pix2pix): U-Net generator against a patch discriminator

$\min_G \max_D E \log D(x, y) + E \log(1 - D(x, G(x, z))) + \lambda E |y - G(x, z)|$ (Isola et al.
2017): the L1 term fits the median of the target, the patch discriminator makes it sharp. The noise
z is dropout, at sampling as in training. In practice the
generator lowers the non-saturating loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import CanSample, Given, HasDiscriminator
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Features
from ...nn.inputs.standardise import Coordinates
from ...nn.layers.dropout import monte_carlo_dropout
from ...nn.layers.init import Init
from ...nn.unet import UNet
from ._base import MONITOR_EVERY, OPTIMAL_VALUES, check_rows
from ._convnets import depth_for, patch_discriminator
from ._image_translator import ImageTranslator, unet_config, unsupported_pair
from ._losses import Game, bound_of, discriminator_terms, estimates, generator_terms, log_ratio


class Pix2Pix(Model, CanSample, HasDiscriminator):
    """y = G(x, z): a conditional distribution of images given images, learned from pairs."""

    events = {"real", "levels"}
    givens = {"real", "levels", "binary"}
    is_predictor = True
    optimal_values = OPTIMAL_VALUES

    class Config(Model.Config):
        tag = "model/adversarial.pix2pix"
        net: UNet.Config = UNet.Config(dropout=0.3, attention=0)
        """Network from source to target; its dropout is the noise z."""
        width: Annotated[int, Range(1)] = 32
        """Channels of the discriminator after its first downsampling."""
        patch: Annotated[int, Range(0)] = 0
        """Downsampling steps of the discriminator; each doubles the patch size;
        0 chooses 1 or 2."""
        weight: Annotated[float, Range(0)] = 100.0
        """Weight of the L1 loss, in units of half the range of levels, or of the
        standard deviation of reals."""
        game: Game = "nonsaturating"
        """Adversarial loss: nonsaturating, minimax, squares (least squares) or hinge."""
        init: Init = "auto"
        """Initial weights of the discriminator: N(0, 0.02^2) as in the paper (auto), by the
        activation (he, xavier, orthogonal), small, or torch's own; the generator has net.init."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name, source = next(iter(space.given.items()))
        channels, *sides = space.shape
        self.shape, self.source = source.shape, Features(source)
        self.coordinates = Coordinates(space)
        self.generator = ImageTranslator(config.net, source.shape[0], channels, tuple(sides))
        depth = config.patch or min(2, depth_for(sides))
        self.discriminator = patch_discriminator(
            source.shape[0] + channels, config.width, depth, sides, config.init
        )

    def loss(self, batch: Batch) -> Losses:
        """Both networks' terms: cross entropy of patches; adversarial loss plus weighted L1."""
        return self.discriminator_loss(batch) | self.generator_loss(batch)

    def updates(self) -> Sequence[Update]:
        critic, own = list(self.discriminator.parameters()), list(self.generator.parameters())
        return [
            Update("discriminator", self.discriminator_loss, critic),
            Update("generator", self.generator_loss, own),
            Update("watch", self.monitor, every=MONITOR_EVERY),
        ]

    def discriminator_loss(self, batch: Batch) -> Losses:
        """Cross entropy of real and fake pairs (x, y), averaged over patches."""
        check_rows(self, batch)
        terms = discriminator_terms(self.config.game, *self.logits(batch))
        return {name: term.mean(1) for name, term in terms.items()}

    def generator_loss(self, batch: Batch) -> Losses:
        """Adversarial loss of the fake pairs plus the weighted L1 distance to the target."""
        x, y = self.sources(batch.given, len(batch)), self.real(batch)
        fake = self.generate(x)
        adversarial = generator_terms(self.config.game, self.discriminate(x, fake)).mean(1)
        return {
            "generator_loss": adversarial,
            "l1": self.config.weight * (y - fake).abs().flatten(1).mean(1),
        }

    def monitor(self, batch: Batch) -> Losses:
        return estimates(self.config.game, *self.logits(batch))

    def estimate_distance(self, batch: Batch) -> Tensor:
        return bound_of(self.monitor(batch))

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.sources(batch.given, len(batch))
        with torch.no_grad():
            fake = self.generate(x)
        return self.discriminate(x, self.real(batch)), self.discriminate(x, fake)  # (B, patches)

    def log_ratio(self, batch: Batch) -> Tensor:
        """The mean over patches of the log ratio of each patch."""
        x = self.sources(batch.given, len(batch))
        y = self.coordinates.to_network(batch.x.to(x.dtype), dequantise=False)
        logits = self.discriminate(x, y.unflatten(1, self.space.shape))
        return log_ratio(self.config.game, logits).mean(1)

    def sources(self, given: Given, n: int) -> Tensor:
        rows = broadcast_conditions(given, self.space, n)[self.name]
        return self.source(rows).unflatten(1, self.shape)  # (n, *source)

    def real(self, batch: Batch) -> Tensor:
        y = self.coordinates.to_network(batch.x.to(self.coordinates.shift.dtype), dequantise=True)
        return y.unflatten(1, self.space.shape)

    def generate(self, x: Tensor) -> Tensor:
        return self.coordinates.bound(self.generator(x))  # (n, *event)

    def discriminate(self, x: Tensor, y: Tensor) -> Tensor:
        return self.discriminator(torch.cat([x, y], 1)).flatten(1)  # (B, patches)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y = G(x, z), where the noise z is the dropout of the generator."""
        with monte_carlo_dropout(self.generator, generator, shared=False):
            y = self.generate(self.sources(given or {}, n)).flatten(1)
        return self.coordinates.to_data(y).unflatten(1, self.space.shape)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return unsupported_pair("pix2pix", space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        train_config = TrainConfig(
            lr=5e-4, betas=(0.5, 0.999), batch_size=32, ema_decay=0.999, eval_every=250, patience=0
        )
        net = unet_config(space, 32).override("dropout=0.3")
        return Defaults(cls.Config(net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=UNet.Config(width=4, multipliers=(1, 2), blocks=1, attention=0, dropout=0.3),
            width=4,
            patch=1,
        )
