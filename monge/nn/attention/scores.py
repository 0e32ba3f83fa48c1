r"""Attention scores (dot, unscaled, bilinear, additive) and hard attention.

Scores: dot $q^\top k / \sqrt d$, unscaled $q^\top k$, bilinear $q^\top W k$ (Luong et al. 2015)
and additive $v^\top \tanh(W q + U k)$ (Bahdanau et al. 2015). Soft attention weighs all values by
the softmax of the scores; hard attention takes one (Xu et al. 2015): the best, one sampled from
the softmax, or the best after Gumbel noise (Jang et al.; Maddison et al. 2017). The discrete
choice is trained through the soft weights (straight-through) or by its log-probability.
"""

from __future__ import annotations

import abc
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import UsageError
from ..layers.linear import Linear

ScoreName = Literal["dot", "unscaled", "bilinear", "additive"]
HardChoice = Literal["argmax", "sample", "gumbel"]


class AttentionScore(nn.Module, abc.ABC):
    """Scores of queries and keys: q (B, T, queries), k (B, S, keys) -> (B, T, S)."""

    @abc.abstractmethod
    def forward(self, q: Tensor, k: Tensor) -> Tensor: ...


class DotScore(AttentionScore):
    """q . k / sqrt(d), or q . k, whose variance grows with d."""

    def __init__(self, scaled: bool = True) -> None:
        super().__init__()
        self.scaled = scaled

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        product = q @ k.transpose(1, 2)
        return product / math.sqrt(q.shape[-1]) if self.scaled else product


class BilinearScore(AttentionScore):
    """q' W k."""

    def __init__(self, queries: int, keys: int) -> None:
        super().__init__()
        self.map = Linear(queries, keys, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.map(q) @ k.transpose(1, 2)


class AdditiveScore(AttentionScore):
    """v' tanh(W q + U k), in a hidden space of size `width`."""

    def __init__(self, queries: int, keys: int, width: int) -> None:
        super().__init__()
        self.query, self.key = Linear(queries, width), Linear(keys, width, bias=False)
        self.out = Linear(width, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.out((self.query(q)[:, :, None] + self.key(k)[:, None]).tanh()).squeeze(-1)


def build_score(kind: ScoreName, queries: int, keys: int, width: int = 64) -> AttentionScore:
    """The score with this name between vectors of these widths."""
    if kind in ("dot", "unscaled") and queries != keys:
        raise UsageError(
            f"a dot product needs equal widths, got queries of {queries} and keys of "
            f"{keys}; choose bilinear or additive scores"
        )
    match kind:
        case "dot" | "unscaled":
            return DotScore(scaled=kind == "dot")
        case "bilinear":
            return BilinearScore(queries, keys)
        case "additive":
            return AdditiveScore(queries, keys, width)


class HardAttention(nn.Module):
    """h = v_j for a single j: argmax_j s_j, or j ~ softmax(s), or argmax_j (s_j + g_j).

    Where `straight`, the derivative is that of softmax(s / temperature), with the noise in s;
    otherwise it is zero, and `log_prob` serves the score-function estimator.
    """

    def __init__(
        self, choice: HardChoice = "argmax", temperature: float = 1.0, straight: bool = True
    ) -> None:
        super().__init__()
        self.choice, self.temperature, self.straight = choice, temperature, straight

    def forward(self, scores: Tensor, v: Tensor) -> Tensor:
        """scores (..., T, S) and values (..., S, D) -> (..., T, D)."""
        return self.weights(scores) @ v

    def weights(self, scores: Tensor) -> Tensor:
        """1 at the chosen step and 0 elsewhere, (..., T, S)."""
        if self.choice == "gumbel":
            scores = scores - torch.empty_like(scores).exponential_().log()
        if self.choice == "sample":
            flat = scores.softmax(-1).flatten(0, -2)  # (N, S)
            place = torch.multinomial(flat, 1).reshape(*scores.shape[:-1], 1)
        else:
            place = scores.argmax(-1, keepdim=True)
        hard = torch.zeros_like(scores).scatter_(-1, place, 1.0)
        if not self.straight:
            return hard
        soft = (scores / self.temperature).softmax(-1)
        return hard + (soft - soft.detach())


def log_prob(scores: Tensor, taken: Tensor) -> Tensor:
    """log softmax(s)_j of the step j at which `taken` (..., T, S) is 1, (..., T)."""
    return F.log_softmax(scores, -1).where(taken > 0.5, 0.0).sum(-1)
