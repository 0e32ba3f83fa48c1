"""Encoder and decoder networks: dense, or convolutional for images, with one code or a grid of
them.

The decoder's outputs are laid out entry by entry, each with the parameters of its distribution,
whatever the network is.
"""

from __future__ import annotations

import abc
import math
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range, title_of
from ...core.errors import UsageError
from ...core.space import Space
from ...nn.layers.activation import Activation, activation
from ...nn.layers.init import Init, initialise
from ...nn.layers.linear import Linear
from ...nn.mlp import MLP


class EncoderDecoder(Configured, nn.Module, abc.ABC):
    """h = f(features, context) and outputs = g(z, context).

    Sizes: features `inputs`, h `summary`, z `latent`, encoded conditions `context`; g returns
    `outputs` numbers, for images a multiple of the number of entries.
    """

    class Config(BaseConfig):
        """Base of the configurations of encoder-decoder pairs."""

        tag = "encoder_decoder/"

    @abc.abstractmethod
    def encode(self, features: Tensor, context: Tensor) -> Tensor:
        """(B, inputs) and (B, context) to (B, summary)."""

    @abc.abstractmethod
    def decode(self, z: Tensor, context: Tensor) -> Tensor:
        """(*S, latent) and (*S, context) to (*S, outputs)."""

    @property
    @abc.abstractmethod
    def bias(self) -> nn.Parameter:
        """The bias of the output of g, (outputs,)."""


class DenseEncoderDecoder(EncoderDecoder):
    """Two multilayer perceptrons; the decoder has the widths of the encoder in reverse."""

    class Config(EncoderDecoder.Config, MLP.Config):
        """A multilayer perceptron each for encoder and decoder."""

        tag = "encoder_decoder/dense"

    def __init__(
        self,
        config: Config,
        space: Space,
        inputs: int,
        context: int,
        summary: int,
        latent: int,
        outputs: int,
    ) -> None:
        super().__init__()
        self.encoder = MLP(config, inputs + context, summary)
        mirrored = replace(config, widths=config.widths[::-1])
        self.decoder = MLP(mirrored, latent + context, outputs)

    def encode(self, features: Tensor, context: Tensor) -> Tensor:
        return self.encoder(concat_context(features, context))

    def decode(self, z: Tensor, context: Tensor) -> Tensor:
        return self.decoder(concat_context(z, context))

    @property
    def bias(self) -> nn.Parameter:
        return self.decoder.out.bias


class ImageEncoderDecoder(EncoderDecoder):
    """Maps whose height and width halve from level to level: what nets of images share, which is
    the way from the smallest map back up, by transposed convolutions."""

    class Config(EncoderDecoder.Config):
        """Base of the configurations of nets of images."""

        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """Channels per level, finest first; each level halves height and width."""
        activation: Activation = "silu"
        """Activation between layers."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, or torch's own."""

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__()
        self.shape, self.sides = space.shape, image_sides(config, space)[::-1]  # smallest first
        self.channels = (space.shape[0], *config.widths)

    def build_up(self, config: Config, outputs: int) -> None:
        """The layers of `to_image`, and the initial weights of all layers."""
        each, finest = outputs // math.prod(self.shape), config.widths[0]
        back = (*self.channels[:0:-1], finest)
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in pairwise(back))
        self.out = nn.Conv2d(finest, self.shape[0] * each, 3, padding=1, bias=False)
        self.act = activation(config.activation)
        self.offset = nn.Parameter(torch.zeros(outputs))
        initialise(self, config.init, config.activation)

    def to_image(self, h: Tensor) -> Tensor:  # (N, C, h, w) -> (N, outputs)
        for layer, (height, width) in zip(self.up, self.sides[1:], strict=True):
            h = layer(self.act(h))[..., :height, :width]
        out = self.out(self.act(h))  # (N, channels x each, H, W)
        out = out.unflatten(1, (self.shape[0], -1)).movedim(2, -1)  # (N, *event, each)
        return out.flatten(1) + self.offset

    @property
    def bias(self) -> nn.Parameter:
        return self.offset


class ConvEncoderDecoder(ImageEncoderDecoder):
    """Convolutions of stride 2 down to a small feature map, transposed convolutions back up."""

    class Config(ImageEncoderDecoder.Config):
        tag = "encoder_decoder/convolution"
        width: Annotated[int, Range(1)] = 256
        """Hidden units between the smallest feature map and the code."""

    def __init__(
        self,
        config: Config,
        space: Space,
        inputs: int,
        context: int,
        summary: int,
        latent: int,
        outputs: int,
    ) -> None:
        super().__init__(config, space)
        act = config.activation
        self.deepest = (self.channels[-1], *self.sides[0])
        flat = math.prod(self.deepest)
        hidden = MLP.Config(width=config.width, depth=1, activation=act)
        self.down = nn.Sequential(
            *(
                layer
                for pair in pairwise(self.channels)
                for layer in (nn.Conv2d(*pair, 3, 2, 1), activation(act))
            )
        )
        self.read = MLP(hidden, flat + context, summary)
        self.speak = MLP(hidden, latent + context, flat)
        self.build_up(config, outputs)

    def encode(self, features: Tensor, context: Tensor) -> Tensor:
        maps = self.down(features.reshape(-1, *self.shape)).flatten(1)
        return self.read(concat_context(maps, context))

    def decode(self, z: Tensor, context: Tensor) -> Tensor:
        h = self.speak(concat_context(z, context)).reshape(-1, *self.deepest)
        return self.to_image(h).reshape(*z.shape[:-1], -1)


