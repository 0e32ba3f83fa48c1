r"""Multi-scale flow of pictures: levels of steps with learned channel mixing

Each level squeezes squares of four pixels into channels, takes K steps (a scaling, an invertible
1x1 convolution, an affine coupling with a convolutional network), and lets half of the channels
leave as code under N(mu(h), sigma(h)^2), h being what goes on (Kingma & Dhariwal 2018).
"""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from ...core.config import Range
from ...core.error import WordError
from ...core.model import Suit
from ...core.recipe import Recipe
from ...core.space import Space
from ...prob.bijections.base import Bijection, Compose, Inverse
from ...prob.bijections.coupling import Coupling
from ...prob.bijections.fixed import ActNorm
from ...prob.bijections.linear import Mix, Reshape, Squeeze
from ...prob.bijections.scales import Scales, Shape
from ...prob.bijections.warps import Affine
from ._base import Flow

LARGE = 256
"""Pixels from which on a picture asks for a larger network."""


class Glow(Flow):
    """x = f_1(f_2(... f_L(z_L), z_2), z_1), each f_l being K steps at half the resolution of
    the one before. A vector is a picture of one pixel, which is not squeezed."""

    events = {"real", "binary", "levels"}

    class Config(Flow.Config):
        levels: Annotated[int, Range(0)] = 0
        """Resolutions; 0 takes as many as the size allows, three at most."""
        steps: Annotated[int, Range(1)] = 8
        """Steps of a level."""
        width: Annotated[int, Range(1)] = 64
        """Channels of the hidden layers of a coupling."""

    config: Config

    def body(self, context: int) -> Bijection:
        shape, levels, shapes = picture(self.space), [], []
        count = depth(self.space, self.config.levels)
        for number in range(count):
            squeezed = shape[1] > 1 or shape[2] > 1
            if squeezed:
                shape = (4 * shape[0], shape[1] // 2, shape[2] // 2)
            last = number == count - 1
            levels.append(self.level(shape, context, squeezed, last))
            shapes.append(shape)
            shape = (shape[0] - shape[0] // 2, *shape[1:])
        return Compose([Scales(levels, shapes), Inverse(Reshape(picture(self.space)))])

    def level(self, shape: Shape, context: int, squeezed: bool, last: bool) -> Bijection:
        channels = shape[0]
        leaving = [] if last else [self.coupling(channels, context)]
        steps = [part for number in range(self.config.steps)
                 for part in (self.coupling(channels, context, bool(number % 2)), Mix(channels),
                              ActNorm(channels))]
        return Compose([*leaving, *steps, *([Squeeze()] if squeezed else [])])

    def coupling(self, channels: int, context: int, flip: bool = False) -> Bijection:
        """The half that moves, or leaves, is the second one unless `flip`."""
        size, warp = channels - channels // 2, Affine()
        stays, moves = (channels - size, size) if flip else (size, channels - size)
        net = Pixels(stays, self.config.width, moves * warp.count, context)
        return Coupling(net, warp, size, flip)

    @classmethod
    def refuses(cls, space: Space) -> str | None:
        _, rows, columns = picture(space)
        if space.dims < 2:
            return ("glow moves some entries as the others say, but an event has one entry only; "
                    "use maf, or mixture")
        if (rows, columns) != (1, 1) and (rows % 2 or columns % 2):
            return (f"glow halves height and width, but pictures are {rows}x{columns}; pad or "
                    f"crop them to even sizes such as {rows + rows % 2}x{columns + columns % 2}")
        return None

    @classmethod
    def suit(cls, space: Space) -> Suit:
        large, few = space.dims > LARGE, space.rows < 10_000
        config = cls.Config(steps=8 if large else 6, width=96 if large else 48)
        recipe = Recipe(rate=1e-3, batch=64, average=0.998, clip=50.0, warmup=200,
                        optimiser="adamw", decay=0.01 if few else 0.0)
        return Suit(config, recipe)

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(steps=2, width=8)


class Pixels(nn.Module):
    """Convolutions 3x3, 1x1 and 3x3 that also read what is given, and say 0 at first."""

    def __init__(self, inputs: int, width: int, outputs: int, context: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 1)
        self.out = nn.Conv2d(width, outputs, 3, padding=1)
        self.told = nn.Linear(context, width, bias=False) if context else None
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        h = self.first(x)
        if self.told is not None and context is not None:
            h = h + self.told(context)[:, :, None, None]
        return self.out(F.relu(self.second(F.relu(h)) + h))


def picture(space: Space) -> Shape:
    """(C, H, W); what is no picture is one pixel."""
    return space.shape if space.is_picture else (space.dims, 1, 1)  # type: ignore[return-value]


def depth(space: Space, wanted: int) -> int:
    """How many levels there are: as many as wanted, or as the size allows."""
    _, rows, columns = picture(space)
    if (rows, columns) == (1, 1):
        return 1
    possible = 0
    while rows % 2 == 0 and columns % 2 == 0:
        rows, columns, possible = rows // 2, columns // 2, possible + 1
    if wanted > possible:
        raise WordError(f"levels={wanted} halves height and width so often, but pictures of "
                        f"{'x'.join(map(str, space.shape[1:]))} can be halved {possible} times; "
                        f"use levels={possible}, or pad them to multiples of {2**wanted}")
    return wanted or min(possible, 3)
