"""RNN, GRU or LSTM: text, series and any steps one after the other, exact

A hidden vector carries the past, $h_t = f(h_{t-1}, x_{t-1})$ (Elman 1990; Hochreiter & Schmidhuber
1997; Cho et al. 2014), so that a step of drawing costs the same however long the row is.
"""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor, nn

from ...core.config import Range
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.dropout import Dropout
from ...nn.recurrent import LSTM, Hidden, Recurrent
from ...nn.stepwise import Added, Stepwise
from .._sequence import Chain

FEW = 10_000
"""Rows below which a network learns them by heart unless it is held back."""
MUCH = 200_000
"""Steps of all rows together from which on a wide network pays."""


class RNN(Chain):
    r"""$p(x | c) = \prod_t p(x_t | h_t)$ with $h_t = f(h_{t-1}, x_{t-1}, c)$ (Graves 2013)."""

    family_priority = 1

    class Config(Chain.Config):
        tag = "model/sequence.rnn"
        net: Recurrent.Config = LSTM.Config()
        """Network: rnn, gru or lstm."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Share of what enters and leaves the network that training hides at random."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        net = Told(config.net.build(self.width), self.head.width, config.dropout)
        self.net: Any = Added(net, self.context.width)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few, much = 0 < space.rows < FEW, space.rows * space.dims >= MUCH
        width = (256 if space.kind == "tokens" else 128) if much else 64
        net = LSTM.Config(width=width, depth=2 if much and space.kind == "tokens" else 1)
        dropout = 0.2 if space.kind == "tokens" else 0.1 if few else 0.0
        recipe = TrainConfig(lr=3e-3, batch_size=32, grad_clip=1.0, warmup=100, ema_decay=0.998)
        return Defaults(cls.Config(net=net, dropout=dropout), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=LSTM.Config(width=8), components=2)


class Told(Stepwise[Hidden]):
    """A recurrent network whose vectors are mapped to parameters of a law."""

    def __init__(self, net: Recurrent, outputs: int, dropout: float) -> None:
        super().__init__()
        self.net, self.inputs, self.outputs = net, net.inputs, outputs
        self.drop, self.leave = Dropout(dropout), nn.Linear(net.outputs, outputs)
        nn.init.zeros_(self.leave.weight)  # each law begins as that of its place alone
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.drop(self.net(self.drop(x))))

    def start(self, n: int, most: int) -> Hidden:
        return self.net.start(n, most)

    def step(self, state: Hidden, x: Tensor) -> Tensor:
        return self.leave(self.net.step(state, x))
