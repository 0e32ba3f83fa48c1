"""Networks of couplings of pictures: they read what stays and what is given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...prob.bijections.scales import Shape


class Pixels(nn.Module):
    """Convolutions 3x3, 1x1 and 3x3 that also read what is given, and say 0 at first.

    Of the context, from its entry `skip` on, the first entries are a picture of the shape `view`,
    where there is one, which is shrunk to the size of what the network reads, and of which a pixel
    sees `look` x `look`; the rest holds for every pixel.
    """

    def __init__(self, inputs: int, width: int, outputs: int, context: int,
                 view: Shape | None = None, skip: int = 0, look: int = 3) -> None:
        super().__init__()
        self.view, self.seen = view, math.prod(view) if view else 0
        self.first = nn.Conv2d(inputs, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 1)
        self.out = nn.Conv2d(width, outputs, 3, padding=1)
        self.own, rest = slice(skip, skip + context), context - self.seen
        self.told = nn.Linear(rest, width, bias=False) if rest else None
        self.shown = nn.Conv2d(view[0], width, look, padding=look // 2,
                               bias=False) if view else None
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        # Channels last: half of the time of 3x3 convolutions that have few channels at one end.
        h = self.first(x.contiguous(memory_format=torch.channels_last))
        told = None if context is None else context[:, self.own]
        if self.shown is not None:
            h = h + self.shown(picture_of(told, self.view, x.shape[2:]))  # type: ignore[arg-type]
        if self.told is not None and told is not None:
            h = h + self.told(told[:, self.seen:])[:, :, None, None]
        return self.out(self.second(F.relu(h)).add_(h).relu_())


class Shown(nn.Module):
    """One convolution of what is shown, of the size of a level, that says 0 at first."""

    def __init__(self, view: Shape, size: tuple[int, int], outputs: int, look: int = 3) -> None:
        super().__init__()
        self.view, self.size = view, size
        self.out = nn.Conv2d(view[0], outputs, look, padding=look // 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, context: Tensor) -> Tensor:
        return self.out(picture_of(context, self.view, self.size))


def laid_out(picture: Tensor) -> Tensor:
    """A picture (B, C, H, W) as part of a context, the channels of a pixel side by side, which
    is how convolutions read it fastest."""
    return picture.permute(0, 2, 3, 1).flatten(1)


def picture_of(context: Tensor, view: Shape, size: Sequence[int]) -> Tensor:
    """The picture that the context begins with, shrunk to a size that divides its own,
    (B, C, H, W)."""
    channels, *sides = view
    shown = context[:, :math.prod(view)].reshape(-1, *sides, channels).permute(0, 3, 1, 2)
    times = (sides[0] // size[0], sides[1] // size[1])
    return shown if times == (1, 1) else F.avg_pool2d(shown, times)
