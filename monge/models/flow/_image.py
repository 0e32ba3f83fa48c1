r"""Multi-scale image flows: coupling networks, steps and levels (Kingma & Dhariwal 2018).

A step is a scaling, an invertible 1x1 convolution and an affine coupling with a convolutional
network; with an image condition it starts with an affine injector, $h \leftarrow (h - t(c)) e^{-
s(c)}$ at every pixel (Lugmayr et al. 2020). A level squeezes squares of four pixels into channels,
takes K steps and lets half of the channels leave as code with the prior $N(\mu(h), \sigma(h)^2)$,
h being the other half. Couplings whose halves are the colours of a chess-board may stand before
the squeeze (Dinh, Sohl-Dickstein & Bengio 2017); they also mix an image of odd sides with its last
row or column, which leaves as code so that the rest can be squeezed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.space import Space
from ...nn.layers.init import Init, initialise
from ...nn.layers.linear import Linear
from ...prob.bijections.base import Bijection, Compose, Inverse
from ...prob.bijections.coupling import (
    CheckerboardCoupling,
    ConditionalBijection,
    CouplingBijection,
)
from ...prob.bijections.elementwise import ActNorm
from ...prob.bijections.linear import LULinear, Reshape, Squeeze
from ...prob.bijections.multiscale import EvenPart, ImageShape, MultiScale
from ...prob.bijections.univariate import AffineMap


class CouplingConvNet(nn.Module):
    """Convolutions 3x3, 1x1 and 3x3 that also read the context; outputs are 0 at initialisation.

    The context starts at entry `skip`. Its first entries are an image of the shape `view`, if
    any, which is downscaled to the network's size and read by a convolution of `kernel_size`; the
    other entries apply to every pixel.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int,
        context: int,
        view: ImageShape | None = None,
        skip: int = 0,
        kernel_size: int = 3,
        init: Init = "auto",
    ) -> None:
        super().__init__()
        self.view, self.image_entries = view, math.prod(view) if view else 0
        self.first = nn.Conv2d(inputs, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 1)
        self.out = nn.Conv2d(width, outputs, 3, padding=1)
        self.own, rest = slice(skip, skip + context), context - self.image_entries
        self.embed_vector = Linear(rest, width, bias=False) if rest else None
        self.embed_image = (
            nn.Conv2d(view[0], width, kernel_size, padding=kernel_size // 2, bias=False)
            if view
            else None
        )
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]
        initialise(self, init, "relu")

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        # Channels last: half of the time of 3x3 convolutions that have few channels at one end.
        h = self.first(x.contiguous(memory_format=torch.channels_last))
        own = None if context is None else context[:, self.own]
        if self.embed_image is not None:
            h = h + self.embed_image(image_from_context(own, self.view, x.shape[2:]))  # type: ignore[arg-type]
        if self.embed_vector is not None and own is not None:
            h = h + self.embed_vector(own[:, self.image_entries :])[:, :, None, None]
        return self.out(self.second(F.relu(h)).add_(h).relu_())


