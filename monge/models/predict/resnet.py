"""Residual network: classes or numbers from pictures, deeper than a plain network can be

He et al. (2016).
"""

from __future__ import annotations

from torch import nn

from ...core.model import Defaults
from ...core.space import Space
from ...nn.layers.specs import Shape
from ...nn.resnet import ResNet as Network
from ._images import SMALL, FromPictures, Pictures, sides, suited
from ._trunk import Trunk

LEVELS = (16, 32, 64, 128, 256)
"""Channels of the levels that a large picture gets."""
MANY = 24
"""Pixels on a side from which on the first convolution has a stride."""


class ResNet(FromPictures):
    """p(y | W h(x) + b), where h is the mean over positions after blocks h <- a(h + f(h))."""

    class Config(FromPictures.Config):
        tag = "model/predict.resnet"
        net: Network.Config = Network.Config(widths=(16, 32, 64))
        """The network over the picture."""

    config: Config

    def build_trunk(self, inputs: Space) -> Trunk:
        return Pictures(inputs, self.build_net)

    def build_net(self, shape: Shape) -> tuple[nn.Module, int]:
        net: Network = self.config.net.build(shape)
        return net, net.width

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """A level for every halving that leaves 3 pixels on a side; narrow ones where there are
        many pixels, of which a stride takes three in four at once."""
        side = sides(space)
        stride = 2 if side >= MANY else 1
        levels = min(max((side // stride // 3).bit_length(), 1), 4)
        widths = LEVELS[:levels] if side >= SMALL else LEVELS[1 : levels + 1]
        net = Network.Config(widths=widths, stride=stride)
        return suited(cls.Config(net=net), space)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=Network.Config(widths=(8,), blocks=1))
