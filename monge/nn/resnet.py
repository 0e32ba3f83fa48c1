"""Residual networks: h_l = h_{l-1} + f_l(h_{l-1}), whose derivative is I + df/dh.

The identity keeps the gradients of deep networks correlated along the input, while those of plain
networks become white noise (Balduzzi et al. 2017). If f changes the shape, the shortcut is a
projection (He et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from ..core.config import MAX_LAYERS, Configured, Range
from ..core.config import Config as BaseConfig
from ..core.errors import UsageError
from .layers.activation import Activation
from .layers.init import Init, initialise
from .layers.norm import Norm, centres_channels
from .layers.specs import (
    ActivationSpec,
    ConvSpec,
    DropoutSpec,
    GlobalPoolSpec,
    LayerSpec,
    NormSpec,
    Shape,
    Span,
    StackSpec,
    format_shape,
)

IDENTITY_SPEC = StackSpec(())


class ResidualBlock(nn.Module):
    """P x + f(x); without a projection, P is the identity."""

    def __init__(self, body: nn.Module, projection: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.projection = body, projection or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x) + self.body(x)


@dataclass(frozen=True)
class ResidualSpec(LayerSpec):
    """The spec of a residual layer."""

    body: LayerSpec
    projection: LayerSpec = IDENTITY_SPEC

    def shape(self, inputs: Shape) -> Shape:
        inner, around = self.body.shape(inputs), self.projection.shape(inputs)
        if inner != around:
            raise UsageError(
                f"a residual layer cannot add shape {format_shape(inner)} to shape "
                f"{format_shape(around)}; give it a projection to the shape of its body"
            )
        return inner

    def parameters(self, inputs: Shape) -> int:
        return self.body.parameters(inputs) + self.projection.parameters(inputs)

    def build(self, inputs: Shape) -> nn.Module:
        return ResidualBlock(self.body.build(inputs), self.projection.build(inputs))

    def reads(self, span: Span) -> Span | None:
        inner, around = self.body.reads(span), self.projection.reads(span)
        if inner is None or around is None:
            return None
        return min(inner[0], around[0]), max(inner[1], around[1])

    @property
    def period(self) -> int:
        return self.body.period * self.projection.period


class ResNetFeatures(Configured, nn.Module):
    """Images (B, C, H, W) to features (B, widths[-1]): a convolution, levels of residual blocks
    of two convolutions, each level but the first at half the resolution, and the mean over all
    positions."""

    class Config(BaseConfig):
        tag = "net/resnet"
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64, 128)
        """Channels of each level, first to last."""
        blocks: Annotated[int, Range(1, MAX_LAYERS)] = 2
        """Residual blocks per level."""
        stride: Annotated[int, Range(1)] = 1
        """Stride of the first convolution; 2 for large images."""
        norm: Norm = "batch"
        """Normalisation after each convolution."""
        activation: Activation = "relu"
        """Function after each normalisation."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of the channels inside a block dropped in training."""
        init: Init = "he"
        """Initial weights: by the activation (he, xavier, orthogonal), small, or torch's own."""

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        plan = resnet_spec(config)
        (self.width,) = plan.shape(shape)
        self.layers = plan.build(shape)
        initialise(self, config.init, config.activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def resnet_spec(config: ResNetFeatures.Config) -> StackSpec:
    """The spec of the network."""
    if not config.widths:
        raise UsageError("expected at least one width, found none; give widths=32,64,128")
    before, layers = config.widths[0], list(conv_norm_act(config, config.widths[0], config.stride))
    for level, width in enumerate(config.widths):
        for number in range(config.blocks):
            stride = 2 if level and not number else 1
            layers += [
                residual_block(config, before, width, stride),
                ActivationSpec(config.activation),
            ]
            before = width
    return StackSpec((*layers, GlobalPoolSpec()))


def conv_norm_act(
    config: ResNetFeatures.Config, width: int, stride: int = 1
) -> tuple[LayerSpec, ...]:
    """A convolution followed by a norm and an activation."""
    conv = ConvSpec(width, stride=stride, bias=not centres_channels(config.norm))
    return conv, NormSpec(config.norm), ActivationSpec(config.activation)


def residual_block(
    config: ResNetFeatures.Config, before: int, width: int, stride: int
) -> ResidualSpec:
    first, second = conv_norm_act(config, width, stride), conv_norm_act(config, width)[:2]
    body = StackSpec((*first, DropoutSpec(config.dropout, whole=True), *second))
    if before == width and stride == 1:
        return ResidualSpec(body)
    conv = ConvSpec(width, kernel=1, stride=stride, bias=not centres_channels(config.norm))
    return ResidualSpec(body, StackSpec((conv, NormSpec(config.norm))))
