r"""Entropic map: targets given sources from two unpaired data sets, by entropic transport

The entropic plan between sources $x_i$ and targets $y_j$ is a conditional distribution of targets
given each source, which its potential g extends to any x:

$p(y_j \mid x) \propto b_j\, e^{(g_j - c(x, y_j))/\varepsilon}$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...solve.transport.ground_cost import squared
from ...solve.transport.sinkhorn import sinkhorn
from ._base import TOLERANCE, UnpairedMap


class EntropicMap(UnpairedMap):
    """p(y | x) of the entropic optimal transport plan between sources and targets: samples are
    training targets, the mean is the barycentre of the plan, which tends to the optimal map
    (Pooladian & Niles-Weed 2021). Nothing is trained: the plan is solved once.
    """

    class Config(BaseConfig):
        tag = "model/transport.entropic_map"
        epsilon: Annotated[float, Range(0, open=True)] = 0.02
        """Entropic regularisation, in units of the mean cost."""
        anchors: Annotated[int, Range(1)] = 2048
        """Rows of each side that the plan is solved between."""

    config: Config
    target_anchors: Tensor  # (M, D): the anchors among the targets, in the units of the data
    potential: Tensor  # (M,)
    width: Tensor  # epsilon

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        count = min(config.anchors, space.rows or config.anchors)
        self.register_buffer("target_anchors", torch.zeros(count, space.dims))
        self.register_buffer("potential", torch.zeros(count))
        self.register_buffer("width", torch.ones(()))

    def updates(self) -> Sequence[Update]:
        return [Update("plan", self.plan, whole=True)]

    @torch.no_grad()
    def plan(self, batch: Batch) -> Losses:
        """Solve the plan between evenly spaced rows of each side."""
        rows = torch.linspace(
            0, len(batch) - 1, len(self.target_anchors), device=batch.x.device
        ).long()
        batch = batch[rows]
        found = sinkhorn(
            self.sources(batch.given, len(batch)),
            self.targets(batch.x),
            self.config.epsilon,
            relative=True,
            tolerance=TOLERANCE,
        )
        self.target_anchors.copy_(batch.x.flatten(1))
        self.potential.copy_(found.g)
        self.width.fill_(found.epsilon)
        return {"cost": found.cost}

    def loss(self, batch: Batch) -> Losses:
        """E[c(x, y) | x] under p(y | x): the transport cost of the sources of a batch."""
        x = self.sources(batch.given, len(batch))
        cost = squared(x, self.targets(self.target_anchors))  # (B, M)
        return {"cost": (self.weights(x) * cost).sum(1)}

    def weights(self, x: Tensor) -> Tensor:
        """p(y_j | x), (B, M)."""
        cost = squared(x, self.targets(self.target_anchors))
        return ((self.potential - cost) / self.width).softmax(1)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y_j ~ p(y_j | x), one of the anchors."""
        weights = self.weights(self.sources(given or {}, n))  # (n, M)
        chosen = torch.multinomial(weights, 1, generator=generator)[:, 0]
        return self.target_anchors[chosen].reshape(n, *self.space.shape)

    @torch.no_grad()
    def mean(self, given: Given, options: BaseConfig | None = None) -> Tensor:
        n = len(next(iter(given.values())))
        return (self.weights(self.sources(given, n)) @ self.target_anchors).reshape(
            n, *self.space.shape
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        anchors = space.rows if 0 < space.rows <= 4096 else 2048
        return Defaults(
            cls.Config(anchors=anchors), TrainConfig(max_steps=1, eval_every=1, patience=0)
        )

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(anchors=64)
