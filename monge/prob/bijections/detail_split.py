r"""The details of an image given the image of half its size.

Squares of four pixels of x become their mean m and three differences (Haar 1910). If the small
image implies $a < m < a + l$, the mean is $m = a + l\,\sigma(v)$ with any number v, so every code
decodes to an image with the right means.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Bijection, Mapped, sum_log_det
from .multiscale import ImageShape


class HaarDetails(Bijection):
    """z (B, 4C, h, w) to x (B, C, 2h, 2w): v of each square, then three differences.

    The last entries of the context are a, flattened from the shape `small` (C, h, w).
    """

    haar: Tensor
    length: Tensor

    def __init__(self, small: ImageShape, length: Tensor) -> None:
        """length: (C,), l of each channel."""
        super().__init__()
        signs = torch.tensor([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]])
        self.small = small
        self.register_buffer("haar", signs.to(length.dtype) / 2, persistent=False)  # H H^T = I
        self.register_buffer("length", length.clone()[:, None, None], persistent=False)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        v, rest = z.unflatten(1, (-1, 4)).split([1, 3], 2)
        mean = self.lowest(context) + self.length * v[:, :, 0].sigmoid()  # (B, C, h, w)
        parts = torch.cat([2 * mean[:, :, None], rest], 2)
        squares = torch.einsum("ji,bcjhw->bcihw", self.haar, parts)
        return F.pixel_shuffle(squares.flatten(1, 2), 2), -self.log_det(v[:, :, 0])

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        squares = F.pixel_unshuffle(x, 2).unflatten(1, (-1, 4))  # (B, C, 4, h, w)
        parts = torch.einsum("ji,bcihw->bcjhw", self.haar, squares)
        share = (parts[:, :, 0] / 2 - self.lowest(context)) / self.length
        v = torch.logit(share, 10 * torch.finfo(x.dtype).eps)
        z = torch.cat([v[:, :, None], parts[:, :, 1:]], 2).flatten(1, 2)
        return z, self.log_det(v)

    def log_det(self, v: Tensor) -> Tensor:
        """log |det dz/dx| at v (B, C, h, w), to which the orthogonal H adds nothing."""
        factor = -math.log(2) - self.length.log()
        return sum_log_det(factor + F.softplus(v) + F.softplus(-v))

    def lowest(self, context: Tensor | None) -> Tensor:
        assert context is not None, "the context holds the small image"
        return context[:, -math.prod(self.small) :].reshape(-1, *self.small)
