r"""Recurrent networks: RNN, LSTM and GRU.

RNN: $h_t = \phi(W x_t + U h_{t-1} + b)$ (Elman 1990).
LSTM: $i, f, o = \sigma(W x_t + U h_{t-1} + b)$ of each gate, $\tilde c = \tanh(\cdot)$,
$c_t = f c_{t-1} + i \tilde c$, $h_t = o \tanh c_t$ (Hochreiter & Schmidhuber 1997; Gers et al.
2000).  GRU: $r, z = \sigma(\cdot)$, $h_t = z h_{t-1} + (1 - z) \tilde h$ (Cho et al. 2014), with

    reset before the product:  h~ = tanh(W x_t + b + U (r h_{t-1}) + b')     (Cho et al.)
    reset after it:            h~ = tanh(W x_t + b + r (U h_{t-1} + b'))     (cuDNN, torch)

which are different functions. Whole sequences use torch's layers if it has the variant, steps its
cells.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..core.config import MAX_LAYERS, Configured, Range
from ..core.config import Config as BaseConfig
from ..core.model import is_exporting
from .attention.softmax import check_lengths
from .layers.activation import Activation
from .layers.dropout import Dropout, drop_elements
from .layers.init import GAIN_SQUARED, Init, resolve, sample_weight
from .layers.linear import linear
from .stepwise import State, Stepwise


@dataclass
class RecurrentState(State):
    """The state of each layer: h (n, width), and for an LSTM also c."""

    layers: list[tuple[Tensor, ...]]

    def reorder(self, rows: Tensor) -> None:
        self.layers = [tuple(part[rows] for part in layer) for layer in self.layers]

    def where(self, rows: Tensor, other: RecurrentState) -> RecurrentState:
        """This state in the rows (n,) that are true, the other elsewhere."""
        return RecurrentState(
            [
                tuple(torch.where(rows[:, None], a, b) for a, b in zip(own, new, strict=True))
                for own, new in zip(self.layers, other.layers, strict=True)
            ]
        )


class RecurrentNet(Configured, Stepwise[RecurrentState], abc.ABC):
    """(B, T, inputs) -> (B, T, width) with stacked layers; the output is that of the last layer.

    `core` holds the weights in torch's layout, and computes whole sequences if torch has the
    variant.
    """

    class Config(BaseConfig):
        tag = "recurrent/"
        width: Annotated[int, Range(1)] = 128
        """Units of a hidden vector."""
        depth: Annotated[int, Range(1, MAX_LAYERS)] = 1
        """Layers, each of which reads the hidden vectors of the one below."""
        dropout: Annotated[float, Range(0, 0.95)] = 0.0
        """Dropout rate between layers."""
        truncate: Annotated[int, Range(0)] = 0
        """Steps through which gradients flow back in training, which bounds their growth and
        memory: the state is carried on to the next segment, its gradient is not; 0 for all."""
        init: Init = "torch"
        """Initial weights of each gate: torch's own, uniform (auto, torch), by the activation (he,
        xavier), small, or an orthogonal map of the last hidden vector, which keeps its norm, and
        xavier for the inputs."""

    config: Config
    core: nn.RNNBase
    carries: int = 1
    """Number of state vectors of a layer."""

    def __init__(self, config: Config, inputs: int) -> None:
        super().__init__()
        self.config, self.inputs, self.outputs = config, inputs, config.width
        self.core = self.build_core(inputs)
        if (how := resolve(config.init, deep=False)) != "torch":
            self.init_weights(how)

    @torch.no_grad()
    def init_weights(self, how: Init) -> None:
        """Sample the weights W and U of each gate."""
        width, alpha = self.config.width, GAIN_SQUARED[self.follows]
        of_inputs: Init = "xavier" if how == "orthogonal" else how
        for depth in range(self.config.depth):
            w, u, *_ = self.layer(depth)
            for into, last in zip(w.split(width), u.split(width), strict=True):
                sample_weight(into, of_inputs, alpha, into.shape[1], width)
                sample_weight(last, how, alpha, width, width)

    @property
    def follows(self) -> Activation:
        """The function of a layer."""
        return "tanh"

    @abc.abstractmethod
    def build_core(self, inputs: int) -> nn.RNNBase: ...

    @abc.abstractmethod
    def cell(self, depth: int, x: Tensor, own: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The state of a layer after one more input x (n, inputs)."""

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of torch's layers besides inputs and width."""
        dropout = self.config.dropout if self.config.depth > 1 else 0.0  # torch warns otherwise
        return {"num_layers": self.config.depth, "dropout": dropout, "batch_first": True}

    def layer(self, depth: int) -> Sequence[Tensor]:
        """W (gates width, inputs), U (gates width, width), b and b' of a layer."""
        return cast(Sequence[Tensor], self.core.all_weights[depth])

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        """Steps from `length` (B,) on are not read, and give zeros."""
        if length is not None and is_exporting():  # lengths are not known while this is traced
            exist = torch.arange(x.shape[1], device=x.device) < length[:, None]  # (B, T)
            return self.scan(x)[0].masked_fill(~exist[..., None], 0)
        return self.scan(x, None, length)[0]

    def scan(
        self, x: Tensor, state: RecurrentState | None = None, length: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """The outputs of all steps from `state` on, and the state after the last existing step."""
        if length is not None:
            check_lengths(length)
        state = state or self.start(len(x), x.shape[1])
        if self.training and 0 < self.config.truncate < x.shape[1]:
            return self.run_segments(x, state, length)
        return self.run(x, state, length)

    def run_segments(
        self, x: Tensor, state: RecurrentState, length: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        """The same values as `run`, by segments of `truncate` steps between which no gradient
        flows (Williams & Peng 1990)."""
        outputs = []
        for first in range(0, x.shape[1], self.config.truncate):
            if first:
                state.detach()
            part = x[:, first : first + self.config.truncate]
            left = None if length is None else length - first  # (B,)
            y, after = self.run(
                part, state, None if left is None else left.clamp(1, part.shape[1])
            )
            if left is not None:  # sequences that have ended keep their state
                y, after = y * (left > 0)[:, None, None], state.where(left <= 0, after)
            outputs.append(y)
            state = after
        return torch.cat(outputs, 1), state

    def run(
        self, x: Tensor, state: RecurrentState, length: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        carried = tuple(torch.stack(part) for part in zip(*state.layers, strict=True))
        read = (
            x
            if length is None
            else pack_padded_sequence(x, length.cpu(), batch_first=True, enforce_sorted=False)
        )
        y, last = self.core(read, carried if self.carries > 1 else carried[0])
        if length is not None:
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        parts = last if self.carries > 1 else (last,)
        return y, RecurrentState(list(zip(*parts, strict=True)))

    def start(self, n: int, max_steps: int) -> RecurrentState:
        zero = self.layer(0)[0].new_zeros(n, self.config.width)
        return RecurrentState([(zero,) * self.carries] * self.config.depth)

    def step(self, state: RecurrentState, x: Tensor) -> Tensor:
        for depth, own in enumerate(state.layers):
            state.layers[depth] = own = self.cell(depth, x, own)
            x = own[0]
        return x


class ElmanRNN(RecurrentNet):
    """h_t = phi(W x_t + U h_{t-1} + b)."""

    class Config(RecurrentNet.Config):
        tag = "recurrent/rnn"
        activation: Literal["tanh", "relu"] = "tanh"
        """The function phi."""

    config: Config

    @property
    def follows(self) -> Activation:
        return self.config.activation

    def build_core(self, inputs: int) -> nn.RNNBase:
        name = self.config.activation
        return nn.RNN(inputs, self.config.width, nonlinearity=name, **self.sizes)

    def cell(self, depth: int, x: Tensor, own: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        known = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}
        return (known[self.config.activation](x, own[0], *self.layer(depth)),)


class LSTM(RecurrentNet):
    """c_t = f c_{t-1} + i c~, h_t = o tanh(c_t); gates are stored in the order i, f, c~, o."""

    class Config(RecurrentNet.Config):
        tag = "recurrent/lstm"
        forget: float = 1.0
        """Initial bias of the forget gate: above 0, the past is kept at first."""

    config: Config
    carries = 2

    def build_core(self, inputs: int) -> nn.RNNBase:
        core = nn.LSTM(inputs, self.config.width, **self.sizes)
        own = slice(self.config.width, 2 * self.config.width)
        with torch.no_grad():
            for _, _, bias, other in core.all_weights:
                bias[own], other[own] = self.config.forget, 0.0
        return core

    def cell(self, depth: int, x: Tensor, own: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return torch.lstm_cell(x, own, *self.layer(depth))


class GRU(RecurrentNet):
    """h_t = z h_{t-1} + (1 - z) h~; gates are stored in the order r, z, h~."""

    class Config(RecurrentNet.Config):
        tag = "recurrent/gru"
        reset: Literal["after", "before"] = "after"
        """Whether r multiplies the product U h, as in torch, or h before it."""

    config: Config

    def build_core(self, inputs: int) -> nn.RNNBase:
        return nn.GRU(inputs, self.config.width, **self.sizes)

    def cell(self, depth: int, x: Tensor, own: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        w, u, b, other = self.layer(depth)
        if self.config.reset == "after":
            return (torch.gru_cell(x, own[0], w, u, b, other),)
        return (reset_before(linear(x, w, b), own[0], u, other),)

    def run(
        self, x: Tensor, state: RecurrentState, length: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        if self.config.reset == "after":
            return super().run(x, state, length)
        last: list[tuple[Tensor, ...]] = []
        for depth, (h,) in enumerate(state.layers):
            x = drop_elements(x, self.config.dropout) if depth and self.training else x
            x = self.pass_before(depth, x, h)  # (B, T, width)
            rows = torch.arange(len(x), device=x.device)
            last.append((x[:, -1] if length is None else x[rows, length - 1],))
        if length is not None:
            x = x * (torch.arange(x.shape[1], device=x.device) < length[:, None])[..., None]
        return x, RecurrentState(last)

    def pass_before(self, depth: int, x: Tensor, h: Tensor) -> Tensor:
        """All steps of a layer with the reset before the product; W x is one product for all."""
        w, u, b, other = self.layer(depth)
        steps = []
        for read in linear(x, w, b).unbind(1):  # (B, 3 width)
            h = reset_before(read, h, u, other)
            steps.append(h)
        return torch.stack(steps, 1)


def reset_before(read: Tensor, h: Tensor, u: Tensor, bias: Tensor) -> Tensor:
    """The next vector (n, width) from W x + b (n, 3 width), with r before the product U h."""
    width = h.shape[1]
    gates = (read[:, : 2 * width] + F.linear(h, u[: 2 * width], bias[: 2 * width])).sigmoid()
    r, z = gates.split(width, 1)
    new = torch.tanh(read[:, 2 * width :] + F.linear(r * h, u[2 * width :], bias[2 * width :]))
    return z * h + (1 - z) * new


class Bidirectional(Configured, nn.Module):
    """(B, T, inputs) -> (B, T, 2 width): each layer reads the one below forwards and, from the
    last existing step, backwards (Schuster & Paliwal 1997)."""

    class Config(BaseConfig):
        tag = "recurrent/bidirectional"
        net: RecurrentNet.Config = GRU.Config()
        """Network of each direction."""

    def __init__(self, config: Config, inputs: int) -> None:
        super().__init__()
        one, both = replace(config.net, depth=1), 2 * config.net.width
        self.inputs, self.outputs = inputs, both
        widths = [inputs, *[both] * (config.net.depth - 1)]
        self.there = nn.ModuleList(one.build(width) for width in widths)
        self.back = nn.ModuleList(one.build(width) for width in widths)
        self.drop = Dropout(config.net.dropout)

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        for depth, (there, back) in enumerate(zip(self.there, self.back, strict=True)):
            x = self.drop(x) if depth else x
            behind = reverse_sequences(back(reverse_sequences(x, length), length), length)
            x = torch.cat([there(x, length), behind], 2)
        return x


def reverse_sequences(x: Tensor, length: Tensor | None) -> Tensor:
    """Each sequence from its last step to its first; padding stays at the end."""
    if length is None:
        return x.flip(1)
    steps = torch.arange(x.shape[1], device=x.device)
    back = torch.where(steps < length[:, None], length[:, None] - 1 - steps, steps)  # (B, T)
    return x.gather(1, back[..., None].expand_as(x))
