"""Couplings of vectors, one after another, as fields of a flow and as the map they make."""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from ...core.config import Range
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.coupling import Coupling
from ...prob.bijections.fixed import ActNorm
from ...prob.bijections.linear import Mix, Permutation
from ._nets import Reader
from ._warps import Warping


class Stacking(Warping):
    layers: Annotated[int, Range(1)] = 8
    """Couplings; which half moves alternates."""
    mix: Literal["permute", "linear"] = "linear"
    """What stands between them: a random permutation, or a learned matrix."""
    net: MLP.Config = MLP.Config(width=128, residual=True)
    """Network from the entries that stay to the parameters of those that move."""


def stack(config: Stacking, dims: int, context: int) -> Compose:
    """From z to coordinates (B, D), reading so many conditions."""
    parts: list[Bijection] = []
    for number in range(config.layers):
        parts += [layer(config, dims, context, bool(number % 2)), *between(config, dims)]
    return Compose(parts)


def layer(config: Stacking, dims: int, context: int, flip: bool, skip: int = 0) -> Coupling:
    """One coupling, whose network reads the conditions from the one at `skip` on."""
    warp, size = config.warp(), dims // 2
    stays, moves = (dims - size, size) if flip else (size, dims - size)
    return Coupling(Reader(config.net, stays, context, moves * warp.count, skip), warp, size, flip)


def between(config: Stacking, dims: int) -> list[Bijection]:
    mix = Mix(dims, rotate=False) if config.mix == "linear" else Permutation(
        torch.randperm(dims) if dims > 2 else torch.arange(dims))
    return [mix, ActNorm(dims)]
