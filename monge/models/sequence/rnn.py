"""Recurrent network (RNN, GRU or LSTM) over text, series and other sequences, exact likelihood

A hidden vector carries the past, $h_t = f(h_{t-1}, x_{t-1})$ (Elman 1990; Hochreiter & Schmidhuber
1997; Cho et al. 2014), so that a sampling step costs the same at any length. A condition that is a
sequence of another length than the event is read by a network in both directions, and each step
attends to its states (Bahdanau et al. 2015), at first to those at the same part of the sequence:
local attention along a line (Luong et al. 2015), whose slope and width are learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

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
from ...nn.layers.linear import Linear
from ...nn.recurrent import GRU, LSTM, Bidirectional, RecurrentNet, RecurrentState
from ...nn.stepwise import ConditionedStepwise, ContextAdded, State, Stepwise
from .._sequence import SequenceModel
from .._sequence_sampling import row_groups, unobserved_rows

SMALL_DATA_ROWS = 10_000
"""Rows below which a network overfits without regularisation."""
FIRST_WIDTH = 0.1
"""Share of a source that a step reads at first."""
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
        alignment: Literal["line", "free"] = "line"
        """Where a step reads such a condition at first: at the same part of it (line), or anywhere
        (free), which takes longer to learn unless the condition has another order."""

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
        aligned = self.config.alignment == "line"
        return SourceContext(space, self.layout.channels, sources, self.width, aligned)

    def initialise_from_data(self, batch: Batch) -> None:
        super().initialise_from_data(batch)
        if isinstance(self.context, SourceContext) and self.config.alignment == "line":
            entries = float(self.layout.exist(batch).sum(1).double().mean())
            self.context.fit_rates(batch.given, entries)
            self.net.fit_width(entries)

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
        self.drop, self.leave = Dropout(dropout), Linear(net.outputs, outputs)
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
    the sequences of another length, each with the entry of the event that it stands beside, and 0,
    or minus infinity on padding."""

    local: tuple[str, ...] = ()
    """Conditions with a value for each step: none."""

    def __init__(
        self, space: Space, channels: int, sources: list[str], width: int, aligned: bool
    ) -> None:
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
        rates = torch.zeros(len(sources))
        self.log_rates = nn.Parameter(rates) if aligned else None
        """log of the entries of the event per step of each source."""

    @torch.no_grad()
    def fit_rates(self, given: Mapping[str, Batch], entries: float) -> None:
        """Let the ends of sources stand beside those of events with this many entries."""
        assert self.log_rates is not None, "only aligned sources have rates"
        for rate, name in zip(self.log_rates, self.sources, strict=True):
            part = given[name]
            steps = part.x.shape[1] if part.length is None else part.length.double().mean()
            rate.fill_(math.log(entries / float(steps)))

    def forward(self, given: Mapping[str, Batch], n: int, steps: int) -> Tensor:
        parts = []
        rates = torch.ones(len(self.sources)) if self.log_rates is None else self.log_rates.exp()
        for name, reader, encoder, rate in zip(
            self.sources, self.readers, self.encoders, rates, strict=True
        ):
            x, length = reader(given[name])
            y = encoder(x, length)  # (n, S, states)
            mask = y.new_zeros(n, y.shape[1])
            mask = mask if length is None else padding_mask(length, y.shape[1], y)[:, 0, 0]
            beside = (torch.arange(y.shape[1]).to(y) + 0.5) * rate.to(y)  # (S,)
            parts.append(
                torch.cat([y, torch.stack([beside.expand(n, -1), mask], 2)], 2).flatten(1)
            )
        fixed = self.rest(given, n, steps)
        return torch.cat([*([] if fixed is None else [fixed[:, 0]]), *parts], 1)[:, None]

    def split(self, context: Tensor) -> tuple[Tensor, Source]:
        """The conditions of every step (B, fixed), and the source."""
        whole = context[:, 0]
        source = whole[:, self.fixed :].unflatten(1, (-1, self.states + 2))
        beside, mask = source[:, None, :, -2:].unbind(3)
        return whole[:, : self.fixed], Source(source[..., :-2], beside, mask)


class Source(NamedTuple):
    """What an event reads step by step."""

    states: Tensor  # (B, S, states)
    beside: Tensor  # (B, 1, S), the entry of the event that a state stands beside
    mask: Tensor  # (B, 1, S), minus infinity on padding


@dataclass
class AttendingState(State):
    """The state of the network, what conditions add to its inputs, the source it reads, and the
    number of steps so far."""

    inner: RecurrentState
    added: Tensor | None  # (n, inputs)
    source: Source
    count: int = 0

    def reorder(self, rows: Tensor) -> None:
        self.inner.reorder(rows)
        self.added = None if self.added is None else self.added[rows]
        self.source = Source(*(part[rows] for part in self.source))


class AttendingHead(ConditionedStepwise[AttendingState]):
    r"""$\tanh(M [h_t, c_t])$ with $c_t = \sum_k a_{tk} s_k$, $a_{tk} = \mathrm{softmax}_k
    (\mathrm{score}(h_t, s_k) - (r k - t)^2 / 2 w^2)$, and a linear map to the parameters of a
    distribution. The rate r and the width w are learned."""

    def __init__(
        self, net: RecurrentNet, outputs: int, source: SourceContext, config: RNN.Config
    ) -> None:
        super().__init__()
        self.net, self.inputs, self.outputs = net, net.inputs, outputs
        self.context, self.read = source.fixed, source.split
        self.lift = Linear(source.fixed, net.inputs, bias=False) if source.fixed else None
        self.score = build_score(config.attention, net.outputs, source.states)
        aligned = config.alignment == "line"
        self.log_width = nn.Parameter(torch.zeros(())) if aligned else None
        self.mix = Linear(net.outputs + source.states, net.outputs)
        self.drop, self.leave = Dropout(config.dropout), Linear(net.outputs, outputs)
        nn.init.zeros_(self.leave.weight)  # start at the marginal distribution of each place
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        assert context is not None, "the source is a condition"
        fixed, source = self.read(context)
        x = x if self.lift is None else x + self.lift(fixed)[:, None]
        return self.end(self.drop(self.net(self.drop(x))), source, 0)

    @torch.no_grad()
    def fit_width(self, entries: float) -> None:
        """Let a step of an event of this many entries read about a tenth of the source at
        first."""
        assert self.log_width is not None, "only aligned sources are read along a line"
        self.log_width.fill_(math.log(entries * FIRST_WIDTH))

    def end(self, h: Tensor, source: Source, first: int) -> Tensor:
        """The outputs (B, T, outputs) of states h (B, T, width) of the steps from `first` on."""
        scores = self.score(h, source.states) + source.mask  # (B, T, S)
        if self.log_width is not None:
            steps = torch.arange(first, first + h.shape[1]).to(h)[:, None] + 0.5  # (T, 1)
            away = (source.beside - steps) * (-self.log_width).exp()
            scores = scores - away.square() / 2
        read = scores.softmax(-1) @ source.states  # (B, T, states)
        return self.leave(self.drop(self.mix(torch.cat([h, read], 2)).tanh()))

    def start(self, n: int, max_steps: int, context: Tensor | None = None) -> AttendingState:
        assert context is not None, "the source is a condition"
        fixed, source = self.read(context)
        added = None if self.lift is None else self.lift(fixed)
        return AttendingState(self.net.start(n, max_steps), added, source)

    def step(self, state: AttendingState, x: Tensor) -> Tensor:
        x = x if state.added is None else x + state.added
        h = self.net.step(state.inner, x)
        state.count += 1
        return self.end(h[:, None], state.source, state.count - 1)[:, 0]
