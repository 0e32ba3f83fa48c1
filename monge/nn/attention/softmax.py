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
from ..layers.dropout import drop_elements
from ..layers.linear import Linear, onednn_inputs, product
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
        self.enter, self.leave = Linear(width, 3 * width), Linear(width, width)
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


class StepProjection:
    """Queries, keys and values of a step, queries scaled and both rotated where positions ask for
    it. They are views of one buffer, which the next step overwrites: a step of a few rows is
    mostly overhead, and views that stay need not be made again."""

    def __init__(self, layer: CausalAttention, max_steps: int, gain: float) -> None:
        """gain: factor of the queries."""
        self.heads, self.size = layer.heads, layer.size
        gains = layer.leave.weight.new_ones(3, 1, 1)
        gains[0] = gain
        weight = layer.enter.weight.detach().t().unflatten(1, (3, self.heads, -1)) * gains
        bias = layer.enter.bias.detach().unflatten(0, (3, self.heads, -1)) * gains
        self.weight = weight.transpose(1, 2).reshape(layer.inputs, -1)  # (inputs, heads 3 d), so
        self.bias = bias.transpose(0, 1).reshape(1, -1)  # that rows and heads are one axis
        self.turned, self.many = self.weight.t(), onednn_inputs(self.weight)
        self.angles: list[tuple[Tensor, Tensor]] = []  # (d,) each
        if layer.rotary is not None:
            cos, sin = layer.rotary.table(max_steps)
            self.angles = list(zip(cos.unbind(), sin.unbind(), strict=True))

    def resize(self, n: int) -> None:
        """Make room for steps of n sequences; the next calls take n rows."""
        self.buffer = self.weight.new_empty(n, self.bias.shape[1])
        parts = self.buffer.view(n, self.heads, 3, self.size)
        self.q, self.k, self.v = parts.unbind(2)  # (n, heads, d) each
        self.qk, self.kv = parts[:, :, :2], parts[:, :, 1:].permute(2, 0, 1, 3)
        self.queries = self.q.view(n * self.heads, 1, self.size)

    def __call__(self, x: Tensor, place: int) -> None:
        """x: (n, width), the step at this place."""
        if x.numel() < self.many:
            torch.addmm(self.bias, x, self.weight, out=self.buffer)
        else:
            self.buffer.copy_(product(x, self.turned, self.bias[0]))
        if self.angles:
            cos, sin = self.angles[place]
            turned = self.qk.roll(self.size // 2, -1).mul_(sin)
            torch.addcmul(turned, self.qk, cos, out=self.qk)


class KeyValueCache(State):
    """Keys and values of the steps so far, at the front of buffers for `max_steps`; the input map
    and the positional terms are prepared in advance.

    Two products are faster than the fused kernel for one query and many keys.
    """

    def __init__(self, layer: CausalAttention, n: int, max_steps: int) -> None:
        size, like = layer.size, layer.leave.weight
        self.project = StepProjection(layer, max_steps, size**-0.5)  # not the scores are scaled
        self.bias: Tensor | None = None  # (n heads, 1, max_steps): distances max_steps - 1 to 0
        if layer.relative is not None:
            distance = torch.arange(max_steps - 1, -1, -1, device=like.device)
            self.bias = layer.relative.of(distance)[:, None].detach().repeat(n, 1, 1)
        self.steps, self.max_steps = 0, max_steps
        self.store(n)

    def store(self, n: int) -> None:
        """Make room for n sequences; products take rows and heads as one axis."""
        heads, size = self.project.heads, self.project.size
        self.cache = self.project.weight.new_empty(2, n, heads, self.max_steps, size)
        self.places = self.cache.unbind(3)  # (2, n, heads, d) each
        k, self.values = self.cache.flatten(1, 2)  # (n heads, max_steps, d)
        self.keys = k.mT
        self.rows, self.strides = n * heads, (self.keys.stride(), self.values.stride())
        self.found = self.cache.new_empty(n * heads, 1, size)
        self.merged = self.found.view(n, heads * size)
        self.project.resize(n)

    def reorder(self, rows: Tensor) -> None:
        past = self.cache[:, :, :, : self.steps].index_select(1, rows)
        if len(rows) != self.cache.shape[1]:
            self.store(len(rows))
        self.cache[:, :, :, : self.steps] = past
        if self.bias is not None:
            self.bias = self.bias[: self.project.heads].repeat(len(rows), 1, 1)  # equal in all

    def find(self, x: Tensor) -> Tensor:
        """Add the step x (n, width) and attend to all so far: the concatenated outputs of the
        heads (n, width), which the next step overwrites."""
        place, project = self.steps, self.project
        check_room(place, self.max_steps)
        project(x, place)
        self.places[place].copy_(project.kv)
        self.steps = past = place + 1
        rows, size = self.rows, project.size  # half the time of `narrow` twice
        keys = self.keys.as_strided((rows, size, past), self.strides[0])
        values = self.values.as_strided((rows, past, size), self.strides[1])
        if self.bias is None:
            scores = torch.bmm(project.queries, keys)  # (n heads, 1, t + 1)
        else:
            bias = self.bias.narrow(2, self.max_steps - past, past)
            scores = torch.baddbmm(bias, project.queries, keys)
        torch.bmm(torch.softmax(scores, 2, out=scores), values, out=self.found)
        return self.merged


def check_room(steps: int, max_steps: int) -> None:
    if steps == max_steps:
        raise UsageError(
            f"expected at most the {steps} steps that the state was started for, found one more; "
            "start it with more"
        )


class CausalAttention(MultiHeadAttention, Stepwise[KeyValueCache]):
    """Self-attention in which a step attends to itself and to those before it."""

    causal = True

    def start(self, n: int, max_steps: int) -> KeyValueCache:
        return KeyValueCache(self, n, max_steps)

    def step(self, state: KeyValueCache, x: Tensor) -> Tensor:
        return self.leave(state.find(x))


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
        self.ask, self.leave = Linear(width, width), Linear(width, width)
        self.enter = Linear(memory or width, 2 * width)

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
