"""Networks that read noisy data as a whole: features of a datum at a log-SNR.

The log-SNR is told by sines and cosines of it; to a picture they are laid beside as channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...core.space import Space
from ...nn.activation import Activation
from ...nn.init import initialise
from ...nn.mlp import MLP
from ...nn.norm import Norm
from ...nn.shape import Act, Conv, Dense, Drop, Flatten, Layer, Normalise, Stack
from ._nets import TONES

SMALL = 6
"""Pixels on a side below which a picture is read as a vector."""


class Reading(nn.Module):
    """z (B, D) and log-SNR (B,) to features (B, outputs): convolutions for pictures, each level
    halving the sides, a perceptron for the rest."""

    tones: Tensor

    def __init__(self, space: Space, widths: Sequence[int], width: int, dropout: float,
                 outputs: int) -> None:
        super().__init__()
        self.register_buffer("tones", TONES.clone(), persistent=False)
        told = 2 * len(TONES)
        self.shape = space.shape if is_seen(space) else None
        self.net: nn.Module
        if self.shape is None:
            config = MLP.Config(width=width, depth=len(widths) + 1, residual=True,
                                dropout=dropout)
            self.net = MLP(config, space.dims + told, outputs)
            return
        plan = convolutions(widths, width, dropout, outputs)
        shape = (self.shape[0] + told, *self.shape[1:])
        self.net = plan.build(shape)
        initialise(self.net, "he", "silu")

    def forward(self, z: Tensor, log_snr: Tensor) -> Tensor:
        angles = log_snr[:, None] * self.tones
        told = torch.cat([angles.sin(), angles.cos()], 1)  # (B, T)
        if self.shape is None:
            return self.net(torch.cat([z, told], 1))
        x = z.reshape(-1, *self.shape)
        planes = told[..., None, None].expand(-1, -1, *self.shape[1:])
        return self.net(torch.cat([x, planes], 1))


def is_seen(space: Space) -> bool:
    return space.is_picture and min(space.shape[1:]) >= SMALL


def convolutions(widths: Sequence[int], width: int, dropout: float, outputs: int) -> Stack:
    """Two convolutions a level and a dense layer, before the network is built."""
    act: Activation = "silu"
    norm: Norm = "group"
    layers: list[Layer] = []
    for channels in widths:
        for stride in (1, 2):
            layers += [Conv(channels, 3, stride), Normalise(norm), Act(act)]
    return Stack((*layers, Flatten(), Drop(dropout), Dense(width), Act(act), Drop(dropout),
                  Dense(outputs)))


def levels(space: Space) -> tuple[int, ...]:
    """Channels of each level for pictures of this size."""
    if not is_seen(space):
        return (1, 1)
    side = min(space.shape[1:])
    return (32, 64, 96, 128)[:max(1, min(4, math.ceil(math.log2(side / 3))))]