class GridEncoderDecoder(ImageEncoderDecoder):
    """Convolutions of stride 2 down to a map, one vector for each of its places, and back up;
    residual blocks at the smallest map on either side."""

    class Config(ImageEncoderDecoder.Config):
        tag = "encoder_decoder/grid"
        depth: Annotated[int, Range(0)] = 2
        """Residual blocks at the smallest map of the encoder, and as many of the decoder."""

    def __init__(
        self,
        config: Config,
        space: Space,
        inputs: int,
        context: int,
        summary: int,
        latent: int,
        outputs: int,
    ) -> None:
        super().__init__(config, space)
        act, last, places = config.activation, config.widths[-1], math.prod(self.sides[0])
        for numbers in (summary, latent):
            if numbers % places:
                raise UsageError(
                    f"net=grid expects a multiple of its {places} places, found {numbers} numbers "
                    "of a code; choose another latent or other net.widths"
                )
        self.down = nn.ModuleList(nn.Conv2d(*pair, 4, 2, 1) for pair in pairwise(self.channels))
        self.pads = [[side % 2 for side in sides] for sides in self.sides[:0:-1]]
        self.inner = nn.ModuleList(ResidualBlock(last, act) for _ in range(config.depth))
        # The summary is one map of the size of the code after the other: means, then scales.
        self.summary_maps = summary // latent if summary % latent == 0 else 1
        self.leave = nn.Conv2d(last, summary // places, 1)
        self.enter = nn.Conv2d(latent // places, last, 1)
        self.outer = nn.ModuleList(ResidualBlock(last, act) for _ in range(config.depth))
        self.contexts = nn.ModuleList(Linear(context, last) for _ in range(2 * bool(context)))
        self.build_up(config, outputs)

    def encode(self, features: Tensor, context: Tensor) -> Tensor:
        h = features.reshape(-1, *self.shape)
        for number, (layer, (rows, columns)) in enumerate(zip(self.down, self.pads, strict=True)):
            h = self.act(h) if number else h
            h = layer(nn.functional.pad(h, (0, columns, 0, rows)))
        h = self.with_context(h, context, 0)
        for block in self.inner:
            h = block(h)
        maps = self.leave(self.act(h)).flatten(2).unflatten(1, (self.summary_maps, -1))
        return maps.transpose(2, 3).flatten(1)  # (B, M, W, T) -> (B, M T W)

    def decode(self, z: Tensor, context: Tensor) -> Tensor:
        rows, columns = self.sides[0]
        h = z.reshape(-1, rows * columns, self.enter.in_channels).transpose(1, 2)
        h = self.enter(h.unflatten(2, (rows, columns)))  # (N, C, h, w)
        h = self.with_context(h, context, 1)
        for block in self.outer:
            h = block(h)
        return self.to_image(h).reshape(*z.shape[:-1], -1)

    def with_context(self, h: Tensor, context: Tensor, which: int) -> Tensor:
        """The map with the encoded conditions added to each of its places."""
        if not self.contexts:
            return h
        return h + self.contexts[which](context).reshape(len(h), -1, 1, 1)


class ResidualBlock(nn.Module):
    """h + g(h) with a 3x3 and a 1x1 convolution in g."""

    def __init__(self, width: int, act: Activation) -> None:
        super().__init__()
        self.act = activation(act)
        self.first, self.last = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.last(self.act(self.first(self.act(h))))


def check_image_space(config: ImageEncoderDecoder.Config, space: Space) -> None:
    if not space.is_image:
        raise UsageError(
            f"net={title_of(type(config))} expects images (channels, rows, columns), found "
            f"{space}; use net=dense"
        )
    if not config.widths:
        raise UsageError(
            "expected at least one width, found net.widths empty; give net.widths=32,64"
        )


def image_sides(config: ImageEncoderDecoder.Config, space: Space) -> list[tuple[int, ...]]:
    """Height and width of every map, finest first."""
    check_image_space(config, space)
    sides = [tuple(space.shape[1:])]
    for _ in config.widths:
        sides.append(tuple(-(-side // 2) for side in sides[-1]))
    return sides


def concat_context(h: Tensor, context: Tensor) -> Tensor:
    """h and the encoded conditions side by side, the conditions broadcast over leading axes."""
    if not context.shape[-1]:
        return h
    return torch.cat([h, context.expand(*h.shape[:-1], -1)], -1)
