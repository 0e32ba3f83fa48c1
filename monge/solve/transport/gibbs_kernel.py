r"""The Gibbs kernel $K_{ij} = e^{(f_i + g_j - c_{ij})/\varepsilon}$ of entropic transport.

A kernel computes its exponents, a block of rows at a time. For a cost matrix this is a sum; for
points with the squared cost one matrix product that includes the potentials; for points with
another cost that cost is evaluated. If memory allows, the exponentials are stored, otherwise each
block is recomputed when needed, so memory is bounded for any number of points.
"""

from __future__ import annotations

import abc
import mmap
from collections.abc import Iterator

import torch
from torch import Tensor

from .ground_cost import Cost, squared

MAX_STORED_ENTRIES = 2**28
"""Most numbers of a kernel that is stored (1 GB as float32); larger ones are recomputed."""
BLOCK_ENTRIES = 2**19
"""Numbers of a block, which stays in the processor's last cache for two products."""

MIN_EXPONENT = -60.0
"""Smallest exponent in single precision, whose range ends at -87."""


LARGE_BYTES = 2**25
"""Size from which memory comes afresh from the system each time it is asked for."""


def allocate(shape: torch.Size, like: Tensor) -> Tensor:
    """An uninitialised tensor. Where memory is fresh, the system maps it page by page when it is
    first written, which takes longer than the exponentials written there; pages of 2 MB instead
    of 4 kB, where the system has them, make that negligible."""
    size = shape.numel() * like.element_size()
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if size < LARGE_BYTES or like.device.type != "cpu" or advice is None:
        return like.new_empty(shape)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(advice)
    except OSError:  # a system without them
        return like.new_empty(shape)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)


