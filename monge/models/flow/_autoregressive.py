"""What autoregressive flows share: a stack of masked maps, each in the order against the last."""

from __future__ import annotations

import abc
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.config import Range
from ...core.model import Defaults
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import Masked
from ...prob.bijections.autoregressive import Autoregressive
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.elementwise import ActNorm
from ._base import Flow
from ._completion import CompletableFlow
from ._coupling import UnivariateMapConfig, default_components, small_data_recipe


class AutoregressiveFlow(CompletableFlow):
    """K masked maps with a scaling after each; every other one reads the entries backwards."""

    class Config(Flow.Config, UnivariateMapConfig):
        layers: Annotated[int, Range(1)] = 5
        """Masked maps."""
        net: Masked.Config = Masked.Config(width=256)
        """Network from the entries before an entry to its parameters."""

    config: Config

    def body(self, context: int) -> Bijection:
        dims = torch.arange(self.space.dims)
        parts: list[Bijection] = []
        for number in range(self.config.layers):
            places = dims.flip(0) if number % 2 else dims
            parts += [self.turned(self.layer(places, context)), ActNorm(len(dims))]
        return self.config.started(Compose(parts), len(dims))

    @abc.abstractmethod
    def turned(self, layer: Autoregressive) -> Bijection:
        """The map as it stands in the stack."""

    def layer(self, places: Tensor, context: int) -> Autoregressive:
        warp, dims = self.config.warp(), torch.arange(self.space.dims)
        net: Masked = self.config.net.build(
            dims, dims.repeat_interleave(warp.count), places[None], context
        )
        for last in filter(None, (net.out, net.direct)):
            nn.init.zeros_(last.weight)
        nn.init.zeros_(net.out.bias)
        return Autoregressive(net, warp, places)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Few rows, or many entries: affine maps; otherwise splines."""
        few = space.rows < 2000
        net = Masked.Config(width=64 if few else 256)
        config = cls.Config(
            layers=2 if few else 5,
            net=net,
            kind="affine" if few or space.dims > 64 else "spline",
            components=default_components(space),
        )
        return Defaults(config, small_data_recipe(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(layers=2, bins=4, net=Masked.Config(width=16, depth=1))
