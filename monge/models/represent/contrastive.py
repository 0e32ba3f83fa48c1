r"""Two looks at the same thing: what a pair has in common is what its code should keep.

A picture is seen from elsewhere (turned, nearer, moved) and under noise; of other rows some
features are those of other rows of the batch (Bahri et al. 2022), which keeps every feature's own
law. All of it is drawn from torch's global generator.

Contrastive encoder: codes by which two looks at a thing know each other among many (SimCLR)

Each row is seen twice; of the codes $z$ of all looks in a batch, the loss of one is
$-\log \frac{e^{\cos(z, z^+)/\tau}}{\sum_j e^{\cos(z, z_j)/\tau}}$ with the other look at the same
row as $z^+$. $z = g(h)$ is a projection of the code $h = f(x)$ that training alone uses.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Losses
from ...core.space import Space
from ...nn.mlp import MLP
from ...prob.info_nce import agreement
from ._base import Encoder


def either(n: int, like: Tensor) -> Tensor:
    """Uniform in [-1, 1], (n,)."""
    return 2 * torch.rand(n, dtype=like.dtype, device=like.device) - 1


def moved(pictures: Tensor, turn: float, zoom: float, shift: float) -> Tensor:
    """Pictures (B, C, H, W) turned by up to `turn` degrees either way, their size changed by up to
    the factor 1 + zoom, moved by up to the share `shift` of it."""
    n = len(pictures)
    angle, size = math.radians(turn) * either(n, pictures), (1 + zoom) ** either(n, pictures)
    cos, sin = size * angle.cos(), size * angle.sin()
    across, down = 2 * shift * either(n, pictures), 2 * shift * either(n, pictures)
    rows = torch.stack([cos, -sin, across, sin, cos, down], 1).reshape(n, 2, 3)
    grid = F.affine_grid(rows, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def corrupted(features: Tensor, owner: Tensor, share: float) -> Tensor:
    """Features (B, F) of which each entry's are another row's with probability `share`; those of
    one entry, named by `owner`, change together."""
    n, entries = len(features), int(owner[-1]) + 1
    foreign = torch.rand(n, entries, device=features.device) < share
    other = torch.randint(n, (n, entries), device=features.device)
    drawn = features.gather(0, other[:, owner])
    return torch.where(foreign[:, owner], drawn, features)


class Contrastive(Encoder):
    """h = f(x), trained by InfoNCE between two looks at each row (Chen et al. 2020).

    No law of x: the held-out loss compares settings on the same data and nothing else, since it
    grows with the number of rows that are told apart.
    """

    class Config(Encoder.Config):
        tag = "model/represent.contrastive"
        temperature: Annotated[float, Range(0, open=True)] = 0.2
        """Cosines are divided by it: small heeds the likest of the others alone."""
        projection: MLP.Config = MLP.Config(width=128, depth=1)
        """Network from the code to what is compared, which training alone uses."""
        turn: Annotated[float, Range(0, 180)] = 15.0
        """Pictures: degrees by which a look is turned at most."""
        zoom: Annotated[float, Range(0)] = 0.25
        """Pictures: share by which its size changes at most."""
        shift: Annotated[float, Range(0, 0.5)] = 0.1
        """Pictures: share of its size by which it moves at most."""
        noise: Annotated[float, Range(0)] = 0.1
        """Noise on the numbers of a look, in standard deviations."""
        corrupt: Annotated[float, Range(0, 1)] = 0.3
        """Rows that are no pictures: share of a look's entries that are another row's."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.project: MLP = config.projection.build(config.latent, config.latent)

    def loss(self, batch: Batch) -> Losses:
        features = self.features(batch)
        one, two = (self.project(self.trunk([self.look(features)])) for _ in range(2))
        return {"contrast": agreement(one, two, self.config.temperature)}

    def look(self, features: Tensor) -> Tensor:
        """Another look at rows whose features are (B, F)."""
        c = self.config
        if self.space.is_picture:
            pictures = features.reshape(-1, *self.space.shape)
            features = moved(pictures, c.turn, c.zoom, c.shift).flatten(1)
            return features + c.noise * torch.randn_like(features)
        return corrupted(features, self.features.owner, c.corrupt)
