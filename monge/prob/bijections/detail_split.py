r"""The details of an image given a smaller one.

Squares of k x k pixels of x become their mean m and $k^2 - 1$ differences, by an orthogonal map
(for k = 2 that of Haar 1910, else the cosine transform). If the small image implies
$a < m < a + l$, the mean is $m = a + l\,\sigma(v)$ with any number v, so every code decodes to an
image with the right means. If it only tells about m, $m = a + v / k$.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Bijection, Mapped, sum_log_det, zero_log_det
from .multiscale import ImageShape


class SquareDetails(Bijection):
    """z (B, k^2 C, h, w) to x (B, C, k h, k w): v of each square, then the differences.

    The last entries of the context are a, flattened from the shape `small` (C, h, w).
    """

    haar: Tensor
    length: Tensor

    def __init__(self, small: ImageShape, length: Tensor, factor: int = 2) -> None:
        """length: (C,), l of each channel; infinite where the small image bounds no mean."""
        super().__init__()
        self.small, self.factor = small, factor
        self.bounded = bool(length.isfinite().all())
        # H H^T = I, which float32 would not hold to float64
        self.register_buffer("haar", square_rotation(factor), persistent=False)
        self.register_buffer("length", length.clone()[:, None, None], persistent=False)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        count = self.factor**2
        v, rest = z.unflatten(1, (-1, count)).split([1, count - 1], 2)
        v = v[:, :, 0]
        above = self.length * v.sigmoid() if self.bounded else v / self.factor
        mean = self.lowest(context) + above  # (B, C, h, w)
        parts = torch.cat([self.factor * mean[:, :, None], rest], 2)
        squares = torch.einsum("ji,bcjhw->bcihw", self.haar.to(parts), parts)
        return F.pixel_shuffle(squares.flatten(1, 2), self.factor), -self.log_det(v)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        squares = F.pixel_unshuffle(x, self.factor).unflatten(1, (-1, self.factor**2))
        parts = torch.einsum(
            "ji,bcihw->bcjhw", self.haar.to(squares), squares
        )  # (B, C, k^2, h, w)
        above = parts[:, :, 0] / self.factor - self.lowest(context)
        if self.bounded:
            v = torch.logit(above / self.length, 10 * torch.finfo(x.dtype).eps)
        else:
            v = self.factor * above
        z = torch.cat([v[:, :, None], parts[:, :, 1:]], 2).flatten(1, 2)
        return z, self.log_det(v)

    def log_det(self, v: Tensor) -> Tensor:
        """log |det dz/dx| at v (B, C, h, w), to which the orthogonal H adds nothing."""
        if not self.bounded:
            return zero_log_det(v)
        factor = -math.log(self.factor) - self.length.log()
        return sum_log_det(factor + F.softplus(v) + F.softplus(-v))

    def lowest(self, context: Tensor | None) -> Tensor:
        assert context is not None, "the context holds the small image"
        return context[:, -math.prod(self.small) :].reshape(-1, *self.small)


def square_rotation(factor: int) -> Tensor:
    """An orthogonal matrix (k^2, k^2) of the pixels of a square, row by row: its first row is
    1 / k."""
    if factor == 2:
        signs = torch.tensor([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]])
        return signs.double() / 2
    place = torch.arange(factor, dtype=torch.float64)
    waves = torch.cos(math.pi / factor * place[:, None] * (place + 0.5)) * (2 / factor) ** 0.5
    waves[0] = factor**-0.5
    return torch.kron(waves, waves)
