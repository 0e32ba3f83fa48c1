r"""Two flows side by side, the second reading the first at every depth (Pumarola et al. 2020).

Both are rungs, a coupling and a linear map each. On its way to noise the first shows what enters
each of its couplings; the coupling of the second at the same depth reads that.

Two flows side by side: a law of one thing given another, read at every depth (C-Flow)

A flow of a, and beside it one of b each of whose couplings reads what the first has made of a at
the same depth. Both are trained at once, on $-\log p(a) - \log p(b | a)$, by one pass of either.
Keep the code of b and give another a': what b had of its own passes to where a' leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from ...core.abilities import Given
from ...core.batch import Batch, broadcast_conditions
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.rng import keyed_uniform
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Conditions
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose, Inverse, Mapped, nothing
from ...prob.bijections.coupling import REACH, Coupling
from ...prob.bijections.elementwise import ActNorm
from ...prob.bijections.linear import Mix, Reshape, Squeeze
from ...prob.bijections.multiscale import Shape
from ...prob.bijections.univariate import Affine
from ...prob.distributions import log_normal
from ._base import Flow
from ._completion import TransferFlow
from ._coupling import CouplingStackConfig, mixing_layers, small_data_recipe, coupling_layer
from ._image import CouplingConvNet, count_halvings, flatten_channels_last
from ._units import data_units, value_limits


class CouplingLadder(Compose):
    """x = g_K(h_K(... g_1(h_1(z)))), h couplings and g linear maps, from z to x."""

    def __init__(self, rungs: Sequence[tuple[Bijection, Bijection]]) -> None:
        super().__init__([part for rung in rungs for part in rung])

    def shown(self, x: Tensor, context: Tensor) -> tuple[Tensor, Mapped]:
        """What enters each coupling and the context, coupling by coupling, (B, K (D + C)), and
        where x goes meanwhile."""
        found, total = [], nothing(x)
        for number, part in reversed(list(enumerate(self.each()))):
            if number % 2 == 0:
                row = flatten_channels_last(x) if x.ndim == 4 else x
                found += [context, row.clamp(-REACH, REACH)]
            x, log_det = part.inverse(x, context)
            total = total + log_det
        return torch.cat(found[::-1], 1), (x, total)


@dataclass(frozen=True)
class VectorRungs:
    """Rungs of vectors."""

    config: CouplingStackConfig

    def ladder(self, dims: int, context: int, blocks: bool) -> CouplingLadder:
        """With `blocks` each coupling has so many entries of the context of its own."""

        def rung(number: int) -> tuple[Bijection, Bijection]:
            skip = number * context if blocks else 0
            return (
                coupling_layer(self.config, dims, context, bool(number % 2), skip),
                Compose(mixing_layers(self.config, dims)),
            )

        return CouplingLadder([rung(number) for number in range(self.config.layers)])


@dataclass(frozen=True)
class ImageRungs:
    """Rungs of pictures, whose squares become channels once a level; nothing leaves on the way,
    so that both flows have all of a picture at every depth."""

    steps: int
    width: int
    levels: int

    def ladder(self, shape: Shape, context: int, other: int = 0) -> CouplingLadder:
        """other: channels of a picture of the same size that the context of each coupling, a
        block of its own, begins with."""
        rungs: list[tuple[Bijection, Bijection]] = []
        for level in range(self.levels, 0, -1):
            sides = (shape[1] >> level, shape[2] >> level)
            channels, view = shape[0] * 4**level, (other * 4**level, *sides) if other else None
            for step in range(self.steps):
                parts: list[Bijection] = [Mix(channels), ActNorm(channels)]
                if step == self.steps - 1:
                    parts += [Squeeze(), *self.flat(shape, level)]
                skip = len(rungs) * context if other else 0
                rungs.append(
                    (self.coupling(channels, context, view, skip, bool(step % 2)), Compose(parts))
                )
        return CouplingLadder(self.entered(rungs, shape))

    def coupling(
        self, channels: int, context: int, view: Shape | None, skip: int, flip: bool
    ) -> Bijection:
        size, warp = channels - channels // 2, Affine()
        stays, moves = (channels - size, size) if flip else (size, channels - size)
        net = CouplingConvNet(stays, self.width, moves * warp.count, context, view, skip)
        return Coupling(net, warp, size, flip)

    def flat(self, shape: Shape, level: int) -> list[Bijection]:
        """The way out of the finest level."""
        return [Inverse(Reshape(shape))] if level == 1 else []

    def entered(
        self, rungs: list[tuple[Bijection, Bijection]], shape: Shape
    ) -> list[tuple[Bijection, Bijection]]:
        """The way from codes (B, D) into the coarsest level."""
        sides = (shape[1] >> self.levels, shape[2] >> self.levels)
        coarse = Reshape((shape[0] * 4**self.levels, *sides))
        first, between = rungs[0]
        return [(Compose([coarse, first]), between), *rungs[1:]]


class CFlow(TransferFlow):
    """p(b | a) = N(z; 0, I) |det dz/db|, z = g^{-1}(b; h_1(a), ..., h_K(a)), h_k(a) being what a
    flow of a itself has made of a at depth k (Pumarola et al. 2020). Its first condition of two
    numbers or more is a; others are read by both flows."""

    events = {"real", "binary", "levels", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}
    is_predictor = True

    class Config(Flow.Config, CouplingStackConfig):
        tag = "model/flow.cflow"
        noise: Literal["uniform"] = "uniform"
        """What spreads whole numbers over their interval."""
        kind: Literal["additive", "affine", "spline"] = "affine"
        """How an entry of a vector moves; pixels move by affine maps."""
        levels: Annotated[int, Range(0)] = 0
        """Pictures of one size: resolutions; 0 takes as many as the size allows, two at most."""
        steps: Annotated[int, Range(1)] = 6
        """Pictures of one size: couplings of a level."""
        width: Annotated[int, Range(1)] = 64
        """Pictures of one size: channels of the hidden layers of a coupling."""
        other: Annotated[int, Range(0)] = 0
        """Pictures of one size: the same for the flow of a; 0 takes as many."""
        cycle: Annotated[float, Range(0)] = 0.0
        """Weight of the mean distance between b and the picture of the code 0 given a, in
        coordinates near one."""

    config: Config
    spreads: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        self.first = source_condition(space)
        rest = {name: part for name, part in space.given.items() if name != self.first}
        self.extra = Conditions(Space(kind="real", given=rest)).width
        super().__init__(config, space)
        given = space.given[self.first]
        self.conditions = Conditions(Space(kind="real", given=rest))
        self.other = Compose([self.ladder_of(given), data_units(given, config.margin)])
        self.register_buffer("spreads", ~value_limits(given)[0].isnan(), persistent=False)  # (D_a,)

    def inside(self, context: int) -> Bijection:
        return self.body(context)

    def body(self, context: int) -> Bijection:
        given = self.space.given[self.first]
        width = given.dims + self.extra
        if self.pictures:
            return self.pictures.ladder(self.space.shape, width, given.shape[0])  # type: ignore
        return VectorRungs(self.config).ladder(self.space.dims, width, blocks=True)

    def ladder_of(self, given: Space) -> Bijection:
        if self.pictures:
            pictures = replace(self.pictures, width=self.config.other or self.config.width)
            return pictures.ladder(given.shape, self.extra)  # type: ignore[arg-type]
        return VectorRungs(self.config).ladder(given.dims, self.extra, blocks=False)

    @property
    def pictures(self) -> ImageRungs | None:
        """How two pictures of one size that can be halved are read."""
        given, config = self.space.given[self.first], self.config
        both = self.space.is_picture and given.is_picture
        if not both or self.space.shape[1:] != given.shape[1:]:
            return None
        most = count_halvings(given.shape)  # type: ignore[arg-type]
        levels = min(config.levels or 2, most)
        return ImageRungs(config.steps, config.width, levels) if levels else None

    def context(self, given: Given, n: int) -> Tensor:
        return self.read(broadcast_conditions(given, self.space, n), n, None)[0]

    def read(self, ready: Given, n: int, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        """What each coupling reads of a, and log p(a), (n,), where a lies as noise says."""
        ladder, units = self.other.each()
        a, paid = units.inverse(self.placed(ready[self.first], uniform))
        told = self.conditions(ready, n)
        shown, (z, log_det) = ladder.shown(a, told)  # type: ignore[operator]
        return shown, log_normal(z) + log_det + paid

    def placed(self, part: Batch, uniform: Tensor | None) -> Tensor:
        """a (B, D_a) with whole numbers in the middle of their interval, or where noise says."""
        a = part.x.reshape(len(part), -1).to(self.low.dtype)
        return torch.where(self.spreads, a + (0.5 if uniform is None else uniform), a)

    @torch.no_grad()
    def initialise_from_data(self, batch: Batch) -> None:
        batch = self.thinned(batch)
        ready = broadcast_conditions(batch.given, self.space, len(batch))
        noise = keyed_uniform(batch.rows, (len(self.spreads),)).to(self.low)
        self.other.initialise_from_data(
            self.placed(ready[self.first], noise), self.conditions(ready, len(batch))
        )
        super().initialise_from_data(batch)

    def loss(self, batch: Batch) -> Losses:
        n, flat = len(batch), self.flat(batch)
        ready = broadcast_conditions(batch.given, self.space, n)
        noise = torch.rand(n, len(self.spreads)).to(self.low)
        shown, log_p = self.read(ready, n, noise)
        y, _ = self.spread(batch, torch.rand_like(flat) if self.whole else None)
        z, log_det = self.map.inverse(y, shown)
        losses = {"nll": -(log_normal(z) + log_det), "other": -log_p}
        if self.config.cycle:
            found, _ = self.inner(torch.zeros_like(flat), shown)
            wanted, _ = self.outer.inverse(self.middle(batch))
            losses["cycle"] = self.config.cycle * (found - wanted).abs().mean(1)
        return losses

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if space.dims < 2:
            return (
                "cflow moves some entries as the others say, but an event has one entry only; "
                "use maf, or predict.mlp"
            )
        if not source_condition(space):
            return (
                "cflow reads another picture or vector at every depth, and none is given; say "
                "--given FIELD, or write +edges after the name of pictures"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        large = space.dims > 256
        recipe = small_data_recipe(space)
        if space.is_picture:
            recipe = TrainConfig(
                lr=1e-3,
                batch_size=32 if large else 64,
                ema_decay=0.998,
                grad_clip=50.0,
                warmup=200,
                eval_every=1000 if large else 0,
                optimiser="adamw",
                weight_decay=0.01 if space.rows < 10_000 else 0.0,
            )
        net = MLP.Config(width=32 if space.rows < 2000 else 128, residual=True)
        return Defaults(
            cls.Config(
                net=net, layers=6, steps=6 if large else 4, other=32, width=64 if large else 48
            ),
            recipe,
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(layers=2, steps=2, width=8, net=MLP.Config(width=16, depth=1))


def source_condition(space: Space) -> str:
    """The condition that the first flow is of; none: an empty name."""
    return next(
        (name for name, part in space.given.items() if part.dims > 1 and part.kind != "label"), ""
    )
