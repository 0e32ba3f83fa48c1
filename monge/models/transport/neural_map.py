r"""Neural map: network between two unpaired data sets, by minibatch optimal transport

With $\pi$ the entropic plan between minibatches of sources and targets, T is fitted to the
barycentre of the targets of each source,

$\min_T \mathbb E \sum_i \lvert T(x_i) - \textstyle\sum_j \pi_{ij} y_j / \sum_j \pi_{ij}\rvert^2$.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.mlp import MLP
from ...solve.transport.sinkhorn import sinkhorn
from ._base import TOLERANCE, UnpairedMap


class NeuralMap(UnpairedMap):
    """y = T(x) = x + net(x), the barycentric projection of optimal plans (Seguy et al. 2018): a
    deterministic map that applies to any source.
    """

    class Config(BaseConfig):
        tag = "model/transport.neural_map"
        epsilon: Annotated[float, Range(0, open=True)] = 0.01
        """Entropic regularisation, in units of the mean cost; larger values shrink T."""
        net: MLP.Config = MLP.Config(width=128, depth=3)
        """Network whose output is added to x."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.net: MLP = config.net.build(space.dims, space.dims)

    def loss(self, batch: Batch) -> Losses:
        """Squared distance of T(x) to the barycentre of its targets under the entropic plan."""
        x, y = self.sources(batch.given, len(batch)), self.targets(batch.x)
        plan = sinkhorn(x, y, self.config.epsilon, relative=True, tolerance=TOLERANCE).matrix
        barycentre = plan @ y / plan.sum(1, keepdim=True)  # (B, D)
        return {"error": (self.move(x) - barycentre).square().sum(1)}

    def move(self, x: Tensor) -> Tensor:
        """T(x)."""
        return x + self.net(x)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y = T(x): the map is deterministic."""
        y = self.units(self.move(self.sources(given or {}, n)))
        return y.round().clamp(0, self.space.size - 1) if self.space.kind == "levels" else y

    def mean(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        return self.sample(len(next(iter(given.values()))), given)

    def units(self, y: Tensor) -> Tensor:
        """Standardised targets (n, D) in the units and the shape of the data."""
        return (self.shift + self.scale * y).reshape(len(y), *self.space.shape)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        train_config = TrainConfig(
            lr=1e-3, batch_size=512, ema_decay=0.995, eval_every=200, patience=10
        )
        width = 128 if space.dims <= 32 else 512
        return Defaults(cls.Config(net=MLP.Config(width=width, depth=3)), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=MLP.Config(width=16, depth=1))
