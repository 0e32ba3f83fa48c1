"""Layers with random networks, on which identities of invertible maps are examined."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..nn.autoregressive.masked_mlp import MaskedMLP
from ..nn.mlp import MLP
from ..prob.bijections.autoregressive import AutoregressiveBijection
from ..prob.bijections.base import Bijection
from ..prob.bijections.coupling import CouplingBijection
from ..prob.bijections.univariate import UnivariateMap

DIMS = 5
"""Entries that layers are examined on."""


class Blocks(nn.Module):
    """The network of a coupling as that of a masked map: zeros for the entries that stay."""

    def __init__(self, layer: CouplingBijection) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        size = self.layer.size
        moving = self.layer.params(x[:, :size], None)  # (B, d, count)
        still = x.new_zeros(len(x), size, self.layer.warp.count)
        return torch.cat([still, moving], 1).flatten(1)


class RandomNet(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.net(x)


def coupling(warp: UnivariateMap, flip: bool) -> CouplingBijection:
    """A coupling of DIMS entries with a random network."""
    size = DIMS // 2
    stays, moves = (DIMS - size, size) if flip else (size, DIMS - size)
    net = MLP.Config(width=8, depth=1).build(stays, moves * warp.count)
    return CouplingBijection(RandomNet(net), warp, size, flip).double()


def autoregressive(warp: UnivariateMap, back: bool = False) -> AutoregressiveBijection:
    """A masked map of DIMS entries with a random network, in one order or against it."""
    entries = torch.arange(DIMS)
    places = entries.flip(0) if back else entries
    net = MaskedMLP.Config(width=16).build(
        entries, entries.repeat_interleave(warp.count), places[None]
    )
    return AutoregressiveBijection(net, warp, places).double()


def shake(layer: Bijection) -> None:
    for parameter in layer.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))


def log_base(z: Tensor) -> Tensor:
    z = z.flatten(1)
    return -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)
