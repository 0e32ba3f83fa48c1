r"""Self-attention in six steps, with numbers (Vaswani et al. 2017; Alammar 2018).

$Z = \mathrm{softmax}(Q K^\top / \sqrt{d_k})\, V$ with $Q = X W_Q$, $K = X W_K$, $V = X W_V$: X has
a row of width 4 for each token and the W are 4 x 3, so that Q, K and V have rows of width 3.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.rng import make_generator
from ..nn.attention.position import sinusoids
from ..nn.attention.softmax import attend, causal_mask

WIDTH, KEYS = 4, 3


@dataclass(frozen=True)
class AttentionStep:
    """One step: its name, its formula and its matrices, one row per token."""

    name: str
    formula: str
    values: dict[str, Tensor]


def attention_steps(
    tokens: Sequence[str], causal: bool = False, seed: int = 0
) -> list[AttentionStep]:
    """The six steps; equal tokens have equal vectors apart from the position encoding."""
    x = torch.stack([vector(token, seed) for token in tokens]) + sinusoids(len(tokens), WIDTH)
    maps = [
        torch.randn(WIDTH, KEYS, generator=make_generator(seed + place), dtype=torch.float64)
        for place in (1, 2, 3)
    ]
    q, k, v = (x @ each for each in maps)  # (T, 3)
    scores = q @ k.T  # (T, T)
    scaled = scores / math.sqrt(KEYS)
    masked = scaled + causal_mask(len(x), len(x), x) if causal else scaled
    weights = masked.softmax(1)
    parts = weights[..., None] * v  # (T, T, 3): row t holds the contribution of each token to t
    z = parts.sum(1)
    assert torch.allclose(z, attend(q, k, v, causal=causal)), "the steps are attention"
    return [
        AttentionStep(
            "1 vectors to queries, keys and values",
            "Q = X W_Q, K = X W_K, V = X W_V",
            {"X": x, "Q": q, "K": k, "V": v},
        ),
        AttentionStep("2 each query against every key", "S = Q K'", {"S": scores}),
        AttentionStep(
            f"3 divided by the square root of {KEYS}, the width of the keys",
            "S / sqrt(d_k)" + (" + mask" if causal else ""),
            {"S / √d": masked},
        ),
        AttentionStep(
            "4 softmax: weights that sum to one", "A = softmax(S / sqrt(d_k))", {"A": weights}
        ),
        AttentionStep(
            f"5 values weighted, here those of {tokens[-1]!r}", "a_ts v_s", {"a v": parts[-1]}
        ),
        AttentionStep("6 their sum", "Z = A V", {"Z": z}),
    ]


def vector(token: str, seed: int) -> Tensor:
    """A vector (4,) that depends on the token alone."""
    digest = hashlib.sha256(token.encode()).digest()
    return torch.randn(
        WIDTH,
        generator=make_generator(seed + int.from_bytes(digest[:4], "big")),
        dtype=torch.float64,
    )
