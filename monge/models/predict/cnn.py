"""Convolutional network: classes or numbers from pictures

Levels of convolutions widen the channels while they halve the sides; what is left is read by one
dense layer (LeCun et al. 1998; strided convolutions instead of pooling: Springenberg et al. 2015).
"""

from __future__ import annotations

from typing import Annotated

from torch import nn

from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults
from ...core.space import Space
from ...nn.layers.activation import Activation
from ...nn.layers.init import initialise
from ...nn.layers.norm import Norm, centres
from ...nn.layers.pool import Halving
from ...nn.layers.specs import (
    Act,
    Conv,
    Dense,
    Drop,
    Flatten,
    Layer,
    Normalise,
    Pool,
    Shape,
    Stack,
)
from ._images import SMALL, FromPictures, Pictures, sides, suited
from ._trunk import Trunk

LARGE = 48
"""Pixels on a side from which on a third level pays."""


class CNN(FromPictures):
    """p(y | W h(x) + b), where h are levels of h <- a(N(K * h)) and a dense layer."""

    family_priority = 2

    class Config(FromPictures.Config):
        tag = "model/predict.cnn"
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """Channels of each level, first to last; each level halves the sides."""
        depth: Annotated[int, Range(1)] = 2
        """Convolutions a level."""
        kernel: Annotated[int, Range(1)] = 3
        """Pixels on a side that a convolution reads."""
        halving: Halving = "stride"
        """How a level halves its maps: its first convolution has stride 2, or it ends in max or
        average pooling."""
        features: Annotated[int, Range(1)] = 128
        """Units of the dense layer."""
        norm: Norm = "batch"
        """Normalisation after each convolution and the dense layer."""
        activation: Activation = "relu"
        """Function after each normalisation."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.3
        """Share of the numbers before and after the dense layer that training hides at random."""

    config: Config

    def build_trunk(self, inputs: Space) -> Trunk:
        return Pictures(inputs, self.build_net)

    def build_net(self, shape: Shape) -> tuple[nn.Module, int]:
        plan = planned(self.config)
        (width,) = plan.shape(shape)
        net = plan.build(shape)
        initialise(net, "he", self.config.activation)
        return net, width

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        why = super().unsupported_reason(space)
        if why is None and space.given and sides(space) < 2:
            return (
                "cnn halves the sides of a picture, and one of them is a single pixel here; "
                "use predict.resnet or predict.mlp"
            )
        return why

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        side = sides(space)
        widths = (32,) if side < SMALL else (32, 64) if side < LARGE else (32, 64, 128)
        return suited(cls.Config(widths=widths), space)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(widths=(8,), depth=1, features=16, dropout=0.1)


def planned(config: CNN.Config) -> Stack:
    """The network before it is built."""
    if not config.widths:
        raise UsageError("widths is empty, so that nothing is convolved; give widths=32,64")
    after: tuple[Layer, ...] = (Normalise(config.norm), Act(config.activation))
    bias, layers = not centres(config.norm), list[Layer]()
    for width in config.widths:
        for number in range(config.depth):
            stride = 2 if config.halving == "stride" and not number else 1
            layers += [Conv(width, config.kernel, stride, bias=bias), *after]
        if config.halving != "stride":
            layers.append(Pool(config.halving))
    norm: Norm = "layer" if config.norm == "instance" else config.norm
    dense = (Dense(config.features, bias=not centres(norm)), Normalise(norm), after[1])
    return Stack((*layers, Flatten(), Drop(config.dropout), *dense, Drop(config.dropout)))
