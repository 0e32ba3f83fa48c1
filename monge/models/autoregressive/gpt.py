"""GPT: a causal transformer over text, pixels, levels, bits or reals, exact

Every step of a sequence looks at those before it (Vaswani et al. 2017; Radford et al. 2018), so
that all conditionals come from one pass. Drawing keeps the keys and values of each step, or with
linear attention their sums, whose size does not grow.
"""

from __future__ import annotations

from typing import Any

import torch

from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.attention.position import Positions
from ...nn.attention.transformer import Causal
from ...nn.stepwise import Added
from .._sequence import Chain

FEW = 10_000
"""Rows below which a network learns them by heart unless it is held back."""
MUCH = 200_000
"""Symbols of text in all from which on a wide network pays."""
LONG = 1024
"""Steps from which on attention=linear is the quicker choice."""
FAR = 1 << 14
"""Steps beyond which places have no learned vectors."""


class GPT(Chain):
    r"""$p(x | c) = \prod_t p(x_t | x_{<t}, c)$, the parameters of each law from a stack of causal
    blocks that reads the vectors of $x_{t-1}$, of t and of c."""

    family_priority = 1

    class Config(Chain.Config):
        tag = "model/autoregressive.gpt"
        net: Causal.Config = Causal.Config()
        """Stack of causal blocks."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        if config.net.positions in ("learned", "sinusoidal") and self.cycle == space.dims:
            self.place = None  # the stack knows the places itself
        stack = config.net.build(self.width, self.head.width, max(space.dims, 1))
        torch.nn.init.zeros_(stack.leave.weight)  # each law begins as that of its place alone
        self.net: Any = Added(stack, self.context.width)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Rotations find the pixel above or a period at once, which vectors of places alone take
        long to learn, and unlike a bias of the scores they cost next to nothing."""
        if space.kind == "tokens":
            return cls.suit_text(space)
        few, steps = 0 < space.rows < FEW, space.dims
        positions: Positions = "rotary"
        if steps > LONG:
            positions = "sinusoidal" if space.varies or steps > FAR else "learned"
        net = Causal.Config(
            width=64,
            depth=3 if few else 4,
            heads=4,
            dropout=0.2 if few else 0.0,
            positions=positions,
            attention="linear" if steps > LONG else "softmax",
        )
        recipe = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1,
            lr=3e-3,
            batch_size=16,
            grad_clip=1.0,
            warmup=200,
            ema_decay=0.998,
        )
        return Defaults(cls.Config(net=net), recipe)

    @classmethod
    def suit_text(cls, space: Space) -> Defaults:
        """Steps of about four thousand symbols. Blocks begin elsewhere in every epoch, so that
        nothing is hidden at random, which would take the time of a larger network."""
        wide = space.rows * space.dims >= MUCH and space.dims >= 32
        net = Causal.Config(
            width=128 if wide else 64,
            depth=4,
            heads=4,
            positions="rotary" if space.dims <= LONG else "sinusoidal",
            attention="softmax" if space.dims <= LONG else "linear",
        )
        recipe = TrainConfig(
            optimiser="adamw",
            weight_decay=0.1,
            betas=(0.9, 0.99),
            lr=3e-3,
            grad_clip=1.0,
            batch_size=min(max(4096 // space.dims, 4), 256),
            warmup=100,
            ema_decay=0.998,
        )
        return Defaults(cls.Config(net=net), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=Causal.Config(width=8, depth=1, heads=2, expand=2), components=2)
