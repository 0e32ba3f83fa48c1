r"""Neural autoregressive density estimator: one running sum of hidden units, entry by entry

$a_1 = b, \quad h_i = s(\rho_i a_i), \quad \theta_i = c_i + V_i h_i, \quad a_{i+1} = a_i + W_{:,i} x_i$

(Larochelle and Murray 2011; for reals, with mixtures of Gaussians, Uria, Murray and Larochelle
2013): the weights W are tied, so all D conditionals of H hidden units cost O(DH) a row, in scoring
and in drawing alike. $\rho_i = 1$, or a factor learned for each place, since sums of more terms
are larger.

To differentiate all at once would keep D H numbers a row. `Recurrence` keeps $a_i$ at about
$\sqrt{D}$ places and comes back through them, computing what lies between once more: backwards too
everything is O(DH), with $S_i = \sum_{j>i} \partial L / \partial a_j$ the running sum and
$\partial L / \partial W_{:,i} = S_i x_i$.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...core.batch import Batch
from ...core.config import Range
from ...core.model import Suit
from ...core.recipe import Recipe
from ...core.space import Space
from ...nn.masked import Stepping
from ._base import Again, Ordered, Orders, unshift_bits

Squash = Literal["sigmoid", "relu"]


class NADE(Ordered):
    r"""$p(x \mid g) = \prod_i p(x_i \mid \theta_i)$ with $\theta_i = c_i + V_i\, s(\rho_i (b + U g
    + \sum_{j<i} W_{:,j} x_j))$: Bernoulli, categorical, or mixtures as the entry is, bits read as
    0 and 1.

    Several orders share the weights; the law is the mean over them, and a step of training takes
    one, drawn at random.
    """

    class Config(Ordered.Config, Orders):
        width: Annotated[int, Range(1)] = 500
        """Hidden units."""
        activation: Squash = "sigmoid"
        """Function s of the running sums."""
        rescale: bool = False
        """Learn a factor for each place that keeps longer sums from saturating the units."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.places(space.dims))
        unshift_bits(self.features, space)
        self.net = Tied(config, self.places, self.features.owner, self.head.owner,
                        self.conditions.width)
        self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        self.net.bias.copy_(self.head.start())

    def outputs(self, batch: Batch, member: int) -> Tensor:
        return self.net(self.features(batch), self.context(batch), member)

    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], Stepping]:
        if cached:
            return self.net.stepper(member)
        return functools.partial(Again, self, member, functools.partial(self.net, member=member))

    @classmethod
    def suit(cls, space: Space) -> Suit:
        real = any(part.kind in ("real", "counts") for part in space.parts)
        config = cls.Config(activation="relu" if real else "sigmoid", rescale=real)
        return Suit(config, Recipe(batch=100, average=0.99))

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(width=16, components=2)


@dataclass(frozen=True)
class Plan:
    """One order: the features and parameters of the entry at each place, both sorted by place."""

    inputs: list[slice]
    outputs: list[slice]
    sorted: bool  # whether they stand in this order as they are

    @property
    def stride(self) -> int:
        """Places between two that are kept for the way back."""
        return math.isqrt(len(self.inputs) - 1) + 1


@dataclass(frozen=True)
class Weights:
    """What a pass reads, sorted by place; `rho` are the factors of the places, if there are any.

    A sigmoid is half of 1 + tanh of half its argument and costs twice as much, so that W, b and V
    are halved instead, and what remains is added to c.
    """

    first: Tensor  # (H,): a_1 without conditions
    into: Tensor  # (F, H)
    out: Tensor  # (P, H)
    bias: Tensor  # (P,)
    rho: Tensor | None  # (D,)


class Tied(nn.Module):
    """The network of every order: (B, F) and (B, context) to (B, P).

    places: (K, D); owner and target: (F,) and (P,), the entries of features and parameters.
    """

    columns: Tensor
    rows: Tensor

    def __init__(self, config: NADE.Config, places: Tensor, owner: Tensor, target: Tensor,
                 context: int) -> None:
        super().__init__()
        self.smooth, width = config.activation == "sigmoid", config.width
        self.first = nn.Parameter(torch.zeros(width))
        self.into = nn.Parameter(torch.randn(len(owner), width) / math.sqrt(len(owner)))
        self.out = nn.Parameter(torch.randn(len(target), width) * 0.1 / math.sqrt(width))
        self.bias = nn.Parameter(torch.zeros(len(target)))
        self.given = nn.Linear(context, width, bias=False) if context else None
        ranks = 0.5 * torch.arange(1, places.shape[1] + 1).log()
        self.log_rho = nn.Parameter(-ranks) if config.rescale else None
        sorts = [places[:, entries].sort(1, stable=True) for entries in (owner, target)]
        for name, (_, order) in zip(("columns", "rows"), sorts, strict=True):
            self.register_buffer(name, order, persistent=False)  # (K, F) and (K, P)
        self.plans = [plan(*found) for found in zip(*(s.values for s in sorts), strict=True)]
