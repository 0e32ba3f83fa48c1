"""WaveNet: sound and series step by step, exact, by dilated causal convolutions

Every conditional comes from one pass of a stack of gated convolutions whose dilations double (van
den Oord et al. 2016), or of the plain residual stack of Bai, Kolter & Koltun (2018). Drawing keeps
a queue for each layer, so that a step costs one small product a layer.
"""

from __future__ import annotations

import math
from typing import Annotated

from ...core.config import Range
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn import dilated
from ...prob.heads import LevelsLaw
from .._sequence import Chain

LONG = 1024
"""Entries from which on a row has as much to teach as many short ones."""
FEW = 10_000
"""Short rows below which a network learns them by heart unless it is held back."""


class WaveNet(Chain):
    r"""$p(x | c) = \prod_t p(x_t | x_{t-R}, ..., x_{t-1}, c)$ with R the reach of the stack.

    What is given is added to what enters every gate: a label or a vector at every step alike, a
    sequence as long as the event at its own step. Levels have a probability each or a mixture of
    logistics, reals a mixture of Gaussians.
    """

    class Config(Chain.Config):
        tag = "model/autoregressive.wavenet"
        net: dilated.DilatedStack.Config = dilated.WaveNet.Config()
        """Network: wavenet (gated, with skip paths) or tcn (plain residual blocks)."""
        window: Annotated[int, Range(0)] = 4096
        """Steps of a row that a step of training scores; a longer row is cut into equal blocks of
        which one is drawn. 0 takes whole rows."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        self.net = config.net.build(self.head.width, self.context.width)
        self.window = config.window

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if len(space.shape) <= 3:
            return None
        return f"wavenet needs sequences (steps,) or (steps, channels), got {space}; reshape them"

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """A reach of the whole row where it is short, of a thousand steps otherwise."""
        layers = min(max(math.ceil(math.log2(max(space.dims, 2))), 1), 10)
        long, few = space.dims >= LONG, 0 < space.rows < FEW
        net = dilated.WaveNet.Config(
            layers=layers,
            width=48 if long else 32,
            skip=96 if long else 64,
            dropout=0.1 if few and not long else 0.0,
        )
        coded = space.kind == "levels" and space.size <= 256
        levels: LevelsLaw = "categorical" if coded else "auto"
        recipe = TrainConfig(lr=3e-3, batch_size=4 if long else 32, grad_clip=1.0, ema_decay=0.998)
        return Defaults(cls.Config(net=net, levels=levels), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        net = dilated.WaveNet.Config(width=8, layers=3, skip=16)
        return cls.Config(net=net, components=2)
