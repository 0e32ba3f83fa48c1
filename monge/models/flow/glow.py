r"""Multi-scale flow of pictures: levels of steps with learned channel mixing

Each level squeezes squares of four pixels into channels, takes K steps (a scaling, an invertible
1x1 convolution, an affine coupling with a convolutional network), and lets half of the channels
leave as code under N(mu(h), sigma(h)^2), h being what goes on (Kingma & Dhariwal 2018).
"""

from __future__ import annotations

from typing import Annotated

from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.bijections.base import Bijection
from ._base import Flow
from ._completion import CompletableFlow
from ._image import GlowSteps, count_halvings, image_shape

LARGE_IMAGE_PIXELS = 256
"""Pixels from which on a picture asks for a larger network."""


class Glow(CompletableFlow):
    """x = f_1(f_2(... f_L(z_L), z_2), z_1), each f_l being K steps at half the resolution of
    the one before. A vector is a picture of one pixel, which is not squeezed."""

    family_priority = 2
    events = {"real", "binary", "levels"}

    class Config(Flow.Config):
        tag = "model/flow.glow"
        levels: Annotated[int, Range(0)] = 0
        """Resolutions; 0 takes as many as the size allows, three at most."""
        steps: Annotated[int, Range(1)] = 8
        """Steps of a level."""
        width: Annotated[int, Range(1)] = 64
        """Channels of the hidden layers of a coupling."""

    config: Config

    def body(self, context: int) -> Bijection:
        steps = GlowSteps(self.config.steps, self.config.width, context)
        return steps.flat(image_shape(self.space), level_count(self.space, self.config.levels))

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        _, rows, columns = image_shape(space)
        if space.dims < 2:
            return (
                "glow moves some entries as the others say, but an event has one entry only; "
                "use maf, or mixture"
            )
        if (rows, columns) != (1, 1) and (rows % 2 or columns % 2):
            return (
                f"glow halves height and width, but pictures are {rows}x{columns}; pad or "
                f"crop them to even sizes such as {rows + rows % 2}x{columns + columns % 2}"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Noise is learned: affine maps make no uniform law of a Gaussian, at a loss of a quarter
        of a bit for every pixel that is always black."""
        large, few = space.dims > LARGE_IMAGE_PIXELS, space.rows < 10_000
        config = cls.Config(steps=8 if large else 6, width=64 if large else 48, noise="learned")
        recipe = TrainConfig(
            lr=1e-3,
            batch_size=32 if large else 64,
            eval_every=1000 if large else 0,
            ema_decay=0.998,
            grad_clip=50.0,
            warmup=200,
            optimiser="adamw",
            weight_decay=0.01 if few else 0.0,
        )
        return Defaults(config, recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(steps=2, width=8)


def level_count(space: Space, wanted: int) -> int:
    """How many levels there are: as many as wanted, or as the size allows."""
    shape = image_shape(space)
    if shape[1:] == (1, 1):
        return 1
    possible = count_halvings(shape)
    if wanted > possible:
        raise UsageError(
            f"levels={wanted} halves height and width so often, but pictures of "
            f"{'x'.join(map(str, space.shape[1:]))} can be halved {possible} times; "
            f"use levels={possible}, or pad them to multiples of {2**wanted}"
        )
    return wanted or min(possible, 3)
