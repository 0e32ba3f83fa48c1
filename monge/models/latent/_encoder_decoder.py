"""Encoder and decoder networks: dense, or convolutional for images.

The decoder's outputs are laid out entry by entry, each with the parameters of its distribution,
whatever the network is.
"""

from __future__ import annotations

import abc
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.errors import UsageError
from ...core.space import Space
from ...nn.layers.activation import Activation, activation
from ...nn.layers.init import Init, initialise
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


class ConvEncoderDecoder(EncoderDecoder):
    """Convolutions of stride 2 down to a small feature map, transposed convolutions back up."""

    class Config(EncoderDecoder.Config):
        tag = "encoder_decoder/convolution"
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """Channels per level, finest first; each level halves height and width."""
        width: Annotated[int, Range(1)] = 256
        """Hidden units between the smallest feature map and the code."""
        activation: Activation = "silu"
        """Activation after each layer."""
        init: Init = "auto"
        """Initial weights: by the activation (he, xavier, orthogonal), small, or torch's own."""

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
        check_image_space(config, space)
        channels, act = (space.shape[0], *config.widths), config.activation
        sides = [space.shape[1:]]  # of every level, finest first
        for _ in config.widths:
            sides.append(tuple(-(-side // 2) for side in sides[-1]))
        self.shape, self.sides = space.shape, sides[::-1]
        self.deepest = (channels[-1], *sides[-1])
        flat, each = channels[-1] * sides[-1][0] * sides[-1][1], outputs // space.dims
        self.down = nn.Sequential(
            *(
                layer
                for pair in pairwise(channels)
                for layer in (nn.Conv2d(*pair, 3, 2, 1), activation(act))
            )
        )
        self.read = MLP(
            MLP.Config(width=config.width, depth=1, activation=act), flat + context, summary
        )
        self.speak = MLP(
            MLP.Config(width=config.width, depth=1, activation=act), latent + context, flat
        )
        back = (*channels[:0:-1], config.widths[0])
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in pairwise(back))
        self.out = nn.Conv2d(config.widths[0], space.shape[0] * each, 3, padding=1, bias=False)
        self.act, self.offset = activation(act), nn.Parameter(torch.zeros(outputs))
        initialise(self, config.init, act)

    def encode(self, features: Tensor, context: Tensor) -> Tensor:
        maps = self.down(features.reshape(-1, *self.shape)).flatten(1)
        return self.read(concat_context(maps, context))

    def decode(self, z: Tensor, context: Tensor) -> Tensor:
        h = self.speak(concat_context(z, context)).reshape(-1, *self.deepest)  # (N, C, h, w)
        for layer, (height, width) in zip(self.up, self.sides[1:], strict=True):
            h = layer(self.act(h))[..., :height, :width]
        out = self.out(self.act(h))  # (N, channels x each, H, W)
        out = out.unflatten(1, (self.shape[0], -1)).movedim(2, -1)  # (N, *event, each)
        return out.reshape(*z.shape[:-1], -1) + self.offset

    @property
    def bias(self) -> nn.Parameter:
        return self.offset


def check_image_space(config: ConvEncoderDecoder.Config, space: Space) -> None:
    if not space.is_image:
        raise UsageError(
            f"net=convolution expects images (channels, rows, columns), found {space}; "
            "use net=dense"
        )
    if not config.widths:
        raise UsageError(
            "expected at least one width, found net.widths empty; give net.widths=32,64"
        )


def concat_context(h: Tensor, context: Tensor) -> Tensor:
    """h and the encoded conditions side by side, the conditions broadcast over leading axes."""
    if not context.shape[-1]:
        return h
    return torch.cat([h, context.expand(*h.shape[:-1], -1)], -1)
