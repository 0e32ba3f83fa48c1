"""What encoders share: a network from the features of an event to a code.

No law is learned, so nothing is scored in nats of the data and nothing is drawn; such a model is
judged by its own loss on held-out rows, and by what a linear map reads from its codes.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...core.abilities import CanEncode
from ...core.batch import Batch, as_batch
from ...core.config import Range
from ...core.model import Model, Suit
from ...core.recipe import Recipe
from ...core.space import Space
from ...nn.embed import Features
from ._trunk import Convolution, Dense, Trunk

SIDE = 16
"""Pictures of at least this side are read by convolutions where nobody says."""


class Encoder(Model, CanEncode):
    """h = f(x), a network of the standardised features of x."""

    events = {"real", "binary", "levels", "counts", "columns"}
    missing = True

    class Config(Model.Config):
        latent: Annotated[int, Range(1)] = 64
        """Dimension of the code."""
        net: Trunk.Config = Dense.Config(width=256)
        """Network from features to the code: dense, or convolution for pictures."""

    config: Config
    copies: ClassVar[int] = 1
    """How many tensors in the layout of the features the network reads."""

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.latent = Space(kind="real", shape=(config.latent,))
        self.features = Features(space)
        self.trunk: Trunk = config.net.build(space, self.copies, config.latent)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        return self.trunk([self.features(as_batch(batch))])

    @classmethod
    def suit(cls, space: Space) -> Suit:
        picture = space.is_picture and min(space.shape[1:]) >= SIDE
        net: Trunk.Config = Dense.Config(width=256)
        if picture:
            net = Convolution.Config(widths=(16, 32, 64), blocks=1)
        latent = 64 if space.dims > 16 else 16
        return Suit(cls.Config(latent=latent, net=net), Recipe(batch=256, average=0.99))

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(latent=4, net=Dense.Config(width=16, depth=1))