class Kernel(abc.ABC):
    """Rows i of one cloud against columns j of another, for a batch (*S) of problems at once."""

    def __init__(self, shape: torch.Size, room: int = MAX_STORED_ENTRIES) -> None:
        self.shape = shape  # (*S, n, m)
        self.is_stored = shape.numel() <= room
        size = max(1, BLOCK_ENTRIES * shape[-2] // max(shape.numel(), 1))
        self.rows = [slice(i, min(i + size, shape[-2])) for i in range(0, shape[-2], size)]
        self.whole: Tensor | None = None

    @abc.abstractmethod
    def exponents(self, rows: slice) -> Tensor:
        """(f_i + g_j - c_ij) / epsilon of some rows, (*S, k, m), in newly allocated memory."""

    @abc.abstractmethod
    def costs(self, rows: slice) -> Tensor:
        """c_ij of some rows, (*S, k, m), differentiable in the points or costs."""

    def mean(self) -> float:
        """The mean of c over all pairs."""
        parts = [self.costs(rows).detach().sum().item() for rows in self.rows]
        return sum(parts) / max(self.shape.numel(), 1)

    def guess(self) -> tuple[Tensor, Tensor]:
        """Initial potentials, f (*S, n) and g (*S, m), with f_i + g_j <= c_ij."""
        like = self.costs(slice(0, 1)).detach()
        return like.new_zeros(self.shape[:-1]), like.new_zeros(*self.shape[:-2], self.shape[-1])

    @abc.abstractmethod
    def to(self, dtype: torch.dtype) -> Kernel:
        """The same kernel in another precision."""

    def take(self, f: Tensor, g: Tensor, epsilon: float) -> None:
        """Set the potentials f (*S, n) and g (*S, m) in the exponents."""
        self.f, self.g, self.epsilon = f, g, epsilon

    def set(self, f: Tensor, g: Tensor, epsilon: float) -> None:
        """Set the potentials of the kernel, and compute its blocks if they are stored."""
        self.take(f, g, epsilon)
        if self.is_stored:
            if self.whole is None:
                self.whole = allocate(self.shape, f)
            for rows in self.rows:
                torch.exp(self.held(rows), out=self.whole[..., rows, :])

    def held(self, rows: slice) -> Tensor:
        """Exponents clamped from below, so that their exponentials, or products of these, are not
        denormal numbers, which make processors a hundred times slower; the change is negligible
        beside sums near one."""
        block = self.exponents(rows)
        return block.clamp_min_(MIN_EXPONENT if block.dtype == torch.float32 else 8 * MIN_EXPONENT)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """K by blocks of rows, (*S, k, m) each."""
        for rows in self.rows:
            yield (
                rows,
                (self.held(rows).exp_() if self.whole is None else self.whole[..., rows, :]),
            )


class MatrixKernel(Kernel):
    """The kernel of a cost matrix (*S, n, m)."""

    def __init__(self, matrix: Tensor, room: int = MAX_STORED_ENTRIES) -> None:
        super().__init__(matrix.shape, room)
        self.matrix, self.plain = matrix, matrix.detach()

    def exponents(self, rows: slice) -> Tensor:
        rate = 1 / self.epsilon
        block = torch.sub((self.g * rate)[..., None, :], self.plain[..., rows, :], alpha=rate)
        return block.add_((self.f[..., rows] * rate)[..., None])

    def costs(self, rows: slice) -> Tensor:
        return self.matrix[..., rows, :]

    def to(self, dtype: torch.dtype) -> Kernel:
        return MatrixKernel(self.matrix.to(dtype))


class PointKernel(Kernel):
    """The kernel of points x (*S, n, d) and y (*S, m, d) with a cost."""

    def __init__(self, x: Tensor, y: Tensor, cost: Cost, room: int = MAX_STORED_ENTRIES) -> None:
        super().__init__(torch.Size([*x.shape[:-1], y.shape[-2]]), room)
        self.x, self.y, self.cost, self.room = x, y, cost, room
        centre = y.detach().mean(-2, keepdim=True)
        self.near = x.detach() - centre, y.detach() - centre
        self.norms = tuple(points.square().sum(-1) for points in self.near)

    def take(self, f: Tensor, g: Tensor, epsilon: float) -> None:
        super().take(f, g, epsilon)
        if self.cost is squared:
            (x, y), (norm_x, norm_y) = self.near, self.norms
            rate, ones = 1 / epsilon, torch.ones_like(f)
            level = [(f - norm_x) * rate, ones]  # |x - y|^2 = |x|^2 + |y|^2 - 2 x y
            self.left = torch.cat([x * (2 * rate), torch.stack(level, -1)], -1)
            above = [torch.ones_like(g), (g - norm_y) * rate]
            self.right = torch.cat([y, torch.stack(above, -1)], -1).mT

    def exponents(self, rows: slice) -> Tensor:
        if self.cost is squared:
            return self.left[..., rows, :] @ self.right
        block = self.cost(self.x.detach()[..., rows, :], self.y.detach())
        reach = self.f[..., rows, None] + self.g[..., None, :]
        return torch.sub(reach, block).mul_(1 / self.epsilon)

    def costs(self, rows: slice) -> Tensor:
        return self.cost(self.x[..., rows, :], self.y)

    def guess(self) -> tuple[Tensor, Tensor]:
        """The potentials if the clouds differed by a shift and a scale s: the rest of the cost is
        then |sqrt(s) x - y / sqrt(s)|^2 for centred x and y."""
        if self.cost is not squared:
            return super().guess()
        x, y = self.near  # y has mean zero
        shift = x.mean(-2, keepdim=True)
        x = x - shift
        norm_x, norm_y = x.square().sum(-1), self.norms[1]
        wide, tall = (norm.mean(-1, keepdim=True) for norm in (norm_x, norm_y))
        s = torch.where((wide > 0) & (tall > 0), (tall / wide).sqrt(), 1.0)
        f = 2 * (x * shift).sum(-1) + shift.square().sum(-1) + (1 - s) * norm_x
        return f, (1 - 1 / s) * norm_y - 2 * (y * shift).sum(-1)

    def mean(self) -> float:
        if self.cost is not squared:
            return super().mean()
        x, y = self.norms  # y has mean zero, and so have the products
        return float((x.mean(-1) + y.mean(-1)).mean())

    def to(self, dtype: torch.dtype) -> Kernel:
        return PointKernel(self.x.to(dtype), self.y.to(dtype), self.cost, self.room)
