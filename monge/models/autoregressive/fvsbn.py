r"""Fully visible sigmoid belief network: each entry a logistic regression on those before it

$p(x_i = 1 \mid x_{<i}) = \sigma(\alpha^{(i)}_0 + \sum_{j<i} \alpha^{(i)}_j x_j)$ (Neal 1992; Frey,
Hinton and Dayan 1996): one product with a strictly lower triangular matrix, n(n+1)/2 parameters
for n bits. Entries of other kinds follow laws whose every parameter is such a regression. The
shared form has one vector for all entries, $p(x_t = 1 \mid x_{<t}) = \sigma(\langle \rho_{<t},
x_{<t} \rangle)$ with $x_1$ a coin of its own: T parameters.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.batch import Batch
from ...core.error import WordError
from ...core.model import Suit
from ...core.recipe import Recipe
from ...core.space import Space
from ...nn.masked import Stepping
from ._base import Again, Ordered, Orders, unshift_bits


class FVSBN(Ordered):
    r"""$\theta_i = \alpha^{(i)}_0 + \sum_{j<i} \alpha^{(i)}_j f(x_j) + \beta^{(i)} c$, the
    parameters of the law of entry i given those before it and the conditions c; f(x) = x for bits.

    Orders share no weights: what predicts an entry depends on all else that is known.
    """

    class Config(Ordered.Config, Orders):
        shared: bool = False
        """One vector of weights for all entries, which are binary; no bias after the first."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.places(space.dims))
        if config.shared and space.kind != "binary":
            raise WordError(f"shared=true is a law of binary values, not of {space}; leave it out")
        unshift_bits(self.features, space)
        form = Shared if config.shared else Free
        self.net = form(self.places[:, self.features.owner], self.places[:, self.head.owner],
                        self.conditions.width)
        self.settle()

    def settle(self) -> None:
        self.net.settle(self.head.start())

    @property
    def parameter_count(self) -> int:
        """Numbers that the law depends on; weights behind the masks are none."""
        return self.net.parameter_count

    def outputs(self, batch: Batch, member: int) -> Tensor:
        return self.net(self.features(batch), self.context(batch), member)

    @torch.no_grad()
    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], Stepping]:
        if not cached:
            return functools.partial(Again, self, self.net, member)
        entries = self.orders[member].argsort().tolist()
        rows = [self.head.slices[entry] for entry in entries]
        return functools.partial(Steps, self.net, member, rows)

    @classmethod
    def suit(cls, space: Space) -> Suit:
        return Suit(cls.Config(), Recipe(average=0.99))

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(components=2)


class Regressions(nn.Module, abc.ABC):
    """Every parameter a linear function of the conditions and of the features before it.

    before: (K, F) and after: (K, P) are the places of features and parameters in each order.
    """

    before: Tensor
    after: Tensor

    def __init__(self, before: Tensor, after: Tensor, context: int) -> None:
        super().__init__()
        first = before.new_full((len(before), context), -1)  # conditions come before all
        self.register_buffer("before", torch.cat([first, before], 1), persistent=False)
        self.register_buffer("after", after, persistent=False)
        self.context = context

    def forward(self, features: Tensor, context: Tensor, member: int = 0) -> Tensor:
        """(B, F) and (B, context) -> (B, P)."""
        inputs = torch.cat([context, features], 1) if self.context else features
        return F.linear(inputs, self.masked(member), self.bias(member))

    def masked(self, member: int) -> Tensor:  # (P, context + F)
        return self.weight(member) * self.mask(member)

    def mask(self, member: int) -> Tensor:  # (P, context + F)
        return self.before[member] < self.after[member][:, None]

    @property
    @abc.abstractmethod
    def parameter_count(self) -> int: ...

    @abc.abstractmethod
    def settle(self, start: Tensor) -> None:
        """Begin at the parameters `start` (P,), whatever comes before."""

    @abc.abstractmethod
    def weight(self, member: int) -> Tensor:
        """Something that broadcasts against (P, context + F)."""

    @abc.abstractmethod
    def bias(self, member: int) -> Tensor:  # (P,)
        ...


class Free(Regressions):
    """Weights and a bias for each parameter; the square above the diagonal is masked."""

    def __init__(self, before: Tensor, after: Tensor, context: int) -> None:
        super().__init__(before, after, context)
        orders, inputs = self.before.shape
        self.slope = nn.Parameter(torch.zeros(orders, after.shape[1], inputs))
        self.level = nn.Parameter(torch.zeros(orders, after.shape[1]))

    @property
    def parameter_count(self) -> int:
        used = sum(int(self.mask(member).sum()) for member in range(len(self.before)))
        return used + self.level.numel()

    @torch.no_grad()
    def settle(self, start: Tensor) -> None:
        self.level.copy_(start)

    def weight(self, member: int) -> Tensor:
        return self.slope[member]

    def bias(self, member: int) -> Tensor:
        return self.level[member]


class Shared(Regressions):
    """One weight for each condition and each place but the last, and the logit of the first."""

    def __init__(self, before: Tensor, after: Tensor, context: int) -> None:
        super().__init__(before, after, context)
        orders, dims = after.shape
        self.rho = nn.Parameter(torch.zeros(orders, context + dims - 1))
        self.first = nn.Parameter(torch.zeros(orders, 1))

    @property
    def parameter_count(self) -> int:
        return self.rho.numel() + self.first.numel()

    @torch.no_grad()
    def settle(self, start: Tensor) -> None:
        self.first.copy_(start[self.after.argmin(1)][:, None])

    def weight(self, member: int) -> Tensor:
        given, rho = self.rho[member].tensor_split([self.context])
        last = rho.new_zeros(1)  # nothing comes after the last entry
        return torch.cat([given, torch.cat([rho, last])[self.before[member, self.context:]]])

    def bias(self, member: int) -> Tensor:
        return self.first[member] * (self.after[member] == 0)


class Steps(Stepping):
    """The cached pass: what is known of n rows, in the order it becomes so, a row each."""

    def __init__(self, net: Regressions, member: int, rows: list[slice], context: Tensor) -> None:
        columns, order = net.before[member].sort(stable=True)
        places = torch.arange(len(rows), device=columns.device)
        self.counts = torch.searchsorted(columns, places).tolist()  # inputs before each place
        self.weight, self.bias = net.masked(member)[:, order], net.bias(member)[:, None]
        self.rows, self.known = rows, context.new_empty(len(columns), len(context))
        self.known[:net.context] = context.T

    @torch.no_grad()
    def parameters(self, place: int) -> Tensor:
        rows, count = self.rows[place], self.counts[place]
        return torch.addmm(self.bias[rows], self.weight[rows, :count], self.known[:count]).T

    @torch.no_grad()
    def feed(self, place: int, features: Tensor) -> None:
        start = self.counts[place]
        self.known[start:start + features.shape[1]] = features.T
