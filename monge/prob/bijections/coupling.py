r"""Couplings: some entries are transformed by a network of the others.

$(x^A, x^B) = (h(z^A; \beta(z^B)), z^B)$ is undone by $(h^{-1}(x^A; \beta(x^B)), x^B)$ for any
network $\beta$ and any h that increases; its Jacobian is $[[\mathrm{diag}\, h', h'_\beta \beta'],
[0, I]]$, so that $\log|\det| = \sum_i \log h'_i$ (Dinh, Krueger & Bengio 2015).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Bijection, Mapped, sum_log_det
from .univariate import UnivariateMap

MAX_NET_INPUT = 10.0
"""Inputs of networks are clamped to this range, as they need not extrapolate far from the data."""


def entry_params(out: Tensor, count: int) -> Tensor:
    """Network outputs (B, count d, ...) as parameters of d entries, (B, d, ..., count): first the
    first parameter of all entries, then the second, so that each is contiguous."""
    return out.unflatten(1, (count, -1)).movedim(1, -1)


class CouplingBijection(Bijection):
    """Transforms one part of axis 1 by a univariate map with parameters from the other part.

    net: (the unchanged part, the context) to (B, transformed entries x count, ...). The first
    `size` entries are unchanged and the others transformed, or with `flip` the opposite.
    """

    def __init__(self, net: nn.Module, warp: UnivariateMap, size: int, flip: bool = False) -> None:
        super().__init__()
        self.net, self.warp, self.size, self.flip = net, warp, size, flip

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        stays, moves = self.parts(z)
        x, log_slope = self.warp(self.params(stays, context), moves)
        return self.join(stays, x), sum_log_det(log_slope)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        stays, moves = self.parts(x)
        z, log_slope = self.warp.inverse(self.params(stays, context), moves)
        return self.join(stays, z), sum_log_det(log_slope)

    def params(self, stays: Tensor, context: Tensor | None) -> Tensor:
        return entry_params(
            self.net(F.hardtanh(stays, -MAX_NET_INPUT, MAX_NET_INPUT), context), self.warp.count
        )

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.split([self.size, x.shape[1] - self.size], 1)
        return (second, first) if self.flip else (first, second)

    def join(self, stays: Tensor, moved: Tensor) -> Tensor:
        return torch.cat([moved, stays] if self.flip else [stays, moved], 1)


class CheckerboardCoupling(Bijection):
    """Transforms the pixels of one colour of a chess-board, all channels alike, by a univariate
    map with parameters from those of the other colour (Dinh, Sohl-Dickstein & Bengio 2017); images
    may have any size.

    net: (the image (B, C, H, W) with the transformed pixels 0, the context) to (B, C x count, H,
    W).
    """

    def __init__(self, net: nn.Module, warp: UnivariateMap, odd: bool = False) -> None:
        super().__init__()
        self.net, self.warp, self.odd = net, warp, odd

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        moves = self.moving(z)
        x, log_slope = self.warp(self.params(z, moves, context), z)
        return torch.where(moves, x, z), sum_log_det(torch.where(moves, log_slope, 0.0))

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        moves = self.moving(x)
        z, log_slope = self.warp.inverse(self.params(x, moves, context), x)
        return torch.where(moves, z, x), sum_log_det(torch.where(moves, log_slope, 0.0))

    def moving(self, x: Tensor) -> Tensor:
        """Which pixels are transformed, (H, W)."""
        rows, columns = (torch.arange(side, device=x.device) for side in x.shape[2:])
        return (rows[:, None] + columns) % 2 == int(self.odd)

    def params(self, x: Tensor, moves: Tensor, context: Tensor | None) -> Tensor:
        stays = F.hardtanh(torch.where(moves, 0.0, x), -MAX_NET_INPUT, MAX_NET_INPUT)
        return entry_params(self.net(stays, context), self.warp.count)


class ConditionalBijection(Bijection):
    """Transforms every entry by a univariate map with parameters from the context: N(0, I) becomes
    N(mu(c), sigma(c)^2) if the map is affine."""

    def __init__(self, net: nn.Module, warp: UnivariateMap) -> None:
        super().__init__()
        self.net, self.warp = net, warp

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        x, log_slope = self.warp(self.params(context), z)
        return x, sum_log_det(log_slope)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        z, log_slope = self.warp.inverse(self.params(context), x)
        return z, sum_log_det(log_slope)

    def params(self, context: Tensor | None) -> Tensor:
        return entry_params(self.net(context), self.warp.count)
