r"""Multi-scale image flow (Glow): levels of steps with learned channel mixing

Each level squeezes squares of four pixels into channels, takes K steps (a scaling, an invertible
1x1 convolution, an affine coupling with a convolutional network), and lets half of the channels
leave as code with the prior N(mu(h), sigma(h)^2), h being the other half (Kingma & Dhariwal 2018).
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.init import Init
from ...prob.bijections.base import Bijection
from ...prob.distributions import normal_log_prob_rows
from ._base import Flow
from ._completion import CompletableFlow
from ._image import GlowSteps, count_halvings, even_part, image_shape

LARGE_IMAGE_PIXELS = 256
"""Entries above which the default network is larger."""


class Glow(CompletableFlow):
    """x = f_1(f_2(... f_L(z_L), z_2), z_1), each f_l being K steps at half the resolution of
    the one before. A vector is an image of one pixel, which is not squeezed."""

    family_priority = 2
    events = {"real", "binary", "levels"}

    class Config(Flow.Config):
        tag = "model/flow.glow"
        levels: Annotated[int, Range(0)] = 0
        """Number of resolutions; 0 takes as many as the size allows, at most three."""
        steps: Annotated[int, Range(1, MAX_LAYERS)] = 8
        """Steps per level."""
        width: Annotated[int, Range(1)] = 64
        """Channels of the hidden layers of a coupling."""
        checkerboard: Annotated[int, Range(0, MAX_LAYERS)] = 0
        """Couplings of alternating colours of a chess-board before each level is squeezed, three
        in RealNVP; images of odd sides have four at least, at full size."""
        init: Init = "auto"
        """Initial weights of the convolutions of a coupling but the last, which are 0: he, xavier,
        orthogonal, small, or torch's own (auto, torch)."""

    config: Config

    def build_layers(self, context: int) -> Bijection:
        config = self.config
        steps = GlowSteps(
            config.steps,
            config.width,
            context,
            checkerboard=config.checkerboard,
            init=config.init,
        )
        return steps.flat(image_shape(self.space), level_count(self.space, self.config.levels))

    def loss(self, batch: Batch) -> Losses:
        """-log p(y) = -(log N(z; 0, I) + log|det dz/dy|) at z = f^{-1}(y, c), y dequantised."""
        y, log_q = self.dequantise(batch, self.dequantisation_noise(batch))
        z, log_det = self.map.inverse(y, self.context(batch.given, len(y)))
        return {"nll": log_q - (normal_log_prob_rows(z) + log_det)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ N(0, temperature^2 I), then x = f(z, c)."""
        z = self.sample_latent(n, options, generator)
        return self.decode(z, given)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if space.dims < 2:
            return (
                "expected events of two entries or more, which a coupling splits, found one; "
                "use maf, or mixture"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Dequantisation noise is learned: affine maps cannot turn a Gaussian into a uniform
        distribution, which costs a quarter of a bit for every constant pixel."""
        large, few = space.dims > LARGE_IMAGE_PIXELS, space.rows < 10_000
        config = cls.Config(steps=8 if large else 6, width=64 if large else 48, noise="learned")
        train_config = TrainConfig(
            lr=1e-3,
            batch_size=32 if large else 64,
            eval_every=1000 if large else 0,
            ema_decay=0.998,
            grad_clip=50.0,
            warmup=200,
            optimiser="adamw",
            weight_decay=0.01 if few else 0.0,
        )
        return Defaults(config, train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(steps=2, width=8)


def level_count(space: Space, wanted: int) -> int:
    """The number of levels: as many as wanted, or as the size allows."""
    shape = image_shape(space)
    if shape[1:] == (1, 1):
        return 1
    shape = even_part(shape)
    possible = count_halvings(shape) if min(shape[1:]) else 0
    if wanted > possible:
        raise UsageError(
            f"expected at most {possible} levels, as images of "
            f"{'x'.join(map(str, space.shape[1:]))} can be halved {possible} times, found "
            f"levels={wanted}; use levels={possible}, or pad to multiples of {2**wanted}"
        )
    return wanted or min(possible, 3)
