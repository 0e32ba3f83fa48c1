"""Networks of couplings: they read what stays and what is given, and begin by saying nothing.

The choice of what moves an entry, as fields of a flow.

Couplings of vectors, one after another, as fields of a flow and as the map they make.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.coupling import Coupling
from ...prob.bijections.elementwise import ActNorm
from ...prob.bijections.linear import Mix, Permutation
from ...prob.bijections.rosenblatt import Rosenblatt, Started
from ...prob.bijections.spline import Spline
from ...prob.bijections.univariate import Additive, Affine, UnivariateMap


class CouplingNet(nn.Module):
    """A perceptron of [x; c] whose outputs are 0 at first; c is the part of the context that
    begins at `skip`."""

    def __init__(
        self, config: MLP.Config, inputs: int, context: int, outputs: int, skip: int = 0
    ) -> None:
        super().__init__()
        self.reads, self.own = bool(context), slice(skip, skip + context)
        self.net: MLP = config.build(inputs + context, outputs)
        nn.init.zeros_(self.net.out.weight)
        nn.init.zeros_(self.net.out.bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        told = context if self.reads else None
        return self.net(x if told is None else torch.cat([x, told[:, self.own]], 1))


class UnivariateMapConfig(BaseConfig):
    kind: Literal["additive", "affine", "spline"] = "spline"
    """How an entry moves: x = z + t (NICE), t + e^s z (RealNVP), or along a monotone spline."""
    bins: Annotated[int, Range(2, 256)] = 8
    """Pieces of a spline."""
    reach: Annotated[float, Range(0, open=True)] = 5.0
    """A spline bends numbers between -reach and reach; beyond, it leaves them as they are."""

    components: Annotated[int, Range(0)] = 0
    """Components, at most, of a mixture of Gaussians that the flow begins as, fitted before the
    first step; 0 begins as N(0, I) in coordinates near one."""

    def started(self, learned: Bijection, dims: int) -> Bijection:
        """The map with what it begins as, where that is a mixture."""
        return Started(learned, Rosenblatt(dims, self.components)) if self.components else learned

    def warp(self) -> UnivariateMap:
        if self.kind == "additive":
            return Additive()
        return Affine() if self.kind == "affine" else Spline(self.bins, self.reach)


def default_components(space: Space) -> int:
    """Components that a flow of so many rows and entries begins as: a few rows of numbers that
    have no picture are better told by a mixture than by any network at first."""
    numbers = space.kind in ("real", "columns", "counts") and len(space.shape) == 1
    return (
        30
        if numbers and not space.given and 30 <= space.rows < 2000 and (2 <= space.dims <= 64)
        else 0
    )


def small_data_recipe(space: Space) -> TrainConfig:
    """A recipe for so many rows: few ask for weight decay, small batches and, around a mixture
    that is fitted already, small steps; a plane of many rows bears long steps."""
    few = space.rows < 2000
    if default_components(space):
        return TrainConfig(
            optimiser="adamw",
            lr=1e-4 if space.rows < 300 else 1e-3,
            weight_decay=0.1,
            grad_clip=5.0,
            batch_size=64,
            ema_decay=0.99,
        )
    rate = 3e-3 if space.dims <= 8 and not few else 1e-3
    return TrainConfig(
        optimiser="adamw",
        lr=rate,
        weight_decay=0.1 if few else 1e-4,
        grad_clip=5.0,
        batch_size=64 if few else 256,
        ema_decay=0.99 if few else 0.998,
    )


class CouplingStackConfig(UnivariateMapConfig):
    layers: Annotated[int, Range(1)] = 8
    """Couplings; which half moves alternates."""
    mix: Literal["permute", "linear"] = "linear"
    """What stands between them: a random permutation, or a learned matrix."""
    net: MLP.Config = MLP.Config(width=128, residual=True)
    """Network from the entries that stay to the parameters of those that move."""


def coupling_stack(config: CouplingStackConfig, dims: int, context: int) -> Compose:
    """From z to coordinates (B, D), reading so many conditions."""
    parts: list[Bijection] = []
    for number in range(config.layers):
        parts += [coupling_layer(config, dims, context, bool(number % 2)), *mixing_layers(config, dims)]
    return Compose(parts)


def coupling_layer(config: CouplingStackConfig, dims: int, context: int, flip: bool, skip: int = 0) -> Coupling:
    """One coupling, whose network reads the conditions from the one at `skip` on."""
    warp, size = config.warp(), dims // 2
    stays, moves = (dims - size, size) if flip else (size, dims - size)
    return Coupling(CouplingNet(config.net, stays, context, moves * warp.count, skip), warp, size, flip)


def mixing_layers(config: CouplingStackConfig, dims: int) -> list[Bijection]:
    mix = (
        Mix(dims, rotate=False)
        if config.mix == "linear"
        else Permutation(torch.randperm(dims) if dims > 2 else torch.arange(dims))
    )
    return [mix, ActNorm(dims)]
