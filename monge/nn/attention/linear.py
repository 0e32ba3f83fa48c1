r"""Linear attention: weights are products of features, so the past is summarised by sums.

$h_t = \frac{\phi(q_t)^\top S_t}{\phi(q_t)^\top Z_t}$, $S_t = \sum_s \phi(k_s) v_s^\top$, $Z_t =
\sum_s \phi(k_s)$, over all s or over s <= t, with $\phi(x) = \mathrm{elu}(x) + 1 > 0$
(Katharopoulos et al. 2020). The cost is linear in T, and the state of a step has constant size.
The causal pass works in chunks: within one it uses the quadratic form, for the steps before it the
sums S and Z.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..fast_step import StepMap, prepare
from ..layers.linear import Linear
from ..stepwise import State, Stepwise
from .softmax import check_heads, check_lengths, merge_heads, split_heads

CHUNK = 64
"""Steps of a chunk, chosen by `benchmarks/attention.py`."""


def feature_map(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1, written so that it is never rounded to 0."""
    return x.clamp(max=0).exp() + x.clamp(min=0)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, there: Tensor | None = None) -> Tensor:
    """Every step attends to all steps that are `there` (B, S): q (B, H, T, d), k (B, H, S, d) and
    v (B, H, S, e) -> (B, H, T, e)."""
    q, k = feature_map(q), feature_map(k)
    if there is not None:
        k = k * there[:, None, :, None]
    z = k.sum(2)[..., None]  # (B, H, d, 1)
    return (q @ (k.transpose(2, 3) @ v)) / (q @ z)


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor, chunk: int = CHUNK) -> Tensor:
    """A step attends to itself and to those before it, (B, H, T, d) and (B, H, T, e) throughout.

    Chunks are processed one by one, as each fits into the processor's cache.
    """
    flat = [x.flatten(0, 1).split(chunk, 1) for x in (q, k, v)]  # pieces (B H, C, d)
    s = q.new_zeros(len(flat[0][0]), q.shape[-1], v.shape[-1])
    z, parts = s.new_zeros(*s.shape[:2], 1), []
    for queries, keys, values in zip(*flat, strict=True):
        queries, keys = feature_map(queries), feature_map(keys)
        near = torch.bmm(queries, keys.transpose(1, 2)).tril()  # (B H, C, C)
        total = torch.baddbmm(near.sum(2, keepdim=True), queries, z)
        parts.append(torch.baddbmm(torch.bmm(near, values), queries, s) / total)
        s = torch.baddbmm(s, keys.transpose(1, 2), values)
        z = z + keys.sum(1)[..., None]
    return torch.cat(parts, 1).unflatten(0, q.shape[:2])


class LinearHeads(nn.Module, abc.ABC):
    """Multi-head linear self-attention: [Q, K, V] = X W, features of Q and K, and an output
    map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inputs = self.outputs = width
        self.heads, self.size = heads, check_heads(width, heads)
        self.enter, self.leave = Linear(width, 3 * width), Linear(width, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, heads, T, d)."""
        q, k, v = split_heads(self.enter(x), 3, self.heads)
        return q, k, v


class LinearAttention(LinearHeads):
    """Linear self-attention in which every step attends to all, itself included."""

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x)
        there = None
        if length is not None:
            check_lengths(length)
            there = torch.arange(x.shape[1], device=x.device) < length[:, None]  # (B, T)
        return self.leave(merge_heads(linear_attention(q, k, v, there)))


@dataclass
class LinearAttentionState(State):
    """S and Z of the steps so far, and the prepared map."""

    enter: StepMap
    s: Tensor  # (n, heads, d, d)
    z: Tensor  # (n, heads, d)

    def reorder(self, rows: Tensor) -> None:
        self.s, self.z = self.s[rows], self.z[rows]

    def find(self, x: Tensor) -> Tensor:
        """Add the step x (n, width): the concatenated outputs of the heads, (n, width)."""
        n, heads, size = self.z.shape
        q, k, v = self.enter(x).view(n, 3, heads, size).unbind(1)  # (n, heads, d)
        q, k = feature_map(q), feature_map(k)
        self.s.addcmul_(k[..., None], v[..., None, :])
        self.z.add_(k)
        h = (q[..., None, :] @ self.s).squeeze(-2)  # (n, heads, d)
        y = h / (q * self.z).sum(-1, keepdim=True)
        return y.reshape(n, -1)


class CausalLinearAttention(LinearHeads, Stepwise[LinearAttentionState]):
    """Linear self-attention in which a step attends to itself and to those before it."""

    def forward(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        return self.leave(merge_heads(causal_linear_attention(*self.project(x))))

    def start(self, n: int, max_steps: int) -> LinearAttentionState:
        new = self.leave.weight.new_zeros
        return LinearAttentionState(
            prepare(self.enter),
            new(n, self.heads, self.size, self.size),
            new(n, self.heads, self.size),
        )

    def step(self, state: LinearAttentionState, x: Tensor) -> Tensor:
        return self.leave(state.find(x))
