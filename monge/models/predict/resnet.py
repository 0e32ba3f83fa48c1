"""Residual network: classes or numbers from images

He et al. (2016).
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...nn.layers.specs import Shape, StackSpec
from ...nn.resnet import ResNetFeatures as Network
from ...nn.resnet import resnet_spec
from ._images import SMALL_SIDE, ImagePredictor, ImageTrunk, image_side, with_training_defaults
from ._trunk import Trunk

LEVEL_WIDTHS = (16, 32, 64, 128, 256)
"""Channels of the levels for a large image."""
MIN_STRIDED_SIDE = 24
"""Pixels on a side from which on the first convolution has a stride."""


class ResNetPredictor(ImagePredictor):
    """p(y | W h(x) + b), where h is the mean over positions after blocks h <- a(h + f(h))."""

    class Config(ImagePredictor.Config):
        tag = "model/predict.resnet"
        net: Network.Config = Network.Config(widths=(16, 32, 64))
        """The network over the image."""

    config: Config

    def build_trunk(self, inputs: Space) -> Trunk:
        return ImageTrunk(inputs, self.build_net)

    def loss(self, batch: Batch) -> Losses:
        """-log p(y | x): cross entropy of classes, Gaussian or mixture likelihood of numbers."""
        params = self.params(batch.given, len(batch))  # of p(y | x), W h(x) + b
        return self.weighted_nll(batch, params)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y ~ p(y | x), or its Monte Carlo dropout average with `passes`."""
        noise = self.head.noise(n, generator)  # (n, D, 2)
        params = self.sample_params(n, given, options, generator)
        return self.to_event(self.head.sample(params, noise))  # y ~ p(y | x)

    @classmethod
    def layer_spec(cls, config: Config) -> StackSpec:
        return resnet_spec(config.net)

    def build_net(self, shape: Shape) -> tuple[nn.Module, int]:
        net: Network = self.config.net.build(shape)
        return net, net.width

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """A level for every halving that leaves 3 pixels on a side; narrow ones where there are
        many pixels, of which a stride takes three in four at once."""
        side = image_side(space)
        stride = 2 if side >= MIN_STRIDED_SIDE else 1
        levels = min(max((side // stride // 3).bit_length(), 1), 4)
        widths = LEVEL_WIDTHS[:levels] if side >= SMALL_SIDE else LEVEL_WIDTHS[1 : levels + 1]
        net = Network.Config(widths=widths, stride=stride)
        return with_training_defaults(cls.Config(net=net), space)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=Network.Config(widths=(8,), blocks=1))
