"""WaveNet: dilated causal convolutions over audio and series, exact likelihood

Every conditional comes from one pass of a stack of gated convolutions whose dilations double (van
den Oord et al. 2016), or of the plain residual stack of Bai, Kolter & Koltun (2018). Sampling
caches a queue per layer, so that a step costs one small product per layer.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn import dilated
from ...prob.heads import LevelsDistribution
from .._sequence import SequenceModel
from .._sequence_sampling import row_groups, unobserved_rows

LONG_ROW_STEPS = 1024
"""Entries from which a row counts as long, so that small batches suffice."""
SMALL_DATA_ROWS = 10_000
"""Short rows below which a network overfits without regularisation."""


class WaveNet(SequenceModel):
    r"""$p(x | c) = \prod_t p(x_t | x_{t-R}, ..., x_{t-1}, c)$ with R the reach of the stack.

    Conditions are added to the input of every gate: a label or a vector at every step, a sequence
    as long as the event step by step. Levels are categorical or a mixture of logistics, reals a
    mixture of Gaussians.
    """

    class Config(SequenceModel.Config):
        tag = "model/autoregressive.wavenet"
        net: dilated.DilatedStack.Config = dilated.WaveNetStack.Config()
        """Network: wavenet (gated, with skip paths), tcn (plain residual blocks) or continuous
        (weights that are a network of the distance)."""
        window: Annotated[int, Range(0)] = 4096
        """Steps of a row per training step; a longer row is cut into equal blocks of which one is
        chosen at random. 0 takes whole rows."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        self.net = config.net.build(self.step_head.outputs, self.context.width)
        self.window = config.window

    def loss(self, batch: Batch) -> Losses:
        """-log p(x | c) in nats per step, of one random block of each row longer than `window`."""
        rows = self.to_steps(batch)  # x (B, D)
        count = rows.exist.sum(1)  # (B,)
        first, last, blocks = self.random_block(count)
        nll = -self.block_log_prob(rows, first, last) * blocks  # (B,)
        return {"nll": nll * (len(nll) / count.sum().to(nll.dtype))}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_t ~ p(x_t | x_{t-R}, ..., x_{t-1}, c) from cached queues, (n, steps, ...);
        steps after the end of a row repeat it."""
        batch = unobserved_rows(self, n, given, options)
        with torch.inference_mode():
            for rows in row_groups(self, batch, options, generator):
                for step in range(batch.x.shape[1]):
                    rows.sample_step(step, rows.parameters(step))  # x_t ~ p(x_t | x_<t)
                    if rows.finished:
                        rows.repeat_end(step)
                        break
                batch.x[rows.index] = rows.x.T
        return self.to_event(batch.x)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if len(space.shape) <= 3:
            return None
        return (
            f"wavenet expected sequences (steps,) or (steps, channels), found {space}; "
            "reshape them"
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """A reach of the whole row if it is short, of a thousand steps otherwise."""
        layers = min(max(math.ceil(math.log2(max(space.dims, 2))), 1), 10)
        long, few = space.dims >= LONG_ROW_STEPS, 0 < space.rows < SMALL_DATA_ROWS
        net = dilated.WaveNetStack.Config(
            layers=layers,
            width=48 if long else 32,
            skip=96 if long else 64,
            dropout=0.1 if few and not long else 0.0,
        )
        coded = space.kind == "levels" and space.size <= 256
        levels: LevelsDistribution = "categorical" if coded else "auto"
        train_config = TrainConfig(
            lr=3e-3, batch_size=4 if long else 32, grad_clip=1.0, ema_decay=0.998
        )
        return Defaults(cls.Config(net=net, levels=levels), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        net = dilated.WaveNetStack.Config(width=8, layers=3, skip=16)
        return cls.Config(net=net, components=2)
