"""What the outputs of a network at the steps of a sequence mean: the distribution of each step.

`SharedHead`: all steps are of one kind and share the last map of the network and one head; each
place of a cycle has an offset of its own. `ColumnHeads`: the steps are the columns of a table;
each has a distribution of its own, with its own map from the network's outputs.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ..core.space import Space
from ..prob.distributions import BernoulliDistribution, Distribution, GaussianMixture
from ..prob.heads import Head, LevelsDistribution

StepMap = Callable[[Tensor], Tensor]


class StepHead(nn.Module, abc.ABC):
    """The distributions of steps given the outputs of a network and an offset, which the model
    holds and which is at first that of the training marginals."""

    head: Head
    outputs: int
    """Outputs of the network at each step."""
    homes: Sequence[tuple[Distribution, int]]
    """The distribution of each place of the cycle, and its index there."""

    @abc.abstractmethod
    def initial_offset(self) -> Tensor:
        """The offset before the marginals are known."""

    @abc.abstractmethod
    def fit(self, rows: Tensor, exist: Tensor) -> Tensor:
        """The offset that gives the marginals of training rows (B, D)."""

    @abc.abstractmethod
    def parameters_of(self, out: Tensor, offset: Tensor, places: Tensor) -> Tensor:
        """The parameters of the steps at `places`, (S,) from the first on or (B, S), from outputs
        (B, S, outputs)."""

    @abc.abstractmethod
    def padded(self, params: Tensor) -> Tensor:
        """The parameters of all steps as (B, D, most)."""

    @abc.abstractmethod
    def maps(self, offset: Tensor) -> Sequence[StepMap]:
        """For each place of the cycle the map from outputs (n, outputs) to its parameters."""

    @abc.abstractmethod
    def log_prob(self, params: Tensor, x: Tensor, places: Tensor) -> Tensor:
        """log p of x (B, S) in the units of the data, (B, S)."""

    @abc.abstractmethod
    def noise(self, n: int, steps: int, generator: Generator | None) -> Tensor:
        """Noise for sampling, (steps, n, 2)."""

    @abc.abstractmethod
    def in_units(self, place: int, value: Tensor) -> Tensor:
        """A sampled value (n,) in the units of the data."""

    @abc.abstractmethod
    def entry_distribution(self, place: int) -> Distribution:
        """The distribution of one place in the units of the data."""


class SharedHead(StepHead):
    """One distribution for all steps; reals are standardised by place. A flag among reals is 1
    with the probability sigmoid(l), l the first of its parameters."""

    shift: Tensor  # (cycle,)
    scale: Tensor  # (cycle,)
    flag: Tensor  # (cycle,)

    def __init__(
        self,
        places: Space,
        components: int,
        levels: LevelsDistribution,
        flags: Sequence[bool] = (),
    ) -> None:
        """places: the places of the cycle as a vector space; flags: which of them are 0 or 1."""
        super().__init__()
        self.components, self.levels, self.cycle = components, levels, places.dims
        self.space = step_space(places)
        self.head = Head(self.space, components, levels)
        self.outputs = self.head.width
        flags = flags or [False] * self.cycle
        self.has_flags, self.bernoulli = any(flags), BernoulliDistribution(torch.full((1,), 0.5))
        own = self.head.distributions()[0]
        self.homes = [(self.bernoulli if flag else own, 0) for flag in flags]
        self.register_buffer("flag", torch.tensor(flags), persistent=False)
        self.real = places.kind == "real"  # other kinds are scored in their own units
        for name, value in (
            ("shift", places.spread("mean") if self.real else torch.zeros(1)),
            ("scale", places.spread("scale") if self.real else torch.ones(1)),
        ):
            value = value.expand(self.cycle).clone()
            value[self.flag] = 0.0 if name == "shift" else 1.0
            self.register_buffer(name, value, persistent=False)

    def initial_offset(self) -> Tensor:
        return self.head.initial_params().repeat(self.cycle, 1)  # (cycle, P)

    def fit(self, rows: Tensor, exist: Tensor) -> Tensor:
        places = replace(self.space, shape=(self.cycle,))
        head = Head(places, self.components, self.levels).to(rows)
        x, seen = rows.reshape(-1, self.cycle), exist.reshape(-1, self.cycle)
        head.fit(x, seen)
        found = head.initial_params().reshape(self.cycle, -1)
        if self.has_flags:
            share = (x.masked_fill(~seen, 0.0).sum(0) + 0.5) / (seen.sum(0) + 1)
            found[self.flag, 0] = torch.logit(share)[self.flag].to(found)
        return found

    def parameters_of(self, out: Tensor, offset: Tensor, places: Tensor) -> Tensor:
        whole = places.ndim == 1
        return out + (along(offset, len(places)) if whole else offset[places % self.cycle])

    def padded(self, params: Tensor) -> Tensor:
        return params

    def maps(self, offset: Tensor) -> Sequence[StepMap]:
        return [partial(torch.add, own) for own in offset.unbind()]

    def log_prob(self, params: Tensor, x: Tensor, places: Tensor) -> Tensor:
        if not self.real:
            return self.head.log_prob(params, x[..., None])[..., 0]
        shift, scale = self.shift[places % self.cycle], self.scale[places % self.cycle]
        y = (x - shift) / scale
        log_p = self.head.log_prob(params, y[..., None])[..., 0] - scale.log()
        if not self.has_flags:
            return log_p
        return torch.where(
            self.flag[places % self.cycle], self.bernoulli.log_prob(params, x), log_p
        )

    def noise(self, n: int, steps: int, generator: Generator | None) -> Tensor:
        return self.head.noise(steps * n, generator).reshape(steps, n, 2)

    def in_units(self, place: int, value: Tensor) -> Tensor:
        return self.shift[place] + self.scale[place] * value if self.real else value

    def entry_distribution(self, place: int) -> Distribution:
        if not self.real:
            return self.head.entry_distribution(0)
        if self.flag[place]:
            return self.bernoulli
        own = slice(place, place + 1)
        return GaussianMixture(self.components, self.shift[own].clone(), self.scale[own].clone())


class ColumnHeads(StepHead):
    """A distribution for each column, with a linear map of its own."""

    def __init__(
        self, space: Space, components: int, levels: LevelsDistribution, width: int
    ) -> None:
        """width: of the network's outputs."""
        super().__init__()
        self.head, self.outputs = Head(space, components, levels), width
        self.homes = self.head.homes
        self.weight = nn.Parameter(torch.zeros(self.head.width, width))  # at first the marginals

    def initial_offset(self) -> Tensor:
        return self.head.initial_params()  # (P,)

    def fit(self, rows: Tensor, exist: Tensor) -> Tensor:
        self.head.fit(rows, exist)
        return self.head.initial_params()

    def parameters_of(self, out: Tensor, offset: Tensor, places: Tensor) -> Tensor:
        """(B, P): all columns, one after the other."""
        maps = self.maps(offset)
        return torch.cat([maps[place](out[:, place]) for place in places.tolist()], 1)

    def padded(self, params: Tensor) -> Tensor:
        return self.head.padded(params)

    def maps(self, offset: Tensor) -> Sequence[StepMap]:
        return [
            partial(F.linear, weight=self.weight[own], bias=offset[own])
            for own in self.head.slices
        ]

    def log_prob(self, params: Tensor, x: Tensor, places: Tensor) -> Tensor:
        return self.head.log_prob(params, x)

    def noise(self, n: int, steps: int, generator: Generator | None) -> Tensor:
        return self.head.noise(n, generator).transpose(0, 1)

    def in_units(self, place: int, value: Tensor) -> Tensor:
        return value

    def entry_distribution(self, place: int) -> Distribution:
        return self.head.entry_distribution(place)


def along(table: Tensor, steps: int) -> Tensor:
    """A table (cycle, .) repeated along the steps, (steps, .)."""
    return table.repeat(-(-steps // len(table)), 1)[:steps]


def step_space(places: Space) -> Space:
    """The space of a single step, the same for all places: reals are standardised."""
    if places.kind == "real":
        return Space(kind="real", shape=(1,))
    if places.kind == "tokens":
        return Space(kind="label", shape=(1,), size=places.size)
    mean, scale = places.spread("mean"), places.spread("scale")
    spread = (scale.square().mean() + mean.var(correction=0)).sqrt()
    return Space(
        kind=places.kind,
        shape=(1,),
        size=places.size,
        mean=(float(mean.mean()),),
        scale=(float(spread),),
    )
