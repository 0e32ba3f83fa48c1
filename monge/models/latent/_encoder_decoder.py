"""The two networks of a law with codes: one reads an event, the other speaks of one.

What a network says of an event is laid out entry by entry, each with as many numbers as its law
has parameters, whatever the network is.
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
from ...nn.mlp import MLP


class Networks(Configured, nn.Module, abc.ABC):
    """h = f(features, context) and outputs = g(z, context).

    Built for a space whose features are `inputs` numbers: h has `summary` numbers, z `latent`,
    the context `context`; g puts out `outputs`, a multiple of the entries of a picture.
    """

    class Config(BaseConfig):
        """Of any such pair."""

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
        """What g says where the rest of it is 0, (outputs,)."""


class Dense(Networks):
    """Two multilayer perceptrons; the second has the widths of the first from last to first."""

    class Config(Networks.Config, MLP.Config):
        """A multilayer perceptron each way."""

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
        return self.encoder(beside(features, context))

    def decode(self, z: Tensor, context: Tensor) -> Tensor:
        return self.decoder(beside(z, context))

    @property
    def bias(self) -> nn.Parameter:
        return self.decoder.out.bias


class Convolution(Networks):
    """Convolutions of stride 2 down to a small map, and the way back by transposed ones."""

    class Config(Networks.Config):
        tag = "encoder_decoder/convolution"
        widths: tuple[Annotated[int, Range(1)], ...] = (32, 64)
        """Channels of each level, finest first; each has half the height and width of the last."""
        width: Annotated[int, Range(1)] = 256
        """Units between the smallest map and the code."""
        activation: Activation = "silu"
        """Function after each layer."""

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
        check(config, space)
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

    def encode(self, features: Tensor, context: Tensor) -> Tensor:
        found = self.down(features.reshape(-1, *self.shape)).flatten(1)
        return self.read(beside(found, context))

    def decode(self, z: Tensor, context: Tensor) -> Tensor:
        h = self.speak(beside(z, context)).reshape(-1, *self.deepest)  # (N, C, h, w)
        for layer, (height, width) in zip(self.up, self.sides[1:], strict=True):
            h = layer(self.act(h))[..., :height, :width]
        said = self.out(self.act(h))  # (N, channels x each, H, W)
        said = said.unflatten(1, (self.shape[0], -1)).movedim(2, -1)  # (N, *event, each)
        return said.reshape(*z.shape[:-1], -1) + self.offset

    @property
    def bias(self) -> nn.Parameter:
        return self.offset


def check(config: Convolution.Config, space: Space) -> None:
    if not space.is_picture:
        raise UsageError(
            f"net=convolution reads pictures, and the event holds {space}; take net=dense"
        )
    if not config.widths:
        raise UsageError("net.widths is empty, so that there is no network; give net.widths=32,64")


def beside(h: Tensor, context: Tensor) -> Tensor:
    """Numbers and conditions in one row, the conditions repeated along the axes before."""
    if not context.shape[-1]:
        return h
    return torch.cat([h, context.expand(*h.shape[:-1], -1)], -1)
