r"""Networks of couplings of pictures: they read what stays and what is given.

Steps of pictures, in levels (Kingma & Dhariwal 2018).

A step is a scaling, an invertible 1x1 convolution and an affine coupling with a convolutional
network; where a picture is given it begins with an affine injector, $h \leftarrow (h - t(c)) e^{-
s(c)}$ at every pixel (Lugmayr et al. 2020). A level squeezes squares of four pixels into channels,
takes K steps and lets half of the channels leave as code under $N(\mu(h), \sigma(h)^2)$, h being
what goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.space import Space
from ...prob.bijections.base import Bijection, Compose, Inverse
from ...prob.bijections.coupling import Conditional, Coupling
from ...prob.bijections.elementwise import ActNorm
from ...prob.bijections.linear import Mix, Reshape, Squeeze
from ...prob.bijections.multiscale import Scales, Shape
from ...prob.bijections.univariate import Affine


class CouplingConvNet(nn.Module):
    """Convolutions 3x3, 1x1 and 3x3 that also read what is given, and say 0 at first.

    Of the context, from its entry `skip` on, the first entries are a picture of the shape `view`,
    where there is one, which is shrunk to the size of what the network reads, and of which a pixel
    sees `look` x `look`; the rest holds for every pixel.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int,
        context: int,
        view: Shape | None = None,
        skip: int = 0,
        look: int = 3,
    ) -> None:
        super().__init__()
        self.view, self.seen = view, math.prod(view) if view else 0
        self.first = nn.Conv2d(inputs, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 1)
        self.out = nn.Conv2d(width, outputs, 3, padding=1)
        self.own, rest = slice(skip, skip + context), context - self.seen
        self.told = nn.Linear(rest, width, bias=False) if rest else None
        self.shown = (
            nn.Conv2d(view[0], width, look, padding=look // 2, bias=False) if view else None
        )
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        # Channels last: half of the time of 3x3 convolutions that have few channels at one end.
        h = self.first(x.contiguous(memory_format=torch.channels_last))
        told = None if context is None else context[:, self.own]
        if self.shown is not None:
            h = h + self.shown(image_from_context(told, self.view, x.shape[2:]))  # type: ignore[arg-type]
        if self.told is not None and told is not None:
            h = h + self.told(told[:, self.seen :])[:, :, None, None]
        return self.out(self.second(F.relu(h)).add_(h).relu_())


class InjectorNet(nn.Module):
    """One convolution of what is shown, of the size of a level, that says 0 at first."""

    def __init__(self, view: Shape, size: tuple[int, int], outputs: int, look: int = 3) -> None:
        super().__init__()
        self.view, self.size = view, size
        self.out = nn.Conv2d(view[0], outputs, look, padding=look // 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, context: Tensor) -> Tensor:
        return self.out(image_from_context(context, self.view, self.size))


def flatten_channels_last(picture: Tensor) -> Tensor:
    """A picture (B, C, H, W) as part of a context, the channels of a pixel side by side, which
    is how convolutions read it fastest."""
    return picture.permute(0, 2, 3, 1).flatten(1)


def image_from_context(context: Tensor, view: Shape, size: Sequence[int]) -> Tensor:
    """The picture that the context begins with, shrunk to a size that divides its own,
    (B, C, H, W)."""
    channels, *sides = view
    shown = context[:, : math.prod(view)].reshape(-1, *sides, channels).permute(0, 3, 1, 2)
    times = (sides[0] // size[0], sides[1] // size[1])
    return shown if times == (1, 1) else F.avg_pool2d(shown, times)


@dataclass(frozen=True)
class GlowSteps:
    """How levels of a picture are made."""

    count: int  # steps of a level
    width: int  # of the networks
    context: int  # entries of what is given
    view: Shape | None = None  # of which the first are a picture
    injects: bool = False
    look: int = 3  # pixels of that picture, in each direction, that a pixel sees

    def level(self, shape: Shape, squeezed: bool, last: bool) -> Bijection:
        """From what leaves and what goes on to the picture that entered."""
        leaving = [] if last else [self.coupling(shape[0])]
        steps = [part for number in range(self.count) for part in self.step(shape, number)]
        return Compose([*leaving, *steps, *([Squeeze()] if squeezed else [])])

    def step(self, shape: Shape, number: int) -> list[Bijection]:
        """The parts of one step, in the order from code to picture."""
        injector: list[Bijection] = []
        if self.injects and self.view:
            net = InjectorNet(self.view, shape[1:], 2 * shape[0], self.look)
            injector = [Conditional(net, Affine())]
        return [
            self.coupling(shape[0], bool(number % 2)),
            *injector,
            Mix(shape[0]),
            ActNorm(shape[0]),
        ]

    def coupling(self, channels: int, flip: bool = False) -> Bijection:
        """The half that moves, or leaves, is the second one unless `flip`."""
        size, warp = channels - channels // 2, Affine()
        stays, moves = (channels - size, size) if flip else (size, channels - size)
        net = CouplingConvNet(
            stays, self.width, moves * warp.count, self.context, self.view, look=self.look
        )
        return Coupling(net, warp, size, flip)

    def levels(self, shape: Shape, count: int, squeezes: bool = True) -> Scales:
        """Codes (B, D) to a picture; without `squeezes` the first level keeps its size."""
        levels, shapes = [], []
        for number in range(count):
            squeezed = (number > 0 or squeezes) and (shape[1] > 1 or shape[2] > 1)
            if squeezed:
                shape = (4 * shape[0], shape[1] // 2, shape[2] // 2)
            levels.append(self.level(shape, squeezed, number == count - 1))
            shapes.append(shape)
            shape = (shape[0] - shape[0] // 2, *shape[1:])
        return Scales(levels, shapes)

    def flat(self, shape: Shape, count: int) -> Bijection:
        """Codes (B, D) to pictures laid out flat."""
        return Compose([self.levels(shape, count), Inverse(Reshape(shape))])


def image_shape(space: Space) -> Shape:
    """(C, H, W); what is no picture is one pixel."""
    return space.shape if space.is_picture else (space.dims, 1, 1)  # type: ignore[return-value]


def count_halvings(shape: Shape) -> int:
    """How often height and width can be halved."""
    _, rows, columns = shape
    count = 0
    while rows % 2 == 0 and columns % 2 == 0:
        rows, columns, count = rows // 2, columns // 2, count + 1
    return count
