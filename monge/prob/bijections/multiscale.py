"""Several scales of an image: half of the channels are factored out at each (Dinh et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from .base import Bijection, Mapped, zero_log_det

ImageShape = tuple[int, int, int]


class EvenPart(Bijection):
    """An image whose last row, if there is an odd number of them, and last column become code, the
    rest being mapped by `inside`. z is (B, D): the code of the rest, then the border."""

    def __init__(self, inside: Bijection, shape: ImageShape) -> None:
        super().__init__()
        self.inside, self.shape = inside, shape
        self.even = tuple(side - side % 2 for side in shape[1:])

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        height, width = self.even
        channels, *sides = self.shape
        code, right, below = z.split(self.sizes, 1)
        x, log_det = self.inside(code, context)
        x = torch.cat([x, right.reshape(len(z), channels, height, sides[1] - width)], 3)
        below = below.reshape(len(z), channels, sides[0] - height, sides[1])
        return torch.cat([x, below], 2), log_det

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        height, width = self.even
        z, log_det = self.inside.inverse(x[:, :, :height, :width], context)
        border = x[:, :, :height, width:], x[:, :, height:]
        return torch.cat([z, *(part.flatten(1) for part in border)], 1), log_det

    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        height, width = self.even
        self.inside.initialise_from_data(x[:, :, :height, :width], context)

    @property
    def sizes(self) -> list[int]:
        """Entries of the rest, of the last column and of the last row."""
        (channels, *sides), (height, width) = self.shape, self.even
        inside, column = height * width, height * (sides[1] - width)
        whole = sides[0] * sides[1]
        return [channels * count for count in (inside, column, whole - inside - column)]


class MultiScale(Bijection):
    """Levels, the finest first; after each but the last, the second half of the channels becomes
    code and the first half continues to the next level.

    If a level ends with an affine coupling of that second half, the code is factored out under
    N(mu(h), sigma(h)^2) with h the half that continues. z is (B, D), the coarsest codes first;
    shapes are those of the levels' z.
    """

    def __init__(self, levels: Sequence[Bijection], shapes: Sequence[ImageShape]) -> None:
        super().__init__()
        self.levels, self.shapes = nn.ModuleList(levels), tuple(shapes)
        self.continuing = [shape[0] - shape[0] // 2 for shape in shapes[:-1]] + [0]
        self.sizes = [
            (shape[0] - kept) * math.prod(shape[1:])
            for shape, kept in zip(shapes, self.continuing, strict=True)
        ]

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        log_det, codes = zero_log_det(z), z.split(self.sizes[::-1], 1)[::-1]
        h = z[:, :0]
        for level, code, shape in reversed(
            list(zip(self.each(), codes, self.shapes, strict=True))
        ):
            whole = torch.cat([h.flatten(1), code], 1).reshape(-1, *shape)
            h, more = level(whole, context)
            log_det = log_det + more
        return h, log_det

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        log_det, codes = zero_log_det(x), []
        for level, continuing in zip(self.each(), self.continuing, strict=True):
            h, more = level.inverse(x, context)
            log_det = log_det + more
            x, code = h[:, :continuing], h[:, continuing:]
            codes.append(code.flatten(1))
        return torch.cat(codes[::-1], 1), log_det

    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        for level, continuing in zip(self.each(), self.continuing, strict=True):
            level.initialise_from_data(x, context)
            x = level.inverse(x, context)[0][:, :continuing]

    def each(self) -> list[Bijection]:
        return [cast(Bijection, level) for level in self.levels]
