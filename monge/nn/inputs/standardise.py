"""Coordinates shared by generators and discriminators: numbers near one."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from ...core.space import Space

ATANH_MARGIN = 0.99
"""Share of the range of levels that a network reaches with moderate outputs."""
MANY_LEVELS = 128
"""Number of levels from which they are so close that they need no noise."""


class Coordinates(nn.Module):
    """y = (x + u - shift) / scale, the coordinates of generators and critics.

    Reals are standardised and u = 0. Few levels fill [-1, 1] with u uniform in [0, 1), or u = 1/2
    without noise; rounding down inverts this. Of many levels the lowest is -1, the highest 1 and
    u = 0; rounding inverts this. So tanh meets an end by any large output, where many entries may
    lie, such as the background of a picture; inside the range it would have to hit one level.
    """

    shift: Tensor
    scale: Tensor

    choices = 0
    """How many numbers of z the network does not read."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.width = self.outputs = space.dims
        self.levels = space.size if space.kind == "levels" else 0
        self.is_noisy = 0 < self.levels < MANY_LEVELS
        half = torch.full((space.dims,), (self.levels if self.is_noisy else self.levels - 1) / 2)
        shift, scale = (
            (half, half)
            if self.levels
            else (space.spread("mean").flatten(), space.spread("scale").flatten())
        )
        self.register_buffer("shift", shift.clone(), persistent=False)
        self.register_buffer("scale", scale.clone(), persistent=False)

    def fit(self, x: Tensor) -> None:
        """The statistics of the space are all that is needed."""

    def to_network(self, x: Tensor, dequantise: bool) -> Tensor:  # (B, *event) -> (B, D)
        x = x.reshape(len(x), -1)
        if self.is_noisy:
            x = x + (torch.rand_like(x) if dequantise else 0.5)
        return (x - self.shift) / self.scale

    def bound(self, y: Tensor) -> Tensor:
        """Network output mapped into the range of the data."""
        return torch.tanh(y) if self.levels else y

    def from_network(self, out: Tensor, noise: Tensor) -> Tensor:
        """Points (B, D) of network outputs; there is nothing to choose by the noise (B, 0)."""
        return self.bound(out)

    def unbound(self, y: Tensor) -> Tensor:
        """The inverse of `bound`; the ends of the range are moved slightly inside."""
        return torch.atanh(ATANH_MARGIN * y) if self.levels else y

    def places(self, n: int, generator: Generator | None) -> Tensor | None:
        """Nothing: points determine the data."""
        return None

    def to_data(self, y: Tensor, places: Tensor | None = None) -> Tensor:
        """x in the support of the data, (B, D)."""
        x = self.shift + self.scale * y
        if not self.levels:
            return x
        return (x.floor() if self.is_noisy else x.round()).clamp(0, self.levels - 1)
