r"""Transformer blocks: attention followed by a position-wise network.

A block is attention and a position-wise network, each with a residual connection, with a norm
after the sum, $H = \mathrm{LN}(X + \mathrm{MHA}(X))$, $Y = \mathrm{LN}(H + \mathrm{FFN}(H))$
(Vaswani et al. 2017), or before the map, $H = X + \mathrm{MHA}(\mathrm{LN} X)$, $Y = H +
\mathrm{FFN}(\mathrm{LN} H)$ (Xiong et al. 2020), which trains without a long warm-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

from torch import Tensor, nn

from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ..fast_step import ResidualStep, StepMap, prepare, prepare_gelu_residual, prepare_residual
from ..layers.activation import Activation, activation
from ..layers.dropout import Dropout
from ..layers.init import Init
from ..layers.linear import Linear
from ..stepwise import State, Stepwise
from .beam_cache import CrossAttentionState, branch
from .linear import CausalLinearAttention, LinearAttention
from .position import Join, Positions
from .softmax import CausalAttention, CrossAttention, CrossAttentionMemory, SelfAttention


class TransformerConfig(BaseConfig):
    """Settings shared by all transformer stacks."""

    width: Annotated[int, Range(1)] = 128
    """Width of the vectors that pass from block to block."""
    depth: Annotated[int, Range(1, MAX_LAYERS)] = 4
    """Number of blocks."""
    heads: Annotated[int, Range(1)] = 4
    """Attention heads, which share the width."""
    expand: Annotated[int, Range(1)] = 4
    """Hidden units of the position-wise network, as a multiple of the width."""
    activation: Activation = "gelu"
    """Function of the hidden units."""
    norm: Literal["pre", "post"] = "pre"
    """Position of the norm: before each map, or after each sum."""
    attention: Literal["softmax", "linear"] = "softmax"
    """Softmax attention, at a cost of T^2, or linear attention, at a cost of T."""
    positions: Positions = "learned"
    """Positional encoding: vectors at the input, rotated queries and keys, or a score bias."""
    join: Join = "add"
    """Whether position vectors are added to the steps or concatenated with them."""
    dropout: Annotated[float, Range(0, 0.95)] = 0.0
    """Dropout rate of attention weights, hidden units and block outputs."""
    init: Init = "auto"
    """Initial weights: N(0, 0.02^2) (auto), by the activation (he, xavier, orthogonal), small, or
    torch's own; unless torch's, the last maps of the residual branches are divided by the root of
    their number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        absolute = self.positions in ("none", "sinusoidal", "learned")
        if self.attention == "linear" and not absolute:
            raise UsageError(
                f"positions={self.positions} change the attention scores, which "
                "attention=linear does not compute; choose learned or sinusoidal positions"
            )


class FeedForward(nn.Module):
    """W_2 a(W_1 x + b_1) + b_2, at each step separately."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden = config.expand * config.width
        self.enter, self.leave = Linear(config.width, hidden), Linear(hidden, config.width)
        self.act, self.drop = activation(config.activation), Dropout(config.dropout)

    @property
    def layers(self) -> list[nn.Module]:
        return [self.enter, self.act, self.drop, self.leave]

    def forward(self, x: Tensor) -> Tensor:  # (..., width) -> (..., width)
        for layer in self.layers:
            x = layer(x)
        return x

    def ready(self) -> ResidualStep:
        if isinstance(self.act, nn.GELU):
            return prepare_gelu_residual(self.enter, self.leave)
        inner, leave = prepare(self.enter, self.act), prepare_residual(self.leave)
        return lambda x, h: leave(x, inner(h))


class NormedResidual(nn.Module):
    """LN(x + f(x)), or x + f(LN(x)); f is passed at every call, as it may have other inputs."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm, self.pre = nn.LayerNorm(config.width), config.norm == "pre"
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.drop(f(self.norm(x)))
        return self.norm(x + self.drop(f(x)))


class EncoderBlock(nn.Module):
    """Attention to every step, then the position-wise network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, heads = config.width, config.heads
        self.attention = (
            LinearAttention(width, heads)
            if config.attention == "linear"
            else SelfAttention(width, heads, config.positions, config.dropout)
        )
        self.think = FeedForward(config)
        self.first, self.last = NormedResidual(config), NormedResidual(config)

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        x = self.first(x, lambda h: self.attention(h, length))
        return self.last(x, self.think)


@dataclass
class TransformerBlockState(State):
    """The past of a block's attention, and the memory it attends to."""

    past: Any  # the state of its attention
    memory: CrossAttentionState | None
    leave: ResidualStep  # the output map of attention; it and the maps below are prepared
    think: ResidualStep
    first: StepMap
    last: StepMap
    middle: StepMap | None = None

    def reorder(self, rows: Tensor, beams: int = 1) -> None:
        """Each group of `beams` neighbouring rows stores its common past once."""
        self.past = branch(self.past, rows, beams)
        if self.memory is not None:
            self.memory.reorder(rows, beams)


class CausalBlock(Stepwise[TransformerBlockState]):
    """Attention to the past, attention to a memory if there is one, then the position-wise
    network. memory: width of the other sequence; 0 for none."""

    def __init__(self, config: TransformerConfig, memory: int = 0) -> None:
        super().__init__()
        width, heads = config.width, config.heads
        self.inputs = self.outputs = width
        self.pre = config.norm == "pre"
        self.attention: CausalLinearAttention | CausalAttention = (
            CausalLinearAttention(width, heads)
            if config.attention == "linear"
            else CausalAttention(width, heads, config.positions, config.dropout)
        )
        self.ask = CrossAttention(width, heads, memory, config.dropout) if memory else None
        self.think = FeedForward(config)
        self.first, self.last = NormedResidual(config), NormedResidual(config)
        self.middle = NormedResidual(config) if memory else None

    def forward(self, x: Tensor, memory: CrossAttentionMemory | None = None) -> Tensor:
        x = self.first(x, self.attention)
        return self.last(self.cross_attend(x, memory), self.think)

    def weights(self, x: Tensor, memory: CrossAttentionMemory) -> Tensor:
        """Attention weights of each step over the memory's, (B, heads, T, S)."""
        h = self.first(x, self.attention)
        ask, middle = cast(CrossAttention, self.ask), cast(NormedResidual, self.middle)
        return ask.weights(middle.norm(h) if self.pre else h, memory)

    def cross_attend(self, x: Tensor, memory: CrossAttentionMemory | None) -> Tensor:
        if self.ask is None or self.middle is None or memory is None:
            return x
        ask = self.ask
        return self.middle(x, lambda h: ask(h, memory))

    def start(
        self, n: int, max_steps: int, memory: CrossAttentionMemory | None = None
    ) -> TransformerBlockState:
        state = TransformerBlockState(
            self.attention.start(n, max_steps),
            None,
            prepare_residual(self.attention.leave),
            self.think.ready(),
            prepare(self.first.norm),
            prepare(self.last.norm),
        )
        if self.ask is None or self.middle is None or memory is None:
            return state
        return replace(
            state, memory=CrossAttentionState(self.ask, memory), middle=prepare(self.middle.norm)
        )

    def step(self, state: TransformerBlockState, x: Tensor) -> Tensor:
        found = state.past.find(state.first(x) if self.pre else x)  # (n, width)
        x = state.leave(x, found)
        x = x if self.pre else state.first(x)
        if state.memory and state.middle:
            x = state.memory.attend(x, state.middle(x) if self.pre else x)
            x = x if self.pre else state.middle(x)
        return state.think(x, state.last(x)) if self.pre else state.last(state.think(x, x))
