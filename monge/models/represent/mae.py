r"""Masked autoencoder: codes from which masked entries are predicted

A random part S of the entries is hidden; from the rest the encoder makes a code and the decoder
the distributions of all entries. The loss is
$\frac{D}{|S|} \sum_{i \in S} -\log p(x_i \mid x_{\bar S})$.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.batch import Batch, as_batch
from ...core.config import Range
from ...core.model import Losses
from ...core.space import Space
from ...nn.mlp import MLP
from ...prob.heads import Head
from ._base import SelfSupervisedEncoder


class MaskedAutoencoder(SelfSupervisedEncoder):
    """h = f(x, mask), trained to predict masked entries (Devlin et al. 2019; He et al. 2022).

    How much is hidden varies from row to row between nothing and twice `hide`, so that a code of
    the whole row is nothing new to the encoder. Pictures are hidden in squares of side `grain`.
    Entries are predicted independently: the held-out loss is that of the pretext task.
    """

    copies = 2

    class Config(SelfSupervisedEncoder.Config):
        tag = "model/represent.mae"
        mask_ratio: Annotated[float, Range(0, 0.5, open=True)] = 0.4
        """Mean share of entries masked in training."""
        patch_size: Annotated[int, Range(1)] = 2
        """Images: side of the square patches that are masked together."""
        decoder: MLP.Config = MLP.Config(width=256, depth=1)
        """Network from the code to the distributions of all entries."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.head = Head(space, 1)
        self.decoder: MLP = config.decoder.build(config.latent, self.head.width)

    def initialise_from_data(self, batch: Batch) -> None:
        self.head.fit(batch.x.reshape(len(batch), -1), batch.observed_mask.reshape(len(batch), -1))
        with torch.no_grad():
            self.decoder.out.bias.copy_(self.head.initial_params())

    def loss(self, batch: Batch) -> Losses:
        x, seen = (t.reshape(len(batch), -1) for t in (batch.x, batch.observed_mask))
        hidden = self.sample_mask(x) & seen  # (B, D)
        features = self.features(batch)
        params = self.decoder(self.encode_observed(features, seen & ~hidden))
        each = -self.head.log_prob(params, x.masked_fill(~seen, 0.0).to(params.dtype))
        share = hidden.sum(1).clamp(min=1) / x.shape[1]
        return {"hidden": each.masked_fill(~hidden, 0.0).sum(1) / share}

    def sample_mask(self, x: Tensor) -> Tensor:
        """A random part of each row of x (B, D), at least one entry."""
        n, (height, width) = len(x), self.space.shape[1:] if self.space.is_picture else (1, 1)
        order = torch.rand(x.shape, device=x.device)
        if self.space.is_picture:
            grain = min(self.config.patch_size, height, width)
            coarse = torch.rand(n, 1, -(-height // grain), -(-width // grain), device=x.device)
            fine = F.interpolate(coarse, scale_factor=grain)[..., :height, :width]
            order = fine.expand(n, *self.space.shape).flatten(1)
        share = 2 * self.config.mask_ratio * torch.rand(n, 1, device=x.device)
        return (order < share) | (order == order.amin(1, keepdim=True))

    def encode_observed(self, features: Tensor, seen: Tensor) -> Tensor:
        """The code of features (B, F) of which only entries `seen` (B, D) are shown."""
        shown = seen[:, self.features.owner].to(features.dtype)
        return self.trunk([features * shown, shown])

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        batch = as_batch(batch)
        return self.encode_observed(
            self.features(batch), batch.observed_mask.reshape(len(batch), -1)
        )
