"""Recurrent network (RNN, GRU or LSTM) over text, series and other sequences, exact likelihood

A hidden vector carries the past, $h_t = f(h_{t-1}, x_{t-1})$ (Elman 1990; Hochreiter & Schmidhuber
1997; Cho et al. 2014), so that a sampling step costs the same at any length.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.dropout import Dropout
from ...nn.recurrent import LSTM, RecurrentNet, RecurrentState
from ...nn.stepwise import ContextAdded, Stepwise
from .._sequence import SequenceModel
from .._sequence_sampling import row_groups, unobserved_rows

SMALL_DATA_ROWS = 10_000
"""Rows below which a network overfits without regularisation."""
LARGE_DATA_STEPS = 200_000
"""Steps of all rows together from which a wide network pays off."""


class RNN(SequenceModel):
    r"""$p(x | c) = \prod_t p(x_t | h_t)$ with $h_t = f(h_{t-1}, x_{t-1}, c)$ (Graves 2013)."""

    family_priority = 1

    class Config(SequenceModel.Config):
        tag = "model/sequence.rnn"
        net: RecurrentNet.Config = LSTM.Config()
        """Network: rnn, gru or lstm."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Dropout at the input and output of the network."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        net = RecurrentHead(config.net.build(self.width), self.step_head.outputs, config.dropout)
        self.net: Any = ContextAdded(net, self.context.width)

    def loss(self, batch: Batch) -> Losses:
        """-log p(x | c) in nats per step; the network reads each row once."""
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
        """x_t ~ p(x_t | h_t), one step after the other from the state h, (n, steps, ...);
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
    def defaults(cls, space: Space) -> Defaults:
        few, much = 0 < space.rows < SMALL_DATA_ROWS, space.rows * space.dims >= LARGE_DATA_STEPS
        width = (256 if space.kind == "tokens" else 128) if much else 64
        net = LSTM.Config(width=width, depth=2 if much and space.kind == "tokens" else 1)
        dropout = 0.2 if space.kind == "tokens" else 0.1 if few else 0.0
        train_config = TrainConfig(
            lr=3e-3, batch_size=32, grad_clip=1.0, warmup=100, ema_decay=0.998
        )
        return Defaults(cls.Config(net=net, dropout=dropout), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(net=LSTM.Config(width=8), components=2)


class RecurrentHead(Stepwise[RecurrentState]):
    """A recurrent network with a linear map to the parameters of a distribution."""

    def __init__(self, net: RecurrentNet, outputs: int, dropout: float) -> None:
        super().__init__()
        self.net, self.inputs, self.outputs = net, net.inputs, outputs
        self.drop, self.leave = Dropout(dropout), nn.Linear(net.outputs, outputs)
        nn.init.zeros_(self.leave.weight)  # start at the marginal distribution of each place
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.drop(self.net(self.drop(x))))

    def start(self, n: int, max_steps: int) -> RecurrentState:
        return self.net.start(n, max_steps)

    def step(self, state: RecurrentState, x: Tensor) -> Tensor:
        return self.leave(self.net.step(state, x))
