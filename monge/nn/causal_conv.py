r"""Causal dilated convolution along time.

$y_t = b + \sum_{i=0}^{k-1} W_i x_{t - i d}$: k taps, d apart, of present and past inputs.
Channels are the last axis, so a layer is one matrix product over its concatenated taps. In
step-by-step evaluation a queue holds the inputs that will be read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers.activation import Activation
from .layers.conv import FourierKernel
from .layers.init import GAIN_SQUARED, Init, init_weight
from .layers.linear import linear
from .mlp import MLP
from .stepwise import State, Stepwise


class ConvQueue(State):
    """Inputs that a causal convolution will read again: slot t mod d holds the k inputs t, t - d,
    ..., the oldest first, (n, k inputs)."""

    def __init__(self, n: int, conv: CausalConv) -> None:
        self.width, self.place = conv.inputs, 0
        self.set_slots(conv.weight.new_zeros(conv.dilation, n, conv.kernel * conv.inputs))

    def set_slots(self, slots: Tensor) -> None:
        """Set the slots and prepare views into them."""
        self.slots, rows = slots, slots.unbind()
        self.views = [
            (row, row[:, : -self.width], row[:, self.width :], row[:, -self.width :])
            for row in rows
        ]
        self.overlap = slots.shape[2] > 2 * self.width

    def fill(self, x: Tensor) -> Tensor:
        """Fill the queue as if all past inputs were x (n, inputs); returns the taps."""
        self.slots.copy_(x.repeat(1, self.slots.shape[2] // self.width))
        return self.slots[0]

    def push(self, x: Tensor) -> Tensor:
        """The taps (n, k inputs) with x (n, inputs) as the newest."""
        taps, older, newer, newest = self.views[self.place]
        older.copy_(newer.clone() if self.overlap else newer)
        newest.copy_(x)
        self.place = (self.place + 1) % len(self.views)
        return taps

    def reorder(self, rows: Tensor) -> None:
        self.set_slots(self.slots[:, rows])


class CausalConv(Stepwise[ConvQueue]):
    """k taps, d apart; inputs before the first step are zero."""

    weight: Tensor  # (outputs, k inputs), the oldest tap first
    bias: Tensor  # (outputs,)

    def __init__(self, inputs: int, outputs: int, kernel: int = 2, dilation: int = 1) -> None:
        super().__init__()
        self.inputs, self.outputs, self.kernel, self.dilation = inputs, outputs, kernel, dilation
        self.past = (kernel - 1) * dilation
        bound = (kernel * inputs) ** -0.5
        self.weight = nn.Parameter(torch.empty(outputs, kernel * inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    @torch.no_grad()
    def initialise(self, how: Init, activation: Activation) -> None:
        """Sample the weights for inputs that have passed this function; the bias becomes 0."""
        init_weight(self, how, GAIN_SQUARED[activation])
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.over(F.pad(x, (0, 0, self.past, 0)))

    def over(self, x: Tensor) -> Tensor:
        """Without padding: (B, past + T, inputs) -> (B, T, outputs)."""
        steps = x.shape[1] - self.past
        starts = range(0, self.past + 1, self.dilation)
        taps = torch.cat([x[:, start : start + steps] for start in starts], 2)
        return linear(taps, self.weight, self.bias)

    def start(self, n: int, max_steps: int) -> ConvQueue:
        return ConvQueue(n, self)

    def step(self, state: ConvQueue, x: Tensor) -> Tensor:
        return F.linear(state.push(x), self.weight, self.bias)


class ContinuousCausalConv(CausalConv):
    """The same with all taps d = 1 apart, whose weights are a network of the offset (Romero et
    al. 2022): their number is independent of the taps, so that the reach is chosen freely.
    Computed without FFT, whose rounding would let the future into the past."""

    def __init__(self, inputs: int, outputs: int, taps: int, rates: int, net: MLP.Config) -> None:
        Stepwise.__init__(self)
        self.inputs, self.outputs, self.kernel, self.dilation = inputs, outputs, taps, 1
        self.past = taps - 1
        self.offsets = FourierKernel(inputs, outputs, taps, rates, net)
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.taps().transpose(0, 1).flatten(1)

    def initialise(self, how: Init, activation: Activation) -> None:
        """The network of the weights is initialised by its own setting."""

    def taps(self) -> Tensor:
        """The weights of the offsets 1 - k to 0, (k, outputs, inputs)."""
        return self.offsets(torch.arange(1 - self.kernel, 1, device=self.bias.device))

    def over(self, x: Tensor) -> Tensor:
        return F.conv1d(x.mT, self.taps().permute(1, 2, 0), self.bias).mT


class ConvRings(State):
    """Inputs that the convolutions of a stack will read again, each in a ring of (k - 1) d slots.

    The past inputs of a step are known before it starts, for every layer: `past` computes their
    contribution in one batched product, and each layer only adds that of the present input.
    """

    def __init__(self, convs: Sequence[CausalConv], n: int, max_steps: int) -> None:
        one, sizes = convs[0], torch.tensor([conv.past for conv in convs])
        self.width, self.taps, self.place = one.inputs, one.kernel - 1, 0
        device = one.weight.device
        self.slots = one.weight.new_empty(int(sizes.sum()), n, one.inputs)
        weights = torch.stack([conv.weight for conv in convs])  # (C, outputs, k inputs)
        self.old = weights[:, :, : -one.inputs].mT.contiguous()  # (C, (k - 1) inputs, outputs)
        self.new = weights[:, :, -one.inputs :].mT.contiguous().unbind()
        self.bias = torch.stack([conv.bias for conv in convs])[:, None]  # (C, 1 or n, outputs)
        start = sizes.cumsum(0) - sizes
        apart = torch.tensor([conv.dilation for conv in convs])[:, None]
        times = torch.arange(max(max_steps, 1))[:, None, None]
        reads = (times - apart * torch.arange(self.taps, 0, -1)) % sizes[:, None] + start[:, None]
        self.reads = reads.flatten(1).to(device).unbind()  # (C (k - 1),) for each step
        self.writes = (times[..., 0] % sizes + start).to(device).unbind()  # (C,) for each step

    def fill(self, number: int, x: Tensor) -> Tensor:
        """Fill the ring of this convolution as if all past inputs were x (n, inputs); returns its
        output."""
        start = int(self.writes[0][number])
        size = (
            len(self.slots) - start
            if number + 1 == len(self.new)
            else int(self.writes[0][number + 1]) - start
        )
        self.slots[start : start + size] = x
        past = x.repeat(1, self.taps) @ self.old[number] + self.bias[number]
        return torch.addmm(past, x, self.new[number])

    def past(self) -> Sequence[Tensor]:
        """The contribution of past inputs to the output of each convolution, including its bias,
        (n, outputs) each."""
        slots = self.slots.index_select(0, self.reads[self.place])  # (C (k - 1), n, inputs)
        if self.taps > 1:
            slots = slots.unflatten(0, (-1, self.taps)).transpose(1, 2).flatten(2)
        return torch.baddbmm(self.bias, slots, self.old).unbind()

    def push(self, inputs: list[Tensor]) -> None:
        """Store the inputs of each convolution at this step, (n, inputs) each."""
        self.slots.index_copy_(0, self.writes[self.place], torch.stack(inputs))
        self.place += 1

    def reorder(self, rows: Tensor) -> None:
        self.slots = self.slots[:, rows]
        self.bias = self.bias[:, rows] if self.bias.shape[1] > 1 else self.bias
