"""What laws of pictures in raster order share: one pass scores, a scan of cached rows draws.

Pixels come row by row and the colours of a pixel in their order. A vector is a picture of one row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import Stepping
from ...nn.autoregressive.pixel import Raster
from ._base import Ordered

ROOM = 1 << 22
"""Numbers that a layer may hold at once where no gradient is wanted."""
LARGE = 256
"""Pixels from which on a picture asks for a larger network."""
FEW = 10_000
"""Rows below which a network learns them by heart unless it is held back."""


class Pictures(Ordered):
    """A law whose conditionals all come from one raster network, the `net` of its config."""

    events = {"real", "binary", "levels"}

    class Config(Ordered.Config):
        net: Raster.Config
        """Network that reads the pixels before an entry."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        self.shape = colours, rows, columns = picture(space)
        pixels = torch.arange(rows * columns)
        places = colours * pixels + torch.arange(colours)[:, None]  # (C, H W)
        super().__init__(config, space, places.reshape(1, -1))
        self.net: Raster = config.net.build(
            self.shape, self.head.width // space.dims, self.conditions.width
        )
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
    def unsupported_reason(cls, space: Space) -> str | None:
        if len(space.shape) <= 3:
            return None
        return (
            f"{cls.__name__.lower()} needs pictures (colours, rows, columns), got {space}; "
            "reshape them"
        )


def picture(space: Space) -> tuple[int, int, int]:
    """The shape of an event as colours, rows and columns."""
    return (*(1,) * (3 - len(space.shape)), *space.shape)  # type: ignore[return-value]
