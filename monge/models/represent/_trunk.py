"""The networks that read an event: layers over its features, or convolutions over a picture."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured
from ...core.error import WordError
from ...core.space import Space
from ...nn.embed import Features
from ...nn.mlp import MLP
from ...nn.resnet import ResNet


class Trunk(Configured, nn.Module, abc.ABC):
    """A network from the features of an event, and what stands beside each, to a code."""

    class Config(BaseConfig):
        """Of any such network."""

        tag = "encoder/"

    @abc.abstractmethod
    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Each (B, F), to (B, latent)."""


class Dense(Trunk):
    """Layers over all features side by side."""

    class Config(Trunk.Config, MLP.Config):
        """A multilayer perceptron."""

        tag = "encoder/dense"

    def __init__(self, config: Config, space: Space, copies: int, latent: int) -> None:
        super().__init__()
        self.net = MLP(config, copies * Features(space).width, latent)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.net(torch.cat(list(features), 1))


class Convolution(Trunk):
    """A residual network over a picture, and a linear map of what it finds."""

    class Config(Trunk.Config, ResNet.Config):
        """A residual network."""

        tag = "encoder/convolution"

    def __init__(self, config: Config, space: Space, copies: int, latent: int) -> None:
        super().__init__()
        if not space.is_picture:
            raise WordError(f"net=convolution reads pictures, and the event holds {space}; take "
                            "net=dense")
        self.shape = space.shape
        self.net = ResNet(config, (copies * space.shape[0], *space.shape[1:]))
        self.out = nn.Linear(self.net.width, latent)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.out(self.net(torch.cat([f.reshape(-1, *self.shape) for f in features], 1)))
