r"""Two flows side by side, the second reading the first at every depth (Pumarola et al. 2020).

Both are rungs, a coupling and a linear map each. On its way to noise the first shows what enters
each of its couplings; the coupling of the second at the same depth reads that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...prob.bijections.base import Bijection, Compose, Inverse, Mapped, nothing
from ...prob.bijections.coupling import REACH, Coupling
from ...prob.bijections.fixed import ActNorm
from ...prob.bijections.linear import Mix, Reshape, Squeeze
from ...prob.bijections.scales import Shape
from ...prob.bijections.warps import Affine
from ._pixels import Pixels, laid_out
from ._stack import Stacking, between, layer


class Ladder(Compose):
    """x = g_K(h_K(... g_1(h_1(z)))), h couplings and g linear maps, from z to x."""

    def __init__(self, rungs: Sequence[tuple[Bijection, Bijection]]) -> None:
        super().__init__([part for rung in rungs for part in rung])

    def shown(self, x: Tensor, context: Tensor) -> tuple[Tensor, Mapped]:
        """What enters each coupling and the context, coupling by coupling, (B, K (D + C)), and
        where x goes meanwhile."""
        found, total = [], nothing(x)
        for number, part in reversed(list(enumerate(self.each()))):
            if number % 2 == 0:
                row = laid_out(x) if x.ndim == 4 else x
                found += [context, row.clamp(-REACH, REACH)]
            x, log_det = part.inverse(x, context)
            total = total + log_det
        return torch.cat(found[::-1], 1), (x, total)


@dataclass(frozen=True)
class Vectors:
    """Rungs of vectors."""

    config: Stacking

    def ladder(self, dims: int, context: int, blocks: bool) -> Ladder:
        """With `blocks` each coupling has so many entries of the context of its own."""
        def rung(number: int) -> tuple[Bijection, Bijection]:
            skip = number * context if blocks else 0
            return (layer(self.config, dims, context, bool(number % 2), skip),
                    Compose(between(self.config, dims)))

        return Ladder([rung(number) for number in range(self.config.layers)])


@dataclass(frozen=True)
class Pictures:
    """Rungs of pictures, whose squares become channels once a level; nothing leaves on the way,
    so that both flows have all of a picture at every depth."""

    steps: int
    width: int
    levels: int

    def ladder(self, shape: Shape, context: int, other: int = 0) -> Ladder:
        """other: channels of a picture of the same size that the context of each coupling, a
        block of its own, begins with."""
        rungs: list[tuple[Bijection, Bijection]] = []
        for level in range(self.levels, 0, -1):
            sides = (shape[1] >> level, shape[2] >> level)
            channels, view = shape[0] * 4**level, (other * 4**level, *sides) if other else None
            for step in range(self.steps):
                parts: list[Bijection] = [Mix(channels), ActNorm(channels)]
                if step == self.steps - 1:
                    parts += [Squeeze(), *self.flat(shape, level)]
                skip = len(rungs) * context if other else 0
                rungs.append((self.coupling(channels, context, view, skip, bool(step % 2)),
                              Compose(parts)))
        return Ladder(self.entered(rungs, shape))

    def coupling(self, channels: int, context: int, view: Shape | None, skip: int, flip: bool
                 ) -> Bijection:
        size, warp = channels - channels // 2, Affine()
        stays, moves = (channels - size, size) if flip else (size, channels - size)
        net = Pixels(stays, self.width, moves * warp.count, context, view, skip)
        return Coupling(net, warp, size, flip)

    def flat(self, shape: Shape, level: int) -> list[Bijection]:
        """The way out of the finest level."""
        return [Inverse(Reshape(shape))] if level == 1 else []

    def entered(self, rungs: list[tuple[Bijection, Bijection]], shape: Shape
                ) -> list[tuple[Bijection, Bijection]]:
        """The way from codes (B, D) into the coarsest level."""
        sides = (shape[1] >> self.levels, shape[2] >> self.levels)
        coarse = Reshape((shape[0] * 4**self.levels, *sides))
        first, between = rungs[0]
        return [(Compose([coarse, first]), between), *rungs[1:]]
