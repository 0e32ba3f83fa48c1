r"""Multi-head softmax attention: self, causal (with cache) and cross.

$A = \mathrm{softmax}(Q K^\top / \sqrt d + M)$, $H = A V$ (Vaswani et al. 2017), where d is the
width of queries and keys, and M is added: minus infinity where a query may not attend, a
relative bias if there is one, 0 elsewhere. Several heads attend in parallel, each in its own part
of the width. The cost is that of T^2 products; a step with cached keys and values costs T.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import DataError, UsageError
from ..fast_step import prepare_linear
from ..layers.dropout import drop_elements
from ..stepwise import State, Stepwise
from .position import Positions, RelativeBias, RotaryPositions, relative_bias, rotate


def causal_mask(queries: int, keys: int, like: Tensor) -> Tensor:
    """0 where key s <= query t, minus infinity beyond, (queries, keys)."""
    late = torch.ones(queries, keys, dtype=torch.bool, device=like.device).triu(1)
    return torch.zeros(queries, keys, dtype=like.dtype, device=like.device).masked_fill_(
        late, -math.inf
    )


def padding_mask(length: Tensor, steps: int, like: Tensor) -> Tensor:
    """0 on the steps that exist and minus infinity on padding, (B, 1, 1, steps)."""
    check_lengths(length)
    beyond = torch.arange(steps, device=like.device) >= length[:, None]  # (B, T)
    mask = torch.zeros(beyond.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(beyond, -math.inf)[:, None, None]


def check_lengths(length: Tensor) -> None:
    if not torch.compiler.is_compiling() and bool(
        (length < 1).any()
    ):  # values are unknown in a trace
        row = int((length < 1).nonzero()[0])
        raise DataError(
            f"sequence {row} has length {int(length[row])}, expected "
            "at least 1; remove empty sequences"
        )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k' / sqrt(d) + mask) v for q (..., T, d), k (..., S, d), v (..., S, e)."""
    if dropout:  # torch's fused kernel has no dropout
        return drop_elements(attention_weights(q, k, mask, causal), dropout) @ v
    if causal and mask is not None:
        mask, causal = mask + causal_mask(q.shape[-2], k.shape[-2], q), False
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """The weights (..., T, S) that `attend` gives to the values."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(
        -1, -2
    )  # scaling q is cheaper than scaling the scores
    if causal:
        scores = scores.add_(causal_mask(q.shape[-2], k.shape[-2], q))
    return (scores if mask is None else scores + mask).softmax(-1)


def self_attend(x: Tensor, causal: bool = False) -> Tensor:
    """h_t = sum_s softmax_s(x_t . x_s / sqrt(d)) x_s, without parameters, for x (B, T, d)."""
    return attend(x, x, x, causal=causal)


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts * width) as `parts` tensors (B, heads, T, d), whose gradients are joined by one
    copy."""
    return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in x.chunk(parts, -1))


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads, (B, heads, T, d) -> (B, T, width)."""
    return x.transpose(1, 2).flatten(2)


def check_heads(width: int, heads: int) -> int:
    """The width of a head."""
    if width % heads:
        raise UsageError(f"width={width} does not divide into heads={heads}; choose a multiple")
    return width // heads


class AttentionInputs(NamedTuple):
    """Inputs of a pass of self-attention."""

    q: Tensor  # (B, heads, T, d)
    k: Tensor  # (B, heads, T, d)
    v: Tensor  # (B, heads, T, d)
    mask: Tensor | None  # broadcasts against (B, heads, T, T)


class MultiHeadAttention(nn.Module, abc.ABC):
    """Multi-head self-attention: [Q, K, V] = X W, each head attends in its own d of the width,
    and a last map mixes the heads."""

    causal: bool

    def __init__(
        self, width: int, heads: int, positions: Positions = "none", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.inputs = self.outputs = width
        self.heads, self.size, self.dropout = heads, check_heads(width, heads), dropout
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rotary = RotaryPositions(self.size) if positions == "rotary" else None
        self.relative: RelativeBias | None = relative_bias(positions, heads)

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        """(B, T, width) -> (B, T, width); steps from `length` (B,) on are masked."""
        q, k, v, mask = self.project(x, length)
        dropout = self.dropout if self.training else 0.0
        return self.leave(merge_heads(attend(q, k, v, mask, self.causal, dropout)))

    def weights(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        """Attention weights of each head, (B, heads, T, T)."""
        q, k, _, mask = self.project(x, length)
        return attention_weights(q, k, mask, self.causal)

    def project(self, x: Tensor, length: Tensor | None) -> AttentionInputs:
        q, k, v = split_heads(self.enter(x), 3, self.heads)
        if self.rotary is not None:
            angles = self.rotary.table(x.shape[1])
            q, k = rotate(q, *angles), rotate(k, *angles)
        steps = x.shape[1]
        mask = None if self.relative is None else self.relative(steps, steps)[None]  # (1, H, T, T)
        if length is not None:
            padding = padding_mask(length, steps, x)
            mask = padding if mask is None else mask + padding
        return AttentionInputs(q, k, v, mask)


class SelfAttention(MultiHeadAttention):
    """Self-attention in which every step attends to all, itself included."""

    causal = False


class KeyValueCache(State):
    """Keys and values of the steps so far, at the front of buffers for `max_steps`; the input map
    and the positional terms are prepared in advance.

    Keys are stored by columns, which is faster than the fused kernel for one query and many keys.
    """

    def __init__(self, layer: CausalAttention, n: int, max_steps: int) -> None:
        heads, size, like = layer.heads, layer.size, layer.leave.weight
        gain = torch.cat(
            [like.new_full((layer.inputs,), size**-0.5), like.new_ones(2 * layer.inputs)]
        )  # queries are scaled, not scores
        self.enter = prepare_linear(layer.enter, gain)
        self.angles = None  # (max_steps, d) each
        if layer.rotary is not None:
            self.angles = layer.rotary.table(max_steps)
        self.bias: Tensor | None = None  # (n heads, 1, max_steps): distances max_steps - 1 to 0
        if layer.relative is not None:
            distance = torch.arange(max_steps - 1, -1, -1, device=like.device)
            self.bias = layer.relative.of(distance)[:, None].repeat(n, 1, 1)
        self.steps, self.max_steps = 0, max_steps
        self.store(
            like.new_empty(n, heads, size, max_steps), like.new_empty(n, heads, max_steps, size)
        )

    def store(self, k: Tensor, v: Tensor) -> None:
        """k: (n, heads, d, max_steps), v: (n, heads, max_steps, d); products
        take rows and heads as one axis."""
        self.k, self.v, self.keys, self.values = k, v, k.flatten(0, 1), v.flatten(0, 1)
        self.strides = self.keys.stride(), self.values.stride()

    def reorder(self, rows: Tensor) -> None:
        self.store(self.k.index_select(0, rows), self.v.index_select(0, rows))
        if self.bias is not None:
            self.bias = self.bias[: self.k.shape[1]].repeat(len(rows), 1, 1)  # equal in every row

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Add a step's keys and values and attend to all so far: (n, heads, d) each -> (n heads,
        1, d)."""
        place, past = self.steps, self.steps + 1
        if place == self.max_steps:
            raise UsageError(
                f"expected at most the {place} steps that the state was started for, found one "
                "more; start it with more"
            )
        self.k.select(3, place).copy_(k)
        self.v.select(2, place).copy_(v)
        self.steps = past
        count, size = len(self.keys), q.shape[2]
        q = q.reshape(count, 1, size)
        keys = self.keys.as_strided((count, size, past), self.strides[0])  # faster than narrow
        values = self.values.as_strided((count, past, size), self.strides[1])
        if self.bias is None:
            scores = torch.bmm(q, keys)  # (n heads, 1, t + 1)
        else:
            bias = self.bias.narrow(2, self.max_steps - past, past)
            scores = torch.baddbmm(bias, q, keys)
        return torch.bmm(scores.softmax(2), values)


