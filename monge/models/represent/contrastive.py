r"""Contrastive encoder (SimCLR): InfoNCE between two augmented views

Of the projections $z = g(f(x))$ of all views in a batch, the loss of one is
$-\log \frac{e^{\cos(z, z^+)/\tau}}{\sum_j e^{\cos(z, z_j)/\tau}}$ with the other view of the same
row as $z^+$. The projection g is used in training only. A view of an image is rotated, zoomed,
shifted and noisy; in other rows some entries are replaced by those of other rows of the batch
(Bahri et al. 2022), which keeps the marginals. Augmentations use torch's global generator.
"""

from __future__ import annotations

from typing import Annotated

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Losses
from ...core.space import Space
from ...nn.mlp import MLP
from ...prob.info_nce import nt_xent
from ._base import TwoViewEncoder


class Contrastive(TwoViewEncoder):
    """h = f(x), trained by InfoNCE between two views of each row (Chen et al. 2020).

    The held-out loss compares settings on the same data only: it grows with the batch size.
    """

    class Config(TwoViewEncoder.Config):
        tag = "model/represent.contrastive"
        temperature: Annotated[float, Range(0, open=True)] = 0.2
        """Temperature of the cosine similarities; small focuses on the most similar negatives."""
        projection: MLP.Config = MLP.Config(width=128, depth=1)
        """Projection head from the code to the compared vectors, used in training only."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.project: MLP = config.projection.build(config.latent, config.latent)

    def loss(self, batch: Batch) -> Losses:
        """InfoNCE between the projections of two augmented views of each row."""
        one, two = (self.project(self.trunk([view])) for view in self.views(batch))
        return {"contrast": nt_xent(one, two, self.config.temperature)}
