"""Transformers: stacks of blocks that read a sequence.

`TransformerEncoder`: every step attends to all. `CausalTransformer`: to itself and those before
it. `DecoderStack`: likewise, and to all steps of another sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from ...core.config import Configured
from ..fast_step import StepMap, prepare
from ..layers.dropout import Dropout
from ..layers.init import initialise
from ..layers.linear import Linear
from ..stepwise import State, Stepwise
from .blocks import CausalBlock, EncoderBlock, TransformerBlockState, TransformerConfig
from .position import absolute_positions
from .softmax import CrossAttention, CrossAttentionMemory

INIT_STD = 0.02
"""Standard deviation of the weights at the start (Radford et al. 2019)."""


class InputProjection(nn.Module):
    """Steps (B, T, inputs) as vectors of the blocks' width with positions."""

    def __init__(self, config: TransformerConfig, inputs: int, max_steps: int) -> None:
        super().__init__()
        self.places = absolute_positions(config.positions, inputs, max_steps, config.join)
        joined = inputs if self.places is None else self.places.outputs
        self.lift = Linear(joined, config.width) if joined != config.width else None
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x if self.places is None else self.places(x))

    def project(self, x: Tensor) -> Tensor:
        return self.drop(x if self.lift is None else self.lift(x))

    def start(self, max_steps: int) -> Callable[[Tensor, int], Tensor]:
        """A function that projects one step (n, inputs) at a position, with prepared vectors."""
        lift = None if self.lift is None else prepare(self.lift)
        if self.places is None:
            return lambda x, place: x if lift is None else lift(x)
        table, joined = self.places.table(max_steps).unbind(), self.places.combine

        def step(x: Tensor, place: int) -> Tensor:
            x = joined(x, table[place])
            return x if lift is None else lift(x)

        return step


class TransformerEncoder(Configured, nn.Module):
    """(B, T, inputs) -> (B, T, width): every step depends on all others.

    max_steps: steps of the longest sequence, needed for learned positions.
    """

    class Config(TransformerConfig):
        tag = "transformer/encoder"

    def __init__(self, config: Config, inputs: int, max_steps: int = 0) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, config.width
        self.entrance = InputProjection(config, inputs, max_steps)
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.depth))
        self.norm = last_norm(config)
        init_weights(self, config)

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        """Steps from `length` (B,) on are masked."""
        x = self.entrance(x)
        for block in self.blocks:
            x = block(x, length)
        return self.norm(x)


@dataclass
class TransformerState(State):
    """The states of all blocks, and the prepared input and output maps."""

    blocks: list[
        tuple[Callable[..., Tensor], TransformerBlockState]
    ]  # each with the step that changes it
    enter: Callable[[Tensor, int], Tensor]  # the prepared input projection
    leave: StepMap  # the prepared last norm and map
    steps: int = 0

    def reorder(self, rows: Tensor, beams: int = 1) -> None:
        for _, block in self.blocks:
            block.reorder(rows, beams)


class CausalTransformer(Configured, Stepwise[TransformerState]):
    """(B, T, inputs) -> (B, T, outputs): every step depends on itself and those before it."""

    class Config(TransformerConfig):
        tag = "transformer/causal"

    def __init__(
        self, config: Config, inputs: int, outputs: int, max_steps: int = 0, memory: int = 0
    ) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.entrance = InputProjection(config, inputs, max_steps)
        self.blocks = nn.ModuleList(CausalBlock(config, memory) for _ in range(config.depth))
        self.norm, self.leave = last_norm(config), Linear(config.width, outputs)
        init_weights(self, config)
        nn.init.zeros_(self.leave.bias)

    @property
    def each(self) -> Sequence[CausalBlock]:
        return [cast(CausalBlock, block) for block in self.blocks]

    def forward(self, x: Tensor, memories: Sequence[CrossAttentionMemory | None] = ()) -> Tensor:
        x = self.entrance(x)
        for block, memory in zip(self.each, memories or [None] * len(self.blocks), strict=True):
            x = block(x, memory)
        return self.leave(self.norm(x))

    def start(
        self, n: int, max_steps: int, memories: Sequence[CrossAttentionMemory | None] = ()
    ) -> TransformerState:
        pairs = zip(self.each, memories or [None] * len(self.blocks), strict=True)
        return TransformerState(
            [(block.step, block.start(n, max_steps, memory)) for block, memory in pairs],
            self.entrance.start(max_steps),
            prepare(self.norm, self.leave),
        )

    def step(self, state: TransformerState, x: Tensor) -> Tensor:
        x = state.enter(x, state.steps)
        state.steps += 1
        for step, own in state.blocks:
            x = step(own, x)
        return state.leave(x)


class DecoderStack(Configured, nn.Module):
    """(B, T, inputs) -> (B, T, outputs): every step depends on those before it and on all
    steps of a memory (B, S, memory), such as an encoder's output."""

    class Config(TransformerConfig):
        tag = "transformer/decoder"

    def __init__(
        self, config: Config, inputs: int, outputs: int, memory: int, max_steps: int = 0
    ) -> None:
        super().__init__()
        self.stack = CausalTransformer(cast(Any, config), inputs, outputs, max_steps, memory)

    def encode_memory(
        self, memory: Tensor, length: Tensor | None = None
    ) -> list[CrossAttentionMemory | None]:
        """Keys and values of the memory for each block; its first `length` (B,) steps exist."""
        return [
            cast(CrossAttention, block.ask).encode_memory(memory, length)
            for block in self.stack.each
        ]

    def forward(self, x: Tensor, memory: Tensor, length: Tensor | None = None) -> Tensor:
        return self.stack(x, self.encode_memory(memory, length))

    def weights(self, x: Tensor, memory: Tensor, length: Tensor | None = None) -> Tensor:
        """Attention weights over the memory in the last block, (B, heads, T, S)."""
        *below, last = zip(self.stack.each, self.encode_memory(memory, length), strict=True)
        x = self.stack.entrance(x)
        for block, own in below:
            x = block(x, own)
        return last[0].weights(x, cast(CrossAttentionMemory, last[1]))

    def start(
        self, n: int, max_steps: int, memory: Tensor, length: Tensor | None = None
    ) -> TransformerState:
        return self.stack.start(n, max_steps, self.encode_memory(memory, length))

    def step(self, state: TransformerState, x: Tensor) -> Tensor:  # (n, inputs) -> (n, outputs)
        return self.stack.step(state, x)


def last_norm(config: TransformerConfig) -> nn.Module:
    """The final norm, needed by blocks that normalise before their maps."""
    return nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()


def init_weights(stack: nn.Module, config: TransformerConfig) -> None:
    """Small weights, or those of the setting `init`; the output maps of the 2 depth residual
    branches are smaller still."""
    if config.init == "torch":
        return
    share = (2 * config.depth) ** -0.5
    if config.init != "auto":
        initialise(stack, config.init, config.activation)
    for name, module in stack.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        inner = name.endswith(".leave")
        if config.init == "auto":
            nn.init.normal_(module.weight, std=INIT_STD * share if inner else INIT_STD)
        elif inner:
            module.weight.data.mul_(share)
        nn.init.zeros_(module.bias)
