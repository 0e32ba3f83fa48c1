r"""Stacks of causal convolutions whose dilations double, or whose weights are continuous.

With dilations 1, 2, 4, ... and k taps, L layers read the last $1 + (k-1)(2^L - 1)$ inputs, 2^L of
them for k = 2 (van den Oord et al. 2016; Yu & Koltun 2016). In step-by-step evaluation each layer
caches the inputs that it will read again, and a step takes one small product per layer.

The inputs before the first step are one learned vector, repeated, so the features before a
sequence are constant in every layer.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.config import MAX_LAYERS, Configured, Range
from ..core.config import Config as BaseConfig
from .causal_conv import CausalConv, ContinuousCausalConv, ConvRings
from .layers.activation import Activation
from .layers.dropout import Dropout
from .layers.init import Init, resolve
from .layers.linear import Linear
from .mlp import MLP
from .stepwise import State, WindowedStepwise

Convolve = Callable[[int, Tensor], Tensor]
"""One step of the convolution of this number in the stack, conditions added: (n, channels)."""
BlockStep = Callable[[Tensor, Convolve], tuple[Tensor, Tensor]]
"""One step of a block: its input (n, width) to its output and its skip output."""


@dataclass
class DilatedState(State):
    """The rings of a stack, and the context of each step, unless it is constant."""

    rings: ConvRings
    blocks: list[BlockStep]
    context: Tensor | None  # (n, T, context)

    def reorder(self, rows: Tensor) -> None:
        self.rings.reorder(rows)
        self.context = None if self.context is None else self.context[rows]


DEEP = 12
"""Plain blocks beyond which each starts smaller, so that their sum does not grow with depth."""


class DilatedBlock(nn.Module, abc.ABC):
    """Causal convolutions with a residual connection; conditions enter the first."""

    convs: Sequence[CausalConv]
    given: nn.Linear | None

    def __init__(self, convs: Sequence[CausalConv], context: int, dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)  # type: ignore[assignment]
        self.past = sum(conv.past for conv in convs)
        self.given = Linear(context, convs[0].outputs, bias=False) if context else None
        self.drop = Dropout(dropout)

    def first(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The first convolution of x (B, past + T, width), conditions added."""
        y = self.convs[0].over(x)
        if self.given is None or context is None:
            return y
        return y + self.given(last_context(context, y.shape[1]))

    @abc.abstractmethod
    def over(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output and the skip output, (B, T, width) both."""

    @abc.abstractmethod
    def stepper(self, number: int) -> BlockStep:
        """A function for one step with prepared weights, as module lookups cost as much as the
        products. `number` is that of the block's first convolution in the stack."""


def last_context(context: Tensor, steps: int) -> Tensor:
    """The context of the last `steps`; before its first step it equals that of the first."""
    have = context.shape[1]
    if have == 1 or have == steps:
        return context
    if have > steps:
        return context[:, -steps:]
    return torch.cat([context[:, :1].expand(-1, steps - have, -1), context], 1)


class DilatedStack(Configured, WindowedStepwise[DilatedState]):
    """Blocks whose dilations are 1, 2, 4, ... and, after `layers` of them, 1 again."""

    class Config(BaseConfig):
        tag = "dilated/"
        width: Annotated[int, Range(1)] = 32
        """Channels of each layer."""
        layers: Annotated[int, Range(1, MAX_LAYERS)] = 10
        """Layers of a cycle: their dilations are 1, 2, 4, ..."""
        cycles: Annotated[int, Range(1, MAX_LAYERS)] = 1
        """Number of cycles of dilations."""
        kernel: Annotated[int, Range(2)] = 2
        """Taps of each convolution."""
        dropout: Annotated[float, Range(0, 0.9)] = 0.0
        """Share of each block's output that is dropped in training."""
        init: Init = "auto"
        """Initial weights of the convolutions: by the activation (he, xavier, orthogonal), small,
        or torch's own (auto, torch)."""

    config: Config
    follows: Activation = "relu"
    """The function after a convolution."""

    def __init__(self, config: Config, outputs: int, context: int = 0) -> None:
        super().__init__()
        self.config, self.context = config, context
        self.inputs, self.outputs = config.width, outputs
        dilations = [2**layer for layer in range(config.layers)] * config.cycles
        blocks = [self.block(dilation) for dilation in dilations]
        self.blocks: Sequence[DilatedBlock] = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.reach = 1 + sum(block.past for block in blocks)
        self.before = nn.Parameter(torch.zeros(config.width))
        if resolve(config.init, deep=False) != "torch":
            for conv in (conv for block in blocks for conv in block.convs):
                conv.initialise(config.init, self.follows)

    @abc.abstractmethod
    def block(self, dilation: int) -> DilatedBlock: ...

    @abc.abstractmethod
    def end(self, read: list[Tensor]) -> Tensor:
        """The skip outputs of the blocks, each (..., width), to (..., outputs)."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        h = torch.cat([self.before.expand(len(x), 1, -1), x], 1)  # (B, 1 + T, width)
        read = []
        for block in self.blocks:
            h = torch.cat([h[:, :1].expand(-1, block.past, -1), h], 1)
            h, out = block.over(h, context)
            read.append(out[:, 1:])
        return self.end(read)

    def window(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        steps, h, read = x.shape[1] - self.reach + 1, x, []
        for block in self.blocks:
            h, out = block.over(h, context)
            read.append(out[:, -steps:])
        return self.end(read)

    def start(self, n: int, max_steps: int, context: Tensor | None = None) -> DilatedState:
        rings = ConvRings([conv for block in self.blocks for conv in block.convs], n, max_steps)
        steps, number = [], 0
        for block in self.blocks:
            steps.append(block.stepper(number))
            number += len(block.convs)
        plain = rings.bias
        if context is not None:
            rings.bias = self.biased(plain, context[:, 0])
        run_blocks(steps, self.before.expand(n, -1), rings.fill)
        if context is None or context.shape[1] == 1:
            return DilatedState(rings, steps, None)
        rings.bias = plain
        return DilatedState(rings, steps, context)

    def biased(self, bias: Tensor, context: Tensor) -> Tensor:
        """The biases (C, 1, outputs) plus those of the context (n, context), (C, n, outputs)."""
        bias, place = bias.repeat(1, len(context), 1), 0
        for block in self.blocks:
            assert block.given is not None
            bias[place] += block.given(context)
            place += len(block.convs)
        return bias

    def step(self, state: DilatedState, x: Tensor) -> Tensor:
        rings, plain, inputs = state.rings, state.rings.bias, []
        if state.context is not None:
            rings.bias = self.biased(plain, state.context[:, rings.place])
        past, new, rings.bias = rings.past(), rings.new, plain

        def convolve(number: int, x: Tensor) -> Tensor:
            inputs.append(x)
            return torch.addmm(past[number], x, new[number])

        read = run_blocks(state.blocks, x, convolve)
        rings.push(inputs)
        return self.end(read)


def run_blocks(blocks: Sequence[BlockStep], h: Tensor, convolve: Convolve) -> list[Tensor]:
    """One step through all blocks; returns their skip outputs."""
    read = []
    for block in blocks:
        h, out = block(h, convolve)
        read.append(out)
    return read


class GatedBlock(DilatedBlock):
    r"""$z = \tanh(W_f * h + V_f c) \odot \sigma(W_g * h + V_g c)$; the output is h + U z, the skip
    output z."""

    def __init__(
        self, width: int, kernel: int, dilation: int, context: int, dropout: float
    ) -> None:
        super().__init__([CausalConv(width, 2 * width, kernel, dilation)], context, dropout)
        self.out = Linear(width, width, bias=False)

    def over(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        z = self.drop(gated_tanh(self.first(x, context)))
        return x[:, self.past :] + self.out(z), z

    def stepper(self, number: int) -> BlockStep:
        width, mix = self.out.in_features, self.out.weight.T

        def step(x: Tensor, convolve: Convolve) -> tuple[Tensor, Tensor]:
            y = convolve(number, x)
            y[:, :width].tanh_()
            z = F.glu(y, 1)  # a sigmoid(b)
            return torch.addmm(x, z, mix), z

        return step


def gated_tanh(y: Tensor) -> Tensor:
    a, b = y.chunk(2, -1)
    return a.tanh() * b.sigmoid()


class WaveNetStack(DilatedStack):
    """Gated blocks; their skip outputs are mapped linearly to `skip` channels, followed by ReLU, a
    layer, ReLU, and the outputs (van den Oord et al. 2016)."""

    class Config(DilatedStack.Config):
        tag = "dilated/wavenet"
        skip: Annotated[int, Range(1)] = 64
        """Channels of the sum over all layers, and of the layer after it."""

    config: Config
    follows = "tanh"

    def __init__(self, config: Config, outputs: int, context: int = 0) -> None:
        super().__init__(config, outputs, context)
        self.skip = Linear(len(self.blocks) * config.width, config.skip)
        self.hidden = Linear(config.skip, config.skip)
        self.last = shrink_weights(Linear(config.skip, outputs))

    def block(self, dilation: int) -> DilatedBlock:
        c = self.config
        return GatedBlock(c.width, c.kernel, dilation, self.context, c.dropout)

    def end(self, read: list[Tensor]) -> Tensor:
        h = torch.cat(read, -1)
        for layer in (self.skip, self.hidden):
            h = F.linear(h, layer.weight, layer.bias).relu_()
        return F.linear(h, self.last.weight, self.last.bias)


class PlainBlock(DilatedBlock):
    """relu(h + F(h)), F two causal convolutions of the same dilation, each followed by a ReLU."""

    def __init__(
        self, width: int, kernel: int, dilation: int, context: int, dropout: float
    ) -> None:
        convs = [CausalConv(width, width, kernel, dilation) for _ in range(2)]
        super().__init__(convs, context, dropout)

    def over(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        y = self.drop(F.relu(self.first(x, context)))
        y = self.drop(F.relu(self.convs[1].over(y)))
        h = F.relu(x[:, self.past :] + y)
        return h, h

    def stepper(self, number: int) -> BlockStep:
        def step(x: Tensor, convolve: Convolve) -> tuple[Tensor, Tensor]:
            y = F.relu(convolve(number, x))
            h = F.relu(x + F.relu(convolve(number + 1, y)))
            return h, h

        return step


class TCNStack(DilatedStack):
    """Residual blocks of two plain convolutions each; the output reads only the last block (Bai,
    Kolter & Koltun 2018). A block reaches twice as far as a layer of WaveNet."""

    class Config(DilatedStack.Config):
        tag = "dilated/tcn"

    config: Config

    def __init__(self, config: Config, outputs: int, context: int = 0) -> None:
        super().__init__(config, outputs, context)
        self.last = shrink_weights(Linear(config.width, outputs))
        if config.init == "auto" and len(self.blocks) > DEEP:
            for block in self.blocks:  # what is added is positive: each block adds only its part
                with torch.no_grad():
                    block.convs[-1].weight.mul_(DEEP / len(self.blocks))
                    block.convs[-1].bias.zero_()

    def block(self, dilation: int) -> DilatedBlock:
        c = self.config
        return PlainBlock(c.width, c.kernel, dilation, self.context, c.dropout)

    def end(self, read: list[Tensor]) -> Tensor:
        return self.last(read[-1])


class ContinuousBlock(DilatedBlock):
    """h + F(h): a continuous causal convolution, SiLU, and a linear map."""

    def __init__(self, config: ContinuousStack.Config, context: int) -> None:
        width, net = config.width, config.kernel_net
        conv = ContinuousCausalConv(width, width, config.kernel, config.rates, net)
        super().__init__([conv], context, config.dropout)
        self.out = Linear(width, width)

    def over(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        h = x[:, self.past :] + self.drop(self.out(F.silu(self.first(x, context))))
        return h, h

    def stepper(self, number: int) -> BlockStep:
        def step(x: Tensor, convolve: Convolve) -> tuple[Tensor, Tensor]:
            h = x + self.out(F.silu(convolve(number, x)))
            return h, h

        return step


class ContinuousStack(DilatedStack):
    """Residual blocks of continuous convolutions: the weight of an input is a network of its
    distance, so that a layer reads any number of past steps with the same parameters (Romero et
    al. 2022)."""

    class Config(DilatedStack.Config):
        tag = "dilated/continuous"
        layers: Annotated[int, Range(1, MAX_LAYERS)] = 3
        """Layers, each of which reads `kernel` steps."""
        kernel: Annotated[int, Range(2)] = 64
        """Steps that a layer reads: its present input and the ones before."""
        rates: Annotated[int, Range(1, 30)] = 6
        """Doubling frequencies of the distance that the network of the weights reads."""
        kernel_net: MLP.Config = MLP.Config(width=32, depth=1)
        """Network from a distance to the weights of a layer; its initial weights are those of
        kernel_net.init."""

    config: Config
    follows = "silu"

    def __init__(self, config: Config, outputs: int, context: int = 0) -> None:
        super().__init__(config, outputs, context)
        self.last = shrink_weights(Linear(config.width, outputs))

    def block(self, dilation: int) -> DilatedBlock:
        return ContinuousBlock(self.config, self.context)

    def end(self, read: list[Tensor]) -> Tensor:
        return self.last(read[-1])


def shrink_weights(layer: nn.Linear) -> nn.Linear:
    """Scale down the initial weights of an output layer and zero its bias."""
    with torch.no_grad():
        layer.weight.mul_(0.1)
        layer.bias.zero_()
    return layer
