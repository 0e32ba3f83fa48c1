r"""Masked autoencoder: codes from which masked entries are predicted

A random subset S of the entries is masked; the encoder maps the rest to a code and the decoder the
code to the distributions of all entries. The loss is
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

    The masked share varies per row from 0 to twice `mask_ratio`, so that the encoder is trained on
    nearly whole rows too. Images are masked in square patches of side `patch_size`.
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
        """D / |S| sum_{i in S} -log p(x_i | x outside S), with a random mask S per row."""
        x, seen = (t.reshape(len(batch), -1) for t in (batch.x, batch.observed_mask))
        hidden = self.sample_mask(x) & seen  # (B, D)
        features = self.features(batch)
        params = self.decoder(self.encode_observed(features, seen & ~hidden))
        each = -self.head.log_prob(params, x.masked_fill(~seen, 0.0).to(params.dtype))
        share = hidden.sum(1).clamp(min=1) / x.shape[1]
        return {"hidden": each.masked_fill(~hidden, 0.0).sum(1) / share}

    def sample_mask(self, x: Tensor) -> Tensor:
        """Which entries of each row of x (B, D) are masked, at least one."""
        n, (height, width) = len(x), self.space.shape[1:] if self.space.is_image else (1, 1)
        order = torch.rand(x.shape, device=x.device)
        if self.space.is_image:
            side = min(self.config.patch_size, height, width)
            coarse = torch.rand(n, 1, -(-height // side), -(-width // side), device=x.device)
            fine = F.interpolate(coarse, scale_factor=side)[..., :height, :width]
            order = fine.expand(n, *self.space.shape).flatten(1)
        share = 2 * self.config.mask_ratio * torch.rand(n, 1, device=x.device)
        return (order < share) | (order == order.amin(1, keepdim=True))

    def encode_observed(self, features: Tensor, seen: Tensor) -> Tensor:
        """The code of features (B, F) of which only the entries `seen` (B, D) are read."""
        shown = seen[:, self.features.owner].to(features.dtype)
        return self.trunk([features * shown, shown])

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        batch = as_batch(batch)
        return self.encode_observed(
            self.features(batch), batch.observed_mask.reshape(len(batch), -1)
        )
