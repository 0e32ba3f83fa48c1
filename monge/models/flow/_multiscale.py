r"""Steps of pictures, in levels (Kingma & Dhariwal 2018).

A step is a scaling, an invertible 1x1 convolution and an affine coupling with a convolutional
network; where a picture is given it begins with an affine injector, $h \leftarrow (h - t(c)) e^{-
s(c)}$ at every pixel (Lugmayr et al. 2020). A level squeezes squares of four pixels into channels,
takes K steps and lets half of the channels leave as code under $N(\mu(h), \sigma(h)^2)$, h being
what goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.space import Space
from ...prob.bijections.base import Bijection, Compose, Inverse
from ...prob.bijections.coupling import Conditional, Coupling
from ...prob.bijections.fixed import ActNorm
from ...prob.bijections.linear import Mix, Reshape, Squeeze
from ...prob.bijections.scales import Scales, Shape
from ...prob.bijections.warps import Affine
from ._pixels import Pixels, Shown


@dataclass(frozen=True)
class Steps:
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
            net = Shown(self.view, shape[1:], 2 * shape[0], self.look)
            injector = [Conditional(net, Affine())]
        return [self.coupling(shape[0], bool(number % 2)), *injector, Mix(shape[0]),
                ActNorm(shape[0])]

    def coupling(self, channels: int, flip: bool = False) -> Bijection:
        """The half that moves, or leaves, is the second one unless `flip`."""
        size, warp = channels - channels // 2, Affine()
        stays, moves = (channels - size, size) if flip else (size, channels - size)
        net = Pixels(stays, self.width, moves * warp.count, self.context, self.view,
                     look=self.look)
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


def picture(space: Space) -> Shape:
    """(C, H, W); what is no picture is one pixel."""
    return space.shape if space.is_picture else (space.dims, 1, 1)  # type: ignore[return-value]


def halvings(shape: Shape) -> int:
    """How often height and width can be halved."""
    _, rows, columns = shape
    count = 0
    while rows % 2 == 0 and columns % 2 == 0:
        rows, columns, count = rows // 2, columns // 2, count + 1
    return count
