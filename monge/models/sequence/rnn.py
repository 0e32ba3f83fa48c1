"""Recurrent network (RNN, GRU or LSTM) over text, series and other sequences, exact likelihood

A hidden vector carries the past, $h_t = f(h_{t-1}, x_{t-1})$ (Elman 1990; Hochreiter & Schmidhuber
1997; Cho et al. 2014), so that a sampling step costs the same at any length. A condition that is a
sequence of another length than the event is read by a network in both directions, and each step
attends to its states (Bahdanau et al. 2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.attention.scores import ScoreName, build_score
from ...nn.attention.softmax import padding_mask
from ...nn.inputs.condition_tokens import StepMap
from ...nn.inputs.sequence import SequenceContext, has_other_length
from ...nn.layers.dropout import Dropout
from ...nn.recurrent import GRU, LSTM, Bidirectional, RecurrentNet, RecurrentState
from ...nn.stepwise import ConditionedStepwise, ContextAdded, State, Stepwise
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
        attention: ScoreName = "bilinear"
        """Attention score between a step and the states of a condition that is a sequence of
        another length than the event."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.net.width)
        net, outputs = config.net.build(self.width), self.step_head.outputs
        if isinstance(self.context, SourceContext):
            self.net: Any = AttendingHead(net, outputs, self.context, config)
        else:
            head = RecurrentHead(net, outputs, config.dropout)
            self.net = ContextAdded(head, self.context.width)

    def build_context(self, space: Space) -> nn.Module:
        sources = [name for name, part in space.given.items() if has_other_length(part, space)]
        if not sources:
            return super().build_context(space)
        return SourceContext(space, self.layout.channels, sources, self.width)

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


class SourceContext(nn.Module):
    """All conditions as one vector, (B, 1, width): those of every step, and then the states of
    the sequences of another length, each with 0, or minus infinity on padding."""

    local: tuple[str, ...] = ()
    """Conditions with a value for each step: none."""

    def __init__(self, space: Space, channels: int, sources: list[str], width: int) -> None:
        super().__init__()
        self.sources, self.states = tuple(sources), 2 * max(width // 2, 1)
        self.rest = SequenceContext(space, channels, sources)
        if self.rest.local:
            raise UsageError(
                f"expected no condition with a value for each step beside {sources[0]}, a "
                f"sequence of another length, found {self.rest.local[0]}; leave one out"
            )
        self.readers = nn.ModuleList(StepMap(space.given[name], width) for name in sources)
        half = GRU.Config(width=self.states // 2)
        self.encoders = nn.ModuleList(Bidirectional.Config(net=half).build(width) for _ in sources)
        self.fixed = self.rest.width

    def forward(self, given: Mapping[str, Batch], n: int, steps: int) -> Tensor:
        parts = []
        for name, reader, encoder in zip(self.sources, self.readers, self.encoders, strict=True):
            x, length = reader(given[name])
            y = encoder(x, length)  # (n, S, states)
            mask = y.new_zeros(n, y.shape[1])
            mask = mask if length is None else padding_mask(length, y.shape[1], y)[:, 0, 0]
            parts.append(torch.cat([y, mask[..., None]], 2).flatten(1))
        fixed = self.rest(given, n, steps)
        return torch.cat([*([] if fixed is None else [fixed[:, 0]]), *parts], 1)[:, None]

    def split(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The conditions of every step (B, fixed), states (B, S, states) and mask (B, 1, S)."""
        whole = context[:, 0]
        source = whole[:, self.fixed :].unflatten(1, (-1, self.states + 1))
        return whole[:, : self.fixed], source[..., :-1], source[:, None, :, -1]


@dataclass
class AttendingState(State):
    """The state of the network, what conditions add to its inputs, and the source it reads."""

    inner: RecurrentState
    added: Tensor | None  # (n, inputs)
    states: Tensor  # (n, S, states)
    mask: Tensor  # (n, 1, S)

    def reorder(self, rows: Tensor) -> None:
        self.inner.reorder(rows)
        self.added = None if self.added is None else self.added[rows]
        self.states, self.mask = self.states[rows], self.mask[rows]


class AttendingHead(ConditionedStepwise[AttendingState]):
    r"""$\tanh(M [h_t, c_t])$ with $c_t = \sum_k a_{tk} s_k$, $a_{tk} = \mathrm{softmax}_k\,
    \mathrm{score}(h_t, s_k)$, and a linear map to the parameters of a distribution."""

    def __init__(
        self, net: RecurrentNet, outputs: int, source: SourceContext, config: RNN.Config
    ) -> None:
        super().__init__()
        self.net, self.inputs, self.outputs = net, net.inputs, outputs
        self.context, self.read = source.fixed, source.split
        self.lift = nn.Linear(source.fixed, net.inputs, bias=False) if source.fixed else None
        self.score = build_score(config.attention, net.outputs, source.states)
        self.mix = nn.Linear(net.outputs + source.states, net.outputs)
        self.drop, self.leave = Dropout(config.dropout), nn.Linear(net.outputs, outputs)
        nn.init.zeros_(self.leave.weight)  # start at the marginal distribution of each place
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        assert context is not None, "the source is a condition"
        fixed, states, mask = self.read(context)
        x = x if self.lift is None else x + self.lift(fixed)[:, None]
        return self.end(self.drop(self.net(self.drop(x))), states, mask)

    def end(self, h: Tensor, states: Tensor, mask: Tensor) -> Tensor:  # (B, T, outputs)
        weights = (self.score(h, states) + mask).softmax(-1)  # (B, T, S)
        return self.leave(self.drop(self.mix(torch.cat([h, weights @ states], 2)).tanh()))

    def start(self, n: int, max_steps: int, context: Tensor | None = None) -> AttendingState:
        assert context is not None, "the source is a condition"
        fixed, states, mask = self.read(context)
        added = None if self.lift is None else self.lift(fixed)
        return AttendingState(self.net.start(n, max_steps), added, states, mask)

    def step(self, state: AttendingState, x: Tensor) -> Tensor:
        x = x if state.added is None else x + state.added
        h = self.net.step(state.inner, x)
        return self.end(h[:, None], state.states, state.mask)[:, 0]
