r"""Contrastive encoder (SimCLR): InfoNCE between two augmented views

Of the projections $z = g(f(x))$ of all views in a batch, the loss of one is
$-\log \frac{e^{\cos(z, z^+)/\tau}}{\sum_j e^{\cos(z, z_j)/\tau}}$ with the other view of the same
row as $z^+$. The projection g is used in training only. A view of an image is rotated, zoomed,
shifted and noisy; in other rows some entries are replaced by those of other rows of the batch
(Bahri et al. 2022), which keeps the marginals. Augmentations use torch's global generator.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Losses
from ...core.space import Space
from ...nn.mlp import MLP
from ...prob.info_nce import nt_xent
from .._views import corrupt_entries, transform_images
from ._base import SelfSupervisedEncoder


class Contrastive(SelfSupervisedEncoder):
    """h = f(x), trained by InfoNCE between two views of each row (Chen et al. 2020).

    The held-out loss compares settings on the same data only: it grows with the batch size.
    """

    class Config(SelfSupervisedEncoder.Config):
        tag = "model/represent.contrastive"
        temperature: Annotated[float, Range(0, open=True)] = 0.2
        """Temperature of the cosine similarities; small focuses on the most similar negatives."""
        projection: MLP.Config = MLP.Config(width=128, depth=1)
        """Projection head from the code to the compared vectors, used in training only."""
        rotate: Annotated[float, Range(0, 180)] = 15.0
        """Images: maximum rotation in degrees."""
        zoom: Annotated[float, Range(0)] = 0.25
        """Images: maximum relative change of size."""
        shift: Annotated[float, Range(0, 0.5)] = 0.1
        """Images: maximum shift as a share of the size."""
        noise: Annotated[float, Range(0)] = 0.1
        """Standard deviation of the noise added to the standardised pixels."""
        corrupt: Annotated[float, Range(0, 1)] = 0.3
        """Other rows: share of entries replaced by those of another row."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.project: MLP = config.projection.build(config.latent, config.latent)

    def loss(self, batch: Batch) -> Losses:
        """InfoNCE between the projections of two augmented views of each row."""
        features = self.features(batch)
        one, two = (self.project(self.trunk([self.augment(features)])) for _ in range(2))
        return {"contrast": nt_xent(one, two, self.config.temperature)}

    def augment(self, features: Tensor) -> Tensor:
        """An augmented view of rows with features (B, F)."""
        c = self.config
        if self.space.is_image:
            images = features.reshape(-1, *self.space.shape)
            features = transform_images(images, c.rotate, c.zoom, c.shift).flatten(1)
            return features + c.noise * torch.randn_like(features)
        return corrupt_entries(features, self.features.owner, c.corrupt)
