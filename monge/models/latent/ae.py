r"""Autoencoder (AE): bottleneck representation; not a density model, cannot sample

$z = f(x)$, $\hat x = g(z)$ with fewer units in z than entries in x, and the loss
$\|x - g(f(x))\|^2$ in standardised coordinates. If f and g are linear (net.depth=0) the best
code spans the first principal axes, and the loss is the sum of the remaining eigenvalues
(Bourlard & Kamp 1988). Nothing keeps codes near N(0, I), so decoded noise does not look like
data: a VAE adds that constraint.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ...core.abilities import CanDecode, CanDiagnose, CanEncode, Finding, Given
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Range
from ...core.model import Defaults, Losses, Model
from ...core.rng import make_generator
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.features import Conditions, Features
from ._diagnostics import find_prior_mismatch
from ._encoder_decoder import DenseEncoderDecoder, EncoderDecoder
from ._posterior import check_code_shape, check_latent_size


class AE(Model, CanEncode, CanDecode, CanDiagnose):
    """z = f(x, given), x = g(z, given), by least squares (Hinton & Salakhutdinov 2006).

    Features of an event are of order one: a number standardised, a bit as -1 or 1, a label as
    indicators, of which decoding takes the largest. Missing entries are read as 0 and left out of
    the loss.
    """

    events = {"binary", "levels", "real", "counts", "columns"}
    givens = {"label", "real", "binary", "levels", "counts", "columns"}
    supports_missing = True

    class Config(Model.Config):
        tag = "model/latent.ae"
        latent: Annotated[int, Range(1)] = 16
        """Dimension of the code z."""
        net: EncoderDecoder.Config = DenseEncoderDecoder.Config(width=256)
        """Encoder and decoder networks: dense, or convolution for images."""

    config: Config
    ends: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.latent = Space(kind="real", shape=(config.latent,))
        self.features, self.conditions = Features(space), Conditions(space)
        width = self.features.width
        check_latent_size(config.latent, width, space)
        self.nets: EncoderDecoder = config.net.build(
            space, width, self.conditions.width, config.latent, config.latent, width
        )
        self.register_buffer("ends", entry_ranges(space), persistent=False)  # (2, D)

    def loss(self, batch: Batch) -> Losses:
        """|x - g(f(x))|^2 over the observed entries, in standardised features."""
        features, context = self.features(batch), self.context(batch.given, len(batch))
        z = self.nets.encode(features, context)  # (B, latent)
        gap = self.nets.decode(z, context) - features  # (B, F)
        if batch.observed is not None:
            gap = gap * batch.observed_mask.reshape(len(batch), -1)[:, self.features.owner]
        return {"error": gap.square().sum(1)}

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        batch = as_batch(batch)
        return self.nets.encode(self.features(batch), self.context(batch.given, len(batch)))

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        check_code_shape(z, self.latent)
        features = self.nets.decode(z, self.context(given or {}, len(z)))
        return self.features_to_events(features).reshape(len(z), *self.space.shape)

    def features_to_events(self, features: Tensor) -> Tensor:
        """The entries (B, D), within their range, that have these features (B, F)."""
        known = self.features
        x = features / known.factor + known.shift
        if not known.plain:
            named = [part.kind == "label" for part in self.space.parts]
            x = torch.stack(
                [
                    features[:, own].argmax(1).to(x) if name else x[:, own.start]
                    for own, name in zip(known.slices, named, strict=True)
                ],
                1,
            )
        return torch.maximum(torch.minimum(x, self.ends[1]), self.ends[0])

    def context(self, given: Given, n: int) -> Tensor:
        return self.conditions(broadcast_conditions(given, self.space, n), n)  # (n, C)

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        codes = self.encode(batch)
        noise = torch.randn(4096, *self.latent.shape, generator=make_generator(0)).to(codes)
        found = find_prior_mismatch(
            codes,
            noise,
            "an autoencoder has no prior; to sample, use vae, which regularises codes to N(0, I)",
        )
        return [found] if found else []

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few_rows = 0 < space.rows < 10_000
        latent = 32 if space.dims > 256 else max(min(space.dims // 2, 16), 1)
        net = DenseEncoderDecoder.Config(width=512 if space.dims > 256 else 256)
        train_config = TrainConfig(
            batch_size=64 if few_rows else 128, ema_decay=0.995 if few_rows else 0.999
        )
        return Defaults(cls.Config(latent=latent, net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=max(space.dims // 2, 1), net=DenseEncoderDecoder.Config(width=16, depth=1)
        )


def entry_ranges(space: Space) -> Tensor:
    """The least and the largest value of each entry, (2, D); infinite for numbers."""
    finite = {"binary", "levels", "label"}
    high = torch.tensor(
        [max(part.size, 2) - 1.0 if part.kind in finite else torch.inf for part in space.parts]
    )
    return torch.stack([torch.where(high.isinf(), -high, 0.0), high])
