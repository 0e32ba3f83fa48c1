"""Base of self-supervised encoders: a network from the features of an event to a code.

They model no density, so they have no likelihood and cannot sample; they are evaluated by their
loss on held-out rows and by a linear probe of their codes.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from ...core.abilities import CanEncode
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.errors import UsageError
from ...core.model import Defaults, Model
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Features
from ...nn.layers.linear import Linear
from ...nn.mlp import MLP
from ...nn.resnet import ResNetFeatures
from .._views import corrupt_entries, transform_images


class RepresentationNet(Configured, nn.Module, abc.ABC):
    """A network from the features of an event, and masks of them, to a code."""

    class Config(BaseConfig):
        """Base of the configurations of feature networks."""

        tag = "encoder/"

    @abc.abstractmethod
    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Tensors (B, F) to codes (B, latent)."""


class DenseRepresentationNet(RepresentationNet):
    """An MLP over all features."""

    class Config(RepresentationNet.Config, MLP.Config):
        """A multilayer perceptron."""

        tag = "encoder/dense"

    def __init__(self, config: Config, space: Space, copies: int, latent: int) -> None:
        super().__init__()
        self.net = MLP(config, copies * Features(space).width, latent)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.net(torch.cat(list(features), 1))


class ConvRepresentationNet(RepresentationNet):
    """A residual network over an image, and a linear layer."""

    class Config(RepresentationNet.Config, ResNetFeatures.Config):
        """A residual network."""

        tag = "encoder/convolution"

    def __init__(self, config: Config, space: Space, copies: int, latent: int) -> None:
        super().__init__()
        if not space.is_image:
            raise UsageError(
                f"net=convolution expects images (channels, rows, columns), found {space}; "
                "use net=dense"
            )
        self.shape = space.shape
        self.net = ResNetFeatures(config, (copies * space.shape[0], *space.shape[1:]))
        self.out = Linear(self.net.width, latent)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.out(self.net(torch.cat([f.reshape(-1, *self.shape) for f in features], 1)))


MIN_CONV_SIDE = 16
"""Pixels per side from which images are read by convolutions by default."""


class SelfSupervisedEncoder(Model, CanEncode):
    """h = f(x), a network of the standardised features of x."""

    events = {"real", "binary", "levels", "counts", "columns"}
    supports_missing = True

    class Config(Model.Config):
        latent: Annotated[int, Range(1)] = 64
        """Dimension of the code."""
        net: RepresentationNet.Config = DenseRepresentationNet.Config(width=256)
        """Network from features to the code: dense, or convolution for images."""

    config: Config
    copies: ClassVar[int] = 1
    """How many tensors in the layout of the features the network reads."""

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.latent = Space(kind="real", shape=(config.latent,))
        self.features = Features(space)
        self.trunk: RepresentationNet = config.net.build(space, self.copies, config.latent)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        return self.trunk([self.features(as_batch(batch))])

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        is_large_image = space.is_image and min(space.shape[1:]) >= MIN_CONV_SIDE
        net: RepresentationNet.Config = DenseRepresentationNet.Config(width=256)
        if is_large_image:
            net = ConvRepresentationNet.Config(widths=(16, 32, 64), blocks=1)
        latent = 64 if space.dims > 16 else 16
        return Defaults(
            cls.Config(latent=latent, net=net), TrainConfig(batch_size=256, ema_decay=0.99)
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(latent=4, net=DenseRepresentationNet.Config(width=16, depth=1))


class TwoViewEncoder(SelfSupervisedEncoder):
    """h = f(x), trained by what two augmented views of each row have in common."""

    class Config(SelfSupervisedEncoder.Config):
        rotate: Annotated[float, Range(0, 180)] = 15.0
        """Images: maximum rotation in degrees."""
        zoom: Annotated[float, Range(0)] = 0.25
        """Images: maximum relative change of size."""
        shift: Annotated[float, Range(0, 0.5)] = 0.1
        """Images: maximum shift as a share of the size."""
        noise: Annotated[float, Range(0)] = 0.1
        """Standard deviation of the noise added to the standardised pixels."""
        corrupt: Annotated[float, Range(0, 1)] = 0.3
        """Other rows: share of entries replaced by those of another row."""

    config: Config

    def views(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Features (B, F) of two views of each row."""
        features = self.features(batch)
        return self.augment(features), self.augment(features)

    def augment(self, features: Tensor) -> Tensor:
        """An augmented view of rows with features (B, F)."""
        c = self.config
        if self.space.is_image:
            images = features.reshape(-1, *self.space.shape)
            features = transform_images(images, c.rotate, c.zoom, c.shift).flatten(1)
            return features + c.noise * torch.randn_like(features)
        return corrupt_entries(features, self.features.owner, c.corrupt)
