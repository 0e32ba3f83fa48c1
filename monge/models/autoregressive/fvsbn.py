r"""Fully visible sigmoid belief network (FVSBN): each entry a logistic regression on those before

$p(x_i = 1 \mid x_{<i}) = \sigma(\alpha^{(i)}_0 + \sum_{j<i} \alpha^{(i)}_j x_j)$ (Neal 1992; Frey,
Hinton and Dayan 1996): one product with a strictly lower triangular matrix, n(n+1)/2 parameters
for n bits. For other kinds every parameter of the distribution is such a regression. The
shared form has one weight vector for all entries, $p(x_t = 1 \mid x_{<t}) = \sigma(\langle
\rho_{<t}, x_{<t} \rangle)$, with a separate logit for $x_1$: T parameters.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.autoregressive.masked_mlp import EntryStepper
from ._base import AutoregressiveModel, UncachedSteps, use_raw_bits
from ._orders import Orders

LARGE_DATA_ROWS = 20_000
"""Rows from which a smaller learning rate and a longer weight average pay off."""


class FVSBN(AutoregressiveModel):
    r"""$\theta_i = \alpha^{(i)}_0 + \sum_{j<i} \alpha^{(i)}_j f(x_j) + \beta^{(i)} c$, the
    parameters of the distribution of entry i given those before it and the conditions c; f(x) = x
    for bits.

    Orders share no weights: the regression of an entry depends on its predecessors.
    """

    class Config(AutoregressiveModel.Config, Orders):
        tag = "model/autoregressive.fvsbn"
        shared: bool = False
        """One weight vector for all entries (binary data only); only the first has a bias."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space, config.places(space))
        if config.shared and space.kind != "binary":
            raise UsageError(f"shared=true needs binary values, found {space}; remove it")
        use_raw_bits(self.features, space)
        form = SharedRegressions if config.shared else SeparateRegressions
        self.net = form(
            self.places[:, self.features.owner],
            self.places[:, self.head.owner],
            self.conditions.width,
        )
        self.init_output_bias()

    def init_output_bias(self) -> None:
        self.net.init_bias(self.head.initial_params())

    @property
    def parameter_count(self) -> int:
        """Only weights that the distribution depends on exist."""
        return sum(parameter.numel() for parameter in self.parameters())

    def loss(self, batch: Batch) -> Losses:
        """-sum_i log p(x_i | theta_i) in one random order."""
        self.check_no_missing(batch)
        member = self.random_member()
        params = self.net(self.features(batch), self.context(batch), member)  # (B, P)
        return {"nll": -self.head.log_prob(params, self.flat(batch.x)).sum(1)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x_i ~ p(x_i | theta_i), one entry after the other."""
        batch = self.unobserved_rows(n, given)
        with torch.inference_mode():
            for rows in self.row_groups(batch, options, generator):
                for place in range(self.space.dims):
                    params = rows.steps.parameters(place)  # theta_i (m, P_i)
                    rows.steps.feed(place, rows.sample_entry(place, params))
                batch.x[rows.index] = rows.x.T
        return self.to_event(batch.x)

    def outputs(self, batch: Batch, member: int) -> Tensor:
        return self.net(self.features(batch), self.context(batch), member)

    @torch.no_grad()
    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], EntryStepper]:
        if not cached:
            return functools.partial(UncachedSteps, self, self.net, member)
        entries = self.orders[member].argsort().tolist()
        rows = [self.head.slices[entry] for entry in entries]
        return functools.partial(RegressionSteps, self.net, member, rows)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        finite = all(part.kind not in ("real", "counts") for part in space.columns or [space])
        if finite and space.rows >= LARGE_DATA_ROWS:
            return Defaults(cls.Config(), TrainConfig(lr=1e-3, ema_decay=0.9995))
        return Defaults(cls.Config(), TrainConfig(lr=1e-2 if finite else 3e-3, ema_decay=0.999))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(components=2)


class Regressions(nn.Module, abc.ABC):
    """Every parameter is a linear function of the conditions and of the features before it.

    before: (K, F) and after: (K, P) are the positions of features and parameters in each order.
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
        return F.linear(inputs, self.weight(member), self.bias(member))

    def mask(self, member: int) -> Tensor:  # (P, context + F)
        return self.before[member] < self.after[member][:, None]

    @abc.abstractmethod
    def init_bias(self, params: Tensor) -> None:
        """Start at these parameters (P,), whatever the inputs are."""

    @abc.abstractmethod
    def weight(self, member: int) -> Tensor:
        """(P, context + F), zero where a feature is not before a parameter."""

    @abc.abstractmethod
    def bias(self, member: int) -> Tensor:  # (P,)
        ...


class SeparateRegressions(Regressions):
    """Separate weights and a bias for each parameter."""

    cells: Tensor  # indices of the weights of each order in its flattened matrix

    def __init__(self, before: Tensor, after: Tensor, context: int) -> None:
        super().__init__(before, after, context)
        cells = [self.mask(k).flatten().nonzero()[:, 0] for k in range(len(before))]
        self.sizes = [len(each) for each in cells]
        self.register_buffer("cells", torch.cat(cells), persistent=False)
        self.slope = nn.Parameter(torch.zeros(len(self.cells)))
        self.level = nn.Parameter(torch.zeros(after.shape))

    @torch.no_grad()
    def init_bias(self, params: Tensor) -> None:
        self.level.copy_(params)

    def weight(self, member: int) -> Tensor:
        shape = self.after.shape[1], self.before.shape[1]
        cells, slope = (t.split(self.sizes)[member] for t in (self.cells, self.slope))
        return slope.new_zeros(math.prod(shape)).index_copy(0, cells, slope).reshape(shape)

    def bias(self, member: int) -> Tensor:
        return self.level[member]


class SharedRegressions(Regressions):
    """One weight per condition and per position but the last, and the logit of the first entry."""

    def __init__(self, before: Tensor, after: Tensor, context: int) -> None:
        super().__init__(before, after, context)
        orders, dims = after.shape
        self.rho = nn.Parameter(torch.zeros(orders, context + dims - 1))
        self.first = nn.Parameter(torch.zeros(orders, 1))

    @torch.no_grad()
    def init_bias(self, params: Tensor) -> None:
        self.first.copy_(params[self.after.argmin(1)][:, None])

    def weight(self, member: int) -> Tensor:
        given, rho = self.rho[member].tensor_split([self.context])
        last = rho.new_zeros(1)  # nothing comes after the last entry
        own = torch.cat([rho, last])[self.before[member, self.context :]]  # (F,)
        return torch.cat([given, own]) * self.mask(member)

    def bias(self, member: int) -> Tensor:
        return self.first[member] * (self.after[member] == 0)


class RegressionSteps(EntryStepper):
    """The cached pass over n rows: the known inputs in the order they become known."""

    def __init__(self, net: Regressions, member: int, rows: list[slice], context: Tensor) -> None:
        columns, order = net.before[member].sort(stable=True)
        places = torch.arange(len(rows), device=columns.device)
        self.counts = torch.searchsorted(columns, places).tolist()  # inputs before each place
        self.weight, self.bias = net.weight(member)[:, order], net.bias(member)[:, None]
        self.rows, self.known = rows, context.new_empty(len(columns), len(context))
        self.known[: net.context] = context.T

    @torch.no_grad()
    def parameters(self, place: int) -> Tensor:
        rows, count = self.rows[place], self.counts[place]
        return torch.addmm(self.bias[rows], self.weight[rows, :count], self.known[:count]).T

    @torch.no_grad()
    def feed(self, place: int, features: Tensor) -> None:
        start = self.counts[place]
        self.known[start : start + features.shape[1]] = features.T

    def take(self, rows: Tensor) -> None:
        self.known = self.known[:, rows]
