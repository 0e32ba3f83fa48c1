"""Coupling layers of vectors: their network, univariate maps, stacks and training config."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.coupling import CouplingBijection
from ...prob.bijections.elementwise import ActNorm
from ...prob.bijections.linear import LULinear, Permutation
from ...prob.bijections.rosenblatt import MixtureInitialised, Rosenblatt
from ...prob.bijections.spline import SplineMap
from ...prob.bijections.univariate import AdditiveMap, AffineMap, UnivariateMap
from ._tables import cell_kind


class CouplingNet(nn.Module):
    """An MLP of [x; c] whose outputs are 0 at initialisation; c is the part of the context that
    starts at `skip`."""

    def __init__(
        self, config: MLP.Config, inputs: int, context: int, outputs: int, skip: int = 0
    ) -> None:
        super().__init__()
        self.reads, self.own = bool(context), slice(skip, skip + context)
        self.net: MLP = config.build(inputs + context, outputs)
        nn.init.zeros_(self.net.out.weight)
        nn.init.zeros_(self.net.out.bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None or not self.reads:
            return self.net(x)
        return self.net(torch.cat([x, context[:, self.own]], 1))


class UnivariateMapConfig(BaseConfig):
    """Fields of a flow that choose the univariate map of an entry."""

    kind: Literal["additive", "affine", "spline"] = "spline"
    """Map of an entry: x = z + t (NICE), t + e^s z (RealNVP), or a monotone spline."""
    bins: Annotated[int, Range(2, 256)] = 8
    """Bins of a spline."""
    reach: Annotated[float, Range(0, open=True)] = 5.0
    """A spline transforms numbers between -reach and reach, and is the identity beyond."""
    components: Annotated[int, Range(0)] = 0
    """Maximum components of a Gaussian mixture that initialises the flow, fitted before the first
    step; 0 starts at N(0, I) in standardised coordinates."""

    def with_mixture(self, learned: Bijection, dims: int) -> Bijection:
        """The map around its initial Gaussian mixture, if it has one."""
        return (
            MixtureInitialised(learned, Rosenblatt(dims, self.components))
            if self.components
            else learned
        )

    def univariate_map(self) -> UnivariateMap:
        if self.kind == "additive":
            return AdditiveMap()
        return AffineMap() if self.kind == "affine" else SplineMap(self.bins, self.reach)


def default_components(space: Space) -> int:
    """Default components of the initial mixture: few rows of numbers are better described by a
    mixture than by an untrained network. Names and empty cells are not: the first layer of a table
    learns them faster than it unlearns a mixture (titanic in a minute: -12.5 and -14.3)."""
    plain = all(cell_kind(part) == "plain" for part in space.columns)
    numbers = space.kind in ("real", "columns", "counts") and plain and len(space.shape) == 1
    return (
        30
        if numbers and not space.given and 30 <= space.rows < 2000 and (2 <= space.dims <= 64)
        else 0
    )


def small_data_train_config(space: Space) -> TrainConfig:
    """The training config by number of rows: few rows need weight decay, small batches and, around
    a fitted mixture, a small learning rate; many rows of few entries allow a large one."""
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
    lr = 3e-3 if space.dims <= 8 and not few else 1e-3
    return TrainConfig(
        optimiser="adamw",
        lr=lr,
        weight_decay=0.1 if few else 1e-4,
        grad_clip=5.0,
        batch_size=64 if few else 256,
        ema_decay=0.99 if few else 0.998,
    )


class CouplingStackConfig(UnivariateMapConfig):
    """Fields of a flow that is a stack of coupling layers."""

    layers: Annotated[int, Range(1, MAX_LAYERS)] = 8
    """Number of couplings; the half that is transformed alternates."""
    mix: Literal["permute", "linear"] = "linear"
    """Map between couplings: a random permutation, or a learned matrix."""
    net: MLP.Config = MLP.Config(width=128, residual=True)
    """Network from the unchanged half to the parameters of the transformed half."""


def coupling_stack(config: CouplingStackConfig, dims: int, context: int) -> Compose:
    """The map from z to coordinates (B, D), reading `context` numbers of conditions."""
    parts: list[Bijection] = []
    for number in range(config.layers):
        parts += [
            coupling_layer(config, dims, context, bool(number % 2)),
            *mixing_layers(config, dims),
        ]
    return Compose(parts)


def coupling_layer(
    config: CouplingStackConfig, dims: int, context: int, flip: bool, skip: int = 0
) -> CouplingBijection:
    """One coupling, whose network reads the context from entry `skip` on."""
    warp, size = config.univariate_map(), dims // 2
    stays, moves = (dims - size, size) if flip else (size, dims - size)
    return CouplingBijection(
        CouplingNet(config.net, stays, context, moves * warp.count, skip), warp, size, flip
    )


def mixing_layers(config: CouplingStackConfig, dims: int) -> list[Bijection]:
    mix = (
        LULinear(dims, rotate=False)
        if config.mix == "linear"
        else Permutation(torch.randperm(dims) if dims > 2 else torch.arange(dims))
    )
    return [mix, ActNorm(dims)]