class CausalAttention(MultiHeadAttention, Stepwise[KeyValueCache]):
    """Self-attention in which a step attends to itself and to those before it."""

    causal = True

    def start(self, n: int, max_steps: int) -> KeyValueCache:
        return KeyValueCache(self, n, max_steps)

    def step(self, state: KeyValueCache, x: Tensor) -> Tensor:
        return self.leave(self.find(state, x))

    def find(self, state: KeyValueCache, x: Tensor) -> Tensor:
        """The concatenated outputs of the heads at a step, (n, width)."""
        n, place = x.shape[0], state.steps
        q, k, v = state.enter(x).view(n, 3, self.heads, self.size).unbind(1)  # (n, heads, d)
        if state.angles is not None:
            cos, sin = state.angles[0][place], state.angles[1][place]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return state.attend(q, k, v).view(n, -1)


@dataclass
class CrossAttentionMemory(State):
    """Keys and values of another sequence for cross-attention, computed once."""

    k: Tensor  # (B, heads, S, d)
    v: Tensor  # (B, heads, S, d)
    mask: Tensor | None  # (B, 1, 1, S)

    def reorder(self, rows: Tensor) -> None:
        self.k, self.v = self.k[rows], self.v[rows]
        self.mask = None if self.mask is None else self.mask[rows]


class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another: Q = X W_q, [K, V] = Y W.

    The other sequence is known from the start, so a step of x is a sequence of length one.
    """

    def __init__(
        self, width: int, heads: int, memory: int | None = None, dropout: float = 0.0
    ) -> None:
        """memory: width of the other sequence, if it differs."""
        super().__init__()
        self.heads, self.size, self.dropout = heads, check_heads(width, heads), dropout
        self.ask, self.leave = nn.Linear(width, width), nn.Linear(width, width)
        self.enter = nn.Linear(memory or width, 2 * width)

    def encode_memory(self, y: Tensor, length: Tensor | None = None) -> CrossAttentionMemory:
        """Keys and values of y (B, S, memory), of which the first `length` (B,) steps exist."""
        k, v = split_heads(self.enter(y), 2, self.heads)
        return CrossAttentionMemory(
            k, v, None if length is None else padding_mask(length, y.shape[1], y)
        )

    def forward(
        self, x: Tensor, memory: CrossAttentionMemory
    ) -> Tensor:  # (B, T, width) -> (B, T, width)
        (q,) = split_heads(self.ask(x), 1, self.heads)
        dropout = self.dropout if self.training else 0.0
        return self.leave(merge_heads(attend(q, memory.k, memory.v, memory.mask, dropout=dropout)))

    def weights(self, x: Tensor, memory: CrossAttentionMemory) -> Tensor:
        """Attention weights of each step of x over the memory's, (B, heads, T, S)."""
        (q,) = split_heads(self.ask(x), 1, self.heads)
        return attention_weights(q, memory.k, memory.mask)
