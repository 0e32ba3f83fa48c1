"""Base of autoregressive flows (MAF, IAF): a stack of masked maps in alternating orders."""

from __future__ import annotations

import abc
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Range
from ...core.model import Defaults
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import MaskedMLP
from ...prob.bijections.autoregressive import AutoregressiveBijection
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.elementwise import ActNorm
from ._base import Flow
from ._completion import CompletableFlow
from ._coupling import UnivariateMapConfig, default_components, small_data_train_config
from ._tables import SMALLEST_TABLE_NET, TableConfig, default_table_net


class AutoregressiveFlow(CompletableFlow):
    """K masked maps, each followed by a scaling; every other one reverses the order of entries."""

    class Config(Flow.Config, UnivariateMapConfig, TableConfig):
        layers: Annotated[int, Range(1, MAX_LAYERS)] = 5
        """Number of masked maps."""
        net: MaskedMLP.Config = MaskedMLP.Config(width=256)
        """Masked network from the entries before an entry to the parameters of its map."""

    config: Config

    def build_layers(self, context: int) -> Bijection:
        dims = torch.arange(self.space.dims)
        parts: list[Bijection] = []
        for number in range(self.config.layers):
            places = dims.flip(0) if number % 2 else dims
            parts += [self.orient(self.layer(places, context)), ActNorm(len(dims))]
        return self.config.with_mixture(Compose(parts), len(dims))

    @abc.abstractmethod
    def orient(self, layer: AutoregressiveBijection) -> Bijection:
        """The map or its inverse, whichever the stack contains."""

    def layer(self, places: Tensor, context: int) -> AutoregressiveBijection:
        warp, dims = self.config.univariate_map(), torch.arange(self.space.dims)
        net: MaskedMLP = self.config.net.build(
            dims, dims.repeat_interleave(warp.count), places[None], context
        )
        for last in filter(None, (net.out, net.direct)):
            nn.init.zeros_(last.weight)
        nn.init.zeros_(net.out.bias)
        return AutoregressiveBijection(net, warp, places)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Affine maps for few rows or many entries; otherwise splines."""
        few = space.rows < 2000
        net = MaskedMLP.Config(width=64 if few else 256)
        config = cls.Config(
            layers=2 if few else 5,
            net=net,
            kind="affine" if few or space.dims > 64 else "spline",
            components=default_components(space),
            table_net=default_table_net(space),
            optional_first=True,
        )
        return Defaults(config, small_data_train_config(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            layers=2,
            bins=4,
            net=MaskedMLP.Config(width=16, depth=1),
            table_net=SMALLEST_TABLE_NET,
            optional_first=True,
        )
