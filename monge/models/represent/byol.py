r"""BYOL: codes of two views predict each other, without negatives

The projection $z = g(f(v))$ of one view of a row, passed through a predictor q, is compared with
the projection $z'$ of the other view by a target network, whose weights are a moving average of
those of f and g: the loss of a row is $2 - 2 \cos(q(z), z')$, averaged over both orders of the
views. No gradient passes the target. Without q, or if the target were soon the encoder itself, all
codes would become one.
"""

from __future__ import annotations

import copy
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Losses, Update
from ...core.space import Space
from ...nn.mlp import MLP
from .._moving_average import follow
from ._base import TwoViewEncoder


class BYOL(TwoViewEncoder):
    """h = f(x), trained so that one view predicts the other (Grill et al. 2020).

    The held-out loss falls when codes become equal too: a linear probe tells codes apart.
    """

    class Config(TwoViewEncoder.Config):
        tag = "model/represent.byol"
        projection: MLP.Config = MLP.Config(width=256, depth=1)
        """Projection head from the code to the compared vectors, used in training only."""
        predictor: MLP.Config = MLP.Config(width=256, depth=1)
        """Network from a projection to that of the other view, used in training only."""
        target_decay: Annotated[float, Range(0, 1, open=True)] = 0.99
        """Decay of the moving average of the weights that the target network has."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.project: MLP = config.projection.build(config.latent, config.latent)
        self.predict: MLP = config.predictor.build(config.latent, config.latent)
        online = nn.ModuleList([self.trunk, self.project])
        self.target = copy.deepcopy(online).requires_grad_(False)

    def loss(self, batch: Batch) -> Losses:
        """2 - 2 cos of what one view predicts and the other is, both ways."""
        one, two = self.views(batch)
        with torch.no_grad():
            wanted = [self.target_projection(view) for view in (two, one)]
        found = [self.predict(self.project(self.trunk([view]))) for view in (one, two)]
        terms = [angle_loss(*pair) for pair in zip(found, wanted, strict=True)]
        return {"angle": (terms[0] + terms[1]) / 2}

    def target_projection(self, view: Tensor) -> Tensor:
        trunk, project = self.target
        return project(trunk([view]))

    def updates(self) -> list[Update]:
        own = [param for param in self.parameters() if param.requires_grad]
        return [Update("model", self.loss, own), Update("target", self.move_target)]

    @torch.no_grad()
    def move_target(self, batch: Batch) -> Losses:
        """The weights of the target network follow those of the encoder and its projection."""
        online = nn.ModuleList([self.trunk, self.project])
        return {"distance": follow(self.target, online, self.config.target_decay)}


def angle_loss(one: Tensor, two: Tensor) -> Tensor:
    """|a - b|^2 = 2 - 2 cos(a, b) of the directions a and b of vectors (B, D), (B,)."""
    return 2 - 2 * F.cosine_similarity(one, two, dim=1)
