r"""Linear maps between couplings: permutations, squeezing, and a learned matrix of axis 1.

A map $z = W x$ at each of H W positions has $\log|\det| = H W \log|\det W|$; with
$W = P L (U + \mathrm{diag}\, s)$ this is $H W \sum \log |s|$ (Kingma & Dhariwal 2018).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.model import is_exporting
from .base import Bijection, Mapped, zero_log_det


class Permutation(Bijection):
    """x = z in another order along axis 1: entry i of x is entry order[i] of z."""

    order: Tensor
    back: Tensor

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order)
        self.register_buffer("back", order.argsort())

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        return PermuteAxis.apply(z, self.order, self.back), zero_log_det(z)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        return PermuteAxis.apply(x, self.back, self.order), zero_log_det(x)


class PermuteAxis(torch.autograd.Function):
    """Entries of axis 1 in another order; the gradient only restores the first order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(order, back)
        return x.index_select(1, order)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        order, back = ctx.saved_tensors
        return PermuteAxis.apply(slope, back, order), None, None


class Squeeze(Bijection):
    """Squares of four pixels of x (B, C, 2H, 2W) are four channels of z (B, 4C, H, W)."""

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        return F.pixel_shuffle(z, 2), zero_log_det(z)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        return F.pixel_unshuffle(x, 2), zero_log_det(x)


class Reshape(Bijection):
    """z (B, D) as x (B, *shape)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        return z.reshape(-1, *self.shape), zero_log_det(z)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        return x.flatten(1), zero_log_det(x)


class LULinear(Bijection):
    """z = W x along axis 1 with W = P L (U + diag s), initialised as a rotation, or, without
    `rotate`, as P alone and then so that the entries of z (B, D) are uncorrelated over training
    rows: a flow that is linear at initialisation starts as the Gaussian of the data."""

    order: Tensor
    sign: Tensor

    def __init__(self, size: int, rotate: bool = True) -> None:
        super().__init__()
        self.rotate = rotate
        rotation = torch.linalg.qr(torch.randn(size, size))[0]
        start = rotation if rotate else torch.eye(size)[torch.randperm(size)]
        places, lower, upper = torch.linalg.lu(start)
        self.register_buffer("order", places.argmax(1))  # P y = y[order]
        self.register_buffer("sign", upper.diagonal().sign())
        self.lower = nn.Parameter(lower.tril(-1))
        self.upper = nn.Parameter(upper.triu(1))
        self.log_scale = nn.Parameter(upper.diagonal().abs().log())

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        (lower, upper), back = self.factors(), self.order.argsort()
        few = self.is_small_batch(z)
        right = z[:, back].T if few else torch.eye(len(upper)).to(z)[back]
        half = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
        found = torch.linalg.solve_triangular(upper, half, upper=True)
        return found.T if few else apply_matrix(found, z), -self.log_det(z)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        lower, upper = self.factors()
        if self.is_small_batch(x):
            return F.linear(F.linear(x, upper), lower)[:, self.order], self.log_det(x)
        return apply_matrix((lower @ upper)[self.order], x), self.log_det(x)

    def is_small_batch(self, x: Tensor) -> bool:
        """Whether applying the factors one by one is cheaper than computing their product; an
        exported map does not depend on the number of rows."""
        return not is_exporting() and x.ndim == 2 and len(x) < x.shape[1]

    @torch.no_grad()
    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        if self.rotate or x.ndim > 2 or len(x) <= x.shape[1]:
            return
        cov = torch.cov(x.T.double()).reshape(len(self.lower), -1)
        share = x.shape[1] / (x.shape[1] + len(x))  # correlations of few rows are shrunk
        alone = cov.diagonal().clone()
        alone = torch.where(alone > 1e-4, alone, 1.0)  # constant entries are not scaled
        cov.diagonal().copy_(alone)
        cov = torch.lerp(cov, alone.diag(), max(share, 0.01))
        white = torch.linalg.inv(torch.linalg.cholesky(cov))  # W with W cov W^T = I
        scale = white.diagonal()
        self.lower.copy_((white / scale).tril(-1))
        self.upper.zero_()
        self.sign.fill_(1.0)
        self.log_scale.copy_(scale.log())

    def factors(self) -> tuple[Tensor, Tensor]:
        """L, with ones on its diagonal, and U + diag s."""
        lower = self.lower.tril(-1) + torch.eye(len(self.lower)).to(self.lower)
        return lower, self.upper.triu(1) + (self.sign * self.log_scale.exp()).diag()

    def log_det(self, x: Tensor) -> Tensor:
        places = math.prod(x.shape[2:])
        return (places * self.log_scale.sum()).expand(len(x))


def apply_matrix(matrix: Tensor, x: Tensor) -> Tensor:
    """The matrix times x along axis 1."""
    if x.ndim == 2:
        return F.linear(x, matrix)
    # One product per row: with so few channels a convolution takes five times as long.
    return torch.bmm(matrix.expand(len(x), -1, -1), x.flatten(2)).view_as(x)
