"""PixelCNN: pictures pixel by pixel, exact, with masked or gated convolutions

Every conditional comes from one pass of a convolutional network that sees only what precedes its
entry in raster order (van den Oord, Kalchbrenner & Kavukcuoglu 2016; van den Oord et al. 2016).
Drawing keeps what each layer made of each pixel, so that a picture costs about one pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.model import Suit
from ...core.recipe import Recipe
from ...core.space import Space
from ...nn.masked import Stepping
from ...nn.raster import Raster
from ...nn.stacks import Gated
from ._base import Ordered

ROOM = 1 << 22
"""Numbers that a layer may hold at once where no gradient is wanted."""
LARGE = 256
"""Pixels from which on a picture asks for a deeper network."""
FEW = 10_000
"""Rows below which a network learns them by heart unless it is held back."""


class PixelCNN(Ordered):
    r"""$p(x | c) = \prod_i p(x_{i,R} | x_{<i}, c)\,p(x_{i,G} | x_{i,R}, x_{<i}, c)\,
    p(x_{i,B} | x_{i,R}, x_{i,G}, x_{<i}, c)$ over the pixels i, row by row.

    Conditions are added to what enters every gate. A picture is completed where what is seen comes
    first, its upper rows say. A vector is a picture of one row.
    """

    events = {"real", "binary", "levels"}

    class Config(Ordered.Config):
        net: Raster.Config = Gated.Config()
        """Network: gated with two stacks, or one plain masked stack, which has a blind spot."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        self.shape = colours, rows, columns = picture(space)
        pixels = torch.arange(rows * columns)
        places = colours * pixels + torch.arange(colours)[:, None]  # (C, H W)
        super().__init__(config, space, places.reshape(1, -1))
        self.net: Raster = config.net.build(self.shape, self.head.width // space.dims,
                                            self.conditions.width)
        self.settle()

    def settle(self) -> None:
        self.net.settle(self.head.start().reshape(*self.shape, -1))

    def outputs(self, batch: Batch, member: int) -> Tensor:
        x = self.features(batch).reshape(-1, *self.shape)  # (B, C, H, W)
        context = self.context(batch)
        size = len(x) if torch.is_grad_enabled() else self.piece
        parts = [self.net(*part) for part in zip(x.split(size), context.split(size), strict=True)]
        out = torch.cat(parts) if len(parts) > 1 else parts[0]  # (B, C P_i, H, W)
        return out.unflatten(1, (self.shape[0], -1)).permute(0, 1, 3, 4, 2).flatten(1)

    @property
    def piece(self) -> int:
        """Rows of a pass without gradients, which stays near the processor then."""
        return max(1, ROOM // (self.space.dims * self.config.net.width))

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], Stepping]:
        return self.net.stepper(cached)

    def blind_spot_map(self, row: int, column: int) -> Tensor:
        """Which earlier pixels (H, W) the law of a pixel does not depend on."""
        _, rows, columns = self.shape
        before = torch.arange(rows * columns).reshape(rows, columns) < row * columns + column
        return before & ~self.net.support(row, column).any(0).cpu()

    @classmethod
    def refuses(cls, space: Space) -> str | None:
        if len(space.shape) <= 3:
            return None
        return f"pixelcnn needs pictures (colours, rows, columns), got {space}; reshape them"

    @classmethod
    def suit(cls, space: Space) -> Suit:
        """Wide kernels and few layers: on one processor a long reach is worth more than depth."""
        colours, rows, columns = picture(space)
        large, few = rows * columns >= LARGE, 0 < space.rows < FEW
        net = Gated.Config(width=32 if colours == 1 else 48, depth=5 if large else 3, kernel=5,
                           dropout=0.2 if few else 0.0)
        recipe = Recipe(optimiser="adamw", decay=0.1 if few else 0.0, rate=3e-3, batch=16,
                        average=0.998, check=2000 if large and not few else 0)
        return Suit(cls.Config(net=net), recipe)

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(net=Gated.Config(width=8, depth=2, first=3), components=2)


def picture(space: Space) -> tuple[int, int, int]:
    """The shape of an event as colours, rows and columns."""
    return (*(1,) * (3 - len(space.shape)), *space.shape)  # type: ignore[return-value]
