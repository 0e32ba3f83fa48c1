r"""Unpaired image translation (CycleGAN): two maps with a cycle-consistency loss

Two generators $G: A \to B$, $F: B \to A$ against two patch discriminators, with cycle and identity
losses (Zhu et al. 2017):

$\lambda\,(E|F(G(a)) - a| + E|G(F(b)) - b|) + \mu\,(E|G(b) - b| + E|F(a) - a|)$.

Any pair of mutually inverse maps between the two distributions is optimal, so the pairing is
learned only as far as the networks and the identity term prefer simple maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanSample, Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.standardise import Coordinates
from ...nn.layers.init import Init
from ...nn.unet import UNet
from ._base import check_rows
from ._convnets import depth_for, patch_discriminator
from ._image_translator import ImageTranslator, unet_config, unsupported_pair
from ._losses import Game, discriminator_terms, generator_terms


class CycleGAN(Model, CanSample):
    """b = G(a), a map between two unpaired sets of images. Both maps start as the identity, since
    most translations change little."""

    events = {"real", "levels"}
    givens = {"real", "levels"}
    is_predictor = True
    is_unpaired = True

    class Config(Model.Config):
        tag = "model/adversarial.cyclegan"
        net: UNet.Config = UNet.Config(attention=0)
        """Network of each map."""
        width: Annotated[int, Range(1)] = 32
        """Channels of the discriminators after their first downsampling."""
        patch: Annotated[int, Range(0)] = 0
        """Downsampling steps of the discriminators; 0 chooses 1 or 2."""
        cycle: Annotated[float, Range(0)] = 10.0
        """Weight of the cycle-consistency loss."""
        identity: Annotated[float, Range(0)] = 5.0
        """Weight of the identity loss."""
        game: Game = "squares"
        """Adversarial loss: squares (least squares), hinge, nonsaturating or minimax."""
        init: Init = "auto"
        """Initial weights of the discriminators: N(0, 0.02^2) as in the paper (auto), by the
        activation (he, xavier, orthogonal), small, or torch's own; generators have net.init."""

    class SamplingConfig(CanSample.SamplingConfig):
        reverse: bool = False
        """Translate in the other direction: from given targets to sources."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.name, source = next(iter(space.given.items()))
        channels, *sides = space.shape
        self.shape = space.shape
        self.sides = nn.ModuleList([Coordinates(source), Coordinates(space)])  # of A and B

        def translator() -> ImageTranslator:
            return ImageTranslator(config.net, channels, channels, tuple(sides))

        depth = config.patch or min(2, depth_for(sides))
        self.generators = nn.ModuleList([translator(), translator()])  # F to A, G to B
        self.discriminators = nn.ModuleList(
            patch_discriminator(channels, config.width, depth, sides, config.init)
            for _ in range(2)
        )

    def loss(self, batch: Batch) -> Losses:
        """Terms of all networks: discriminators; adversarial, cycle and identity losses."""
        return self.discriminator_loss(batch) | self.generator_loss(batch)

    def updates(self) -> Sequence[Update]:
        return [
            Update(
                "discriminator", self.discriminator_loss, list(self.discriminators.parameters())
            ),
            Update("generator", self.generator_loss, list(self.generators.parameters())),
        ]

    def discriminator_loss(self, batch: Batch) -> Losses:
        """Loss of each side's discriminator at real images and at translations to its side."""
        check_rows(self, batch)
        real = self.real(batch)
        losses: Losses = {}
        for side, name in enumerate("ab"):
            with torch.no_grad():
                fake = self.translate(side, real[1 - side])
            discriminator = self.discriminators[side]
            terms = discriminator_terms(
                self.config.game, discriminator(real[side]), discriminator(fake)
            )
            losses |= {f"{term}_{name}": mean(each) for term, each in terms.items()}
        return losses

    def generator_loss(self, batch: Batch) -> Losses:
        """Adversarial loss, L1 cycle loss |F(G(a)) - a| and L1 identity loss |G(b) - b|, per
        side."""
        real = self.real(batch)
        losses: Losses = {}
        for side, name in enumerate("ab"):
            own, fake = real[1 - side], self.translate(side, real[1 - side])
            back, same = self.translate(1 - side, fake), self.translate(side, real[side])
            adversarial = generator_terms(self.config.game, self.discriminators[side](fake))
            losses |= {
                f"generator_loss_{name}": mean(adversarial),
                f"cycle_{name}": self.config.cycle * mean((back - own).abs()),
                f"identity_{name}": self.config.identity * mean((same - real[side]).abs()),
            }
        return losses

    def real(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rows of A and of B in standardised coordinates, (B, *event) each."""
        rows = broadcast_conditions(batch.given, self.space, len(batch))[self.name].x, batch.x
        first, second = (self.standardise(side, x, True) for side, x in enumerate(rows))
        return first, second

    def standardise(self, side: int, x: Tensor, dequantise: bool) -> Tensor:
        coordinates = self.sides[side]
        assert isinstance(coordinates, Coordinates)
        y = coordinates.to_network(x.to(coordinates.shift.dtype), dequantise)
        return y.unflatten(1, self.shape)

    def translate(self, side: int, y: Tensor) -> Tensor:
        """Images of this side from images (B, *event) of the other."""
        coordinates = self.sides[side]
        assert isinstance(coordinates, Coordinates)
        return coordinates.bound(coordinates.unbound(y) + self.generators[side](y))

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """b = G(a), or a = F(b) with `reverse`: the map is deterministic."""
        side = 0 if isinstance(options, CycleGAN.SamplingConfig) and options.reverse else 1
        x = broadcast_conditions(given or {}, self.space, n)[self.name].x
        y = self.translate(side, self.standardise(1 - side, x, False)).flatten(1)
        coordinates = self.sides[side]
        assert isinstance(coordinates, Coordinates)
        return coordinates.to_data(y).unflatten(1, self.shape)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if found := unsupported_pair("cyclegan", space):
            return found
        (source,) = space.given.values()
        if (source.kind, source.size, source.shape) != (space.kind, space.size, space.shape):
            return (
                f"cyclegan expected images of one form on both sides, found {source} and "
                f"{space}; convert them with +grey or +resize64"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        train_config = TrainConfig(
            lr=3e-4, betas=(0.5, 0.999), batch_size=16, ema_decay=0.999, eval_every=250, patience=0
        )
        return Defaults(cls.Config(net=unet_config(space, 32)), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            net=UNet.Config(width=4, multipliers=(1,), blocks=1, attention=0),
            width=4,
            patch=1,
            cycle=1.0,
            identity=0.1,
        )


def mean(term: Tensor) -> Tensor:
    """Over all but the rows, (B,)."""
    return term.flatten(1).mean(1)