class InjectorNet(nn.Module):
    """One convolution of the image condition at the size of a level; 0 at initialisation."""

    def __init__(
        self, view: ImageShape, size: tuple[int, int], outputs: int, kernel_size: int = 3
    ) -> None:
        super().__init__()
        self.view, self.size = view, size
        self.out = nn.Conv2d(view[0], outputs, kernel_size, padding=kernel_size // 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, context: Tensor) -> Tensor:
        return self.out(image_from_context(context, self.view, self.size))


def flatten_channels_last(image: Tensor) -> Tensor:
    """An image (B, C, H, W) as part of a context, channels last, which convolutions read
    fastest."""
    return image.permute(0, 2, 3, 1).flatten(1)


def image_from_context(context: Tensor, view: ImageShape, size: Sequence[int]) -> Tensor:
    """The image at the start of the context, downscaled to a size that divides its own,
    (B, C, H, W)."""
    channels, *sides = view
    image = context[:, : math.prod(view)].reshape(-1, *sides, channels).permute(0, 3, 1, 2)
    times = (sides[0] // size[0], sides[1] // size[1])
    return image if times == (1, 1) else F.avg_pool2d(image, times)


@dataclass(frozen=True)
class GlowSteps:
    """Builds the steps and levels of an image flow."""

    count: int  # steps of a level
    width: int  # of the networks
    context: int  # entries of the context
    view: ImageShape | None = None  # shape of the image it starts with
    injects: bool = False
    kernel_size: int = 3  # of convolutions of that image
    checkerboard: int = 0  # couplings of a chess-board at the start of a level
    init: Init = "auto"  # of the networks

    def level(self, shape: ImageShape, squeezed: bool, last: bool) -> Bijection:
        """The map from both halves of the channels to the input of the level."""
        leaving = [] if last else [self.coupling(shape[0])]
        steps = [part for number in range(self.count) for part in self.step(shape, number)]
        before = (shape[0] // 4, 2 * shape[1], 2 * shape[2]) if squeezed else shape
        board = self.board(before, self.checkerboard)
        return Compose([*leaving, *steps, *([Squeeze()] if squeezed else []), *board])

    def board(self, shape: ImageShape, count: int) -> list[Bijection]:
        """Couplings of a chess-board, in the order from code to image."""
        warp = AffineMap()
        return [
            part
            for number in range(count)
            for part in (
                CheckerboardCoupling(
                    CouplingConvNet(
                        shape[0],
                        self.width,
                        shape[0] * warp.count,
                        self.context,
                        self.view if self.view and divides(shape, self.view) else None,
                        kernel_size=self.kernel_size,
                        init=self.init,
                    ),
                    warp,
                    bool(number % 2),
                ),
                ActNorm(shape[0]),
            )
        ]

    def step(self, shape: ImageShape, number: int) -> list[Bijection]:
        """The parts of one step, in the order from code to image."""
        injector: list[Bijection] = []
        if self.injects and self.view:
            net = InjectorNet(self.view, shape[1:], 2 * shape[0], self.kernel_size)
            injector = [ConditionalBijection(net, AffineMap())]
        return [
            self.coupling(shape[0], bool(number % 2)),
            *injector,
            LULinear(shape[0]),
            ActNorm(shape[0]),
        ]

    def coupling(self, channels: int, flip: bool = False) -> Bijection:
        """The half that is transformed, or leaves, is the second one unless `flip`."""
        size, warp = channels - channels // 2, AffineMap()
        stays, moves = (channels - size, size) if flip else (size, channels - size)
        net = CouplingConvNet(
            stays,
            self.width,
            moves * warp.count,
            self.context,
            self.view,
            kernel_size=self.kernel_size,
            init=self.init,
        )
        return CouplingBijection(net, warp, size, flip)

    def levels(self, shape: ImageShape, count: int, squeezes: bool = True) -> MultiScale:
        """Codes (B, D) to an image; without `squeezes` the first level keeps its size."""
        levels, shapes = [], []
        for number in range(count):
            squeezed = (number > 0 or squeezes) and (shape[1] > 1 or shape[2] > 1)
            if squeezed:
                shape = (4 * shape[0], shape[1] // 2, shape[2] // 2)
            levels.append(self.level(shape, squeezed, number == count - 1))
            shapes.append(shape)
            shape = (shape[0] - shape[0] // 2, *shape[1:])
        return MultiScale(levels, shapes)

    def flat(self, shape: ImageShape, count: int) -> Bijection:
        """Codes (B, D) to flattened images, whose sides may be odd."""
        if shape[1:] == (1, 1) or not (shape[1] % 2 or shape[2] % 2):
            return Compose([self.levels(shape, count), Inverse(Reshape(shape))])
        even = even_part(shape)
        inside = EvenPart(self.levels(even, count), shape) if min(even[1:]) else Reshape(shape)
        board = self.board(shape, max(self.checkerboard, MIN_ODD_COUPLINGS))
        return Compose([inside, *board, Inverse(Reshape(shape))])


def image_shape(space: Space) -> ImageShape:
    """(C, H, W); other events are one pixel."""
    return space.shape if space.is_image else (space.dims, 1, 1)  # type: ignore[return-value]


def even_part(shape: ImageShape) -> ImageShape:
    """The shape without the last row or column where their number is odd."""
    return (shape[0], shape[1] - shape[1] % 2, shape[2] - shape[2] % 2)


def divides(shape: ImageShape, view: ImageShape) -> bool:
    """Whether an image of the context can be downscaled to this size."""
    return view[1] % shape[1] == 0 and view[2] % shape[2] == 0


MIN_ODD_COUPLINGS = 4
"""Couplings of a chess-board that mix an image of odd sides with its last row or column."""


def count_halvings(shape: ImageShape) -> int:
    """How many times height and width can be halved."""
    _, rows, columns = shape
    count = 0
    while rows % 2 == 0 and columns % 2 == 0:
        rows, columns, count = rows // 2, columns // 2, count + 1
    return count
