"""Convolutional network: classes or numbers from images

Levels of convolutions widen the channels while they halve the sides; what is left is read by one
dense layer (LeCun et al. 1998; strided convolutions instead of pooling: Springenberg et al. 2015).
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
from ...nn.layers.activation import LEAKY_SLOPE, Activation
from ...nn.layers.conv import UnsharedConvSpec
from ...nn.layers.init import Init, initialise
from ...nn.layers.norm import Norm, centres_channels
from ...nn.layers.pool import Halving
from ...nn.layers.specs import (
    ActivationSpec,
    ConvSpec,
    DenseSpec,
    DropoutSpec,
    FlattenSpec,
    LayerSpec,
    NoiseSpec,
    NormSpec,
    PoolSpec,
    Shape,
    StackSpec,
)
from ._images import SMALL_SIDE, ImagePredictor, ImageTrunk, image_side, with_training_defaults
from ._trunk import Trunk

LARGE_SIDE = 48
"""Pixels on a side from which on a third level pays."""


class CNN(ImagePredictor):
    """p(y | W h(x) + b), where h are levels of h <- a(N(K * h)) and a dense layer."""

    family_priority = 2

    class Config(ImagePredictor.Config):
        tag = "model/predict.cnn"
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """Channels of each level, first to last; each level halves height and width."""
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Convolutions per level."""
        kernel: Annotated[int, Range(1)] = 3
        """Kernel size of the convolutions."""
        halving: Halving = "stride"
        """How a level halves its maps: its first convolution has stride 2, or it ends in max or
        average pooling."""
        features: Annotated[int, Range(1)] = 128
        """Units of the dense layer."""
        norm: Norm = "batch"
        """Normalisation after each convolution and the dense layer."""
        activation: Activation = "relu"
        """Activation after each normalisation."""
        slope: Annotated[float, Range(0, 1)] = LEAKY_SLOPE
        """Slope of activation=leaky below 0."""
        noise: Annotated[float, Range(0)] = 0.0
        """Standard deviation of Gaussian noise added to activations in training."""
        shared: bool = True
        """Whether a convolution has the same weights everywhere; unshared, each pixel of its
        output has weights of its own."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.3
        """Dropout probability before and after the dense layer."""
        init: Init = "he"
        """Initial weights: by the activation (he, xavier, orthogonal), small, or torch's own."""

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
        return plan_layers(config)

    def build_net(self, shape: Shape) -> tuple[nn.Module, int]:
        plan = plan_layers(self.config)
        (width,) = plan.shape(shape)
        net = plan.build(shape)
        initialise(net, self.config.init, self.config.activation, self.config.slope)
        return net, width

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        why = super().unsupported_reason(space)
        if why is None and space.given and image_side(space) < 2:
            return (
                "predict.cnn halves the sides of an image, and one side is a single pixel here; "
                "use predict.resnet or predict.mlp"
            )
        return why

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        side = image_side(space)
        widths = (32,) if side < SMALL_SIDE else (32, 64) if side < LARGE_SIDE else (32, 64, 128)
        return with_training_defaults(cls.Config(widths=widths), space)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(widths=(8,), depth=1, features=16, dropout=0.1)


def plan_layers(config: CNN.Config) -> StackSpec:
    """The network before it is built."""
    if not config.widths:
        raise UsageError("expected at least one level, found widths empty; give widths=32,64")
    function = ActivationSpec(config.activation, config.slope)
    noise = (NoiseSpec(config.noise),) if config.noise else ()
    after: tuple[LayerSpec, ...] = (NormSpec(config.norm), function, *noise)
    conv = ConvSpec if config.shared else UnsharedConvSpec
    bias, layers = not centres_channels(config.norm), list[LayerSpec]()
    for width in config.widths:
        for number in range(config.depth):
            stride = 2 if config.halving == "stride" and not number else 1
            layers += [conv(width, config.kernel, stride, bias=bias), *after]
        if config.halving != "stride":
            layers.append(PoolSpec(config.halving))
    norm: Norm = "layer" if config.norm == "instance" else config.norm
    dense = (
        DenseSpec(config.features, bias=not centres_channels(norm)),
        NormSpec(norm),
        *after[1:],
    )
    return StackSpec(
        (*layers, FlattenSpec(), DropoutSpec(config.dropout), *dense, DropoutSpec(config.dropout))
    )
