r"""Base of models that factorise over the entries of a row: exact likelihoods, entrywise sampling.

$\log p(x) = \log \frac1K \sum_k \prod_i p(x_i \mid x_{<i \text{ in order } k})$. A network
computes the parameters of every conditional in one pass (`outputs`), or of one entry after the
other (`stepper`); the head maps parameters to distributions of the entries. Each model states its
own `loss` and `sample`; this base keeps orders, conditions, chunking, completion and streaming.
Rows are completed exactly if their observed entries come first in the order and no hidden cell may
be empty, and by particles otherwise.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, cast

import torch
from torch import Generator, Tensor

from ...core.abilities import CanSample, CanStream, Given, HasLikelihood, Likelihood
from ...core.batch import Batch, as_batch, broadcast_conditions
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Model
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import EntryStepper
from ...nn.inputs.features import Conditions, Features
from ...prob.distributions import Distribution, sample_categorical
from ...prob.heads import Head, LevelsDistribution
from .._ordering import check_no_missing, placeholder_values
from .._particles import CompletesByParticles

ROWS_PER_PASS = 1024
"""Rows sampled at a time, so that cached activations stay in the processor's cache."""


class AutoregressiveModel(Model, HasLikelihood, CanSample, CompletesByParticles, CanStream):
    """A uniform mixture of K members, each a product of conditionals in its own order.

    A training step takes one random member; the mean of the members' losses is an upper bound of
    the mixture's loss.
    """

    events = {"real", "binary", "levels", "label", "counts", "columns"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}

    class Config(Model.Config):
        components: Annotated[int, Range(1)] = 5
        """Mixture components of the distribution of each real or finely quantised entry."""
        levels: LevelsDistribution = "auto"
        """Distribution of levels: categorical, mixture of logistics (logistic), or chosen by their
        number (auto)."""

    class SamplingConfig(BaseConfig):
        cached: bool = True
        """Cache activations, so that each hidden unit is computed once; false recomputes the whole
        network for each entry."""
        particles: Annotated[int, Range(1)] = 128
        """Completion where observed entries do not come first: particles per row, of all orders;
        more are more exact and slower."""

    places: Tensor
    blank: Tensor

    def __init__(self, config: Config, space: Space, places: Tensor) -> None:
        """places: (K, D), the position of each entry in the order of each member."""
        super().__init__(config, space)
        self.name = model_name(type(self))
        self.features, self.conditions = Features(space), Conditions(space)
        self.head = Head(space, config.components, config.levels)
        self.register_buffer("places", places, persistent=False)  # (K, D)
        self.register_buffer("blank", placeholder_values(space), persistent=False)  # (D,)

    def initialise_from_data(self, batch: Batch) -> None:
        self.head.fit(self.flat(batch.x), batch.observed_mask.reshape(len(batch), -1))
        self.init_output_bias()

    @abc.abstractmethod
    def init_output_bias(self) -> None:
        """Initialise each conditional to the marginal distribution of its entry."""

    @property
    def orders(self) -> Sequence[Tensor]:
        return list(self.places)

    def random_member(self) -> int:
        """The member that a training step takes."""
        members = len(self.places)
        return int(torch.randint(members, ())) if members > 1 else 0

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, members = as_batch(batch), range(len(self.places))
        each = [self.conditionals(batch, k).sum(1) for k in members]  # (B,), K times
        if len(each) == 1:
            return Likelihood(each[0], "exact")
        return Likelihood(torch.logsumexp(torch.stack(each), 0) - math.log(len(each)), "exact")

    def conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        self.check_no_missing(batch)
        return self.head.log_prob(self.outputs(batch, member), self.flat(batch.x))

    def parameters_of_conditionals(self, batch: Batch, member: int = 0) -> Tensor:
        """Entries with fewer parameters than others are padded with zeros."""
        return self.head.padded(self.outputs(batch, member))

    @abc.abstractmethod
    def outputs(self, batch: Batch, member: int) -> Tensor:
        """The parameters of every conditional in the layout of the head, (B, P)."""

    @abc.abstractmethod
    def stepper(self, member: int, cached: bool) -> Callable[[Tensor], EntryStepper]:
        """A function that starts an entrywise pass over rows with this context (n, context)."""

    def context(self, batch: Batch) -> Tensor:  # (B, context)
        return self.conditions(
            broadcast_conditions(batch.given, self.space, len(batch)), len(batch)
        )

    def flat(self, x: Tensor) -> Tensor:  # (B, D)
        return x.reshape(len(x), -1).to(self.blank.dtype)

    @torch.no_grad()
    def complete_several(
        self,
        batch: Batch,
        draws: int,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        chosen = cast(AutoregressiveModel.SamplingConfig, options or self.SamplingConfig())
        rows = self.known_rows(batch)
        weighted = self.needs_weights(rows.observed_mask)  # (B,)
        self.effective = None
        x = rows.x[:, None].repeat(1, draws, 1)
        if not bool(weighted.all()):
            exact = (~weighted).nonzero()[:, 0].repeat_interleave(draws)
            x[~weighted] = self.flat(self.fill(rows[exact], options, generator)).unflatten(
                0, (-1, draws)
            )
        if bool(weighted.any()):
            x[weighted] = self.fill_by_particles(
                rows[weighted], chosen.particles, chosen.cached, generator, draws
            ).x
        return self.to_event(x.flatten(0, 1)).unflatten(0, (-1, draws))

    def known_rows(self, batch: Batch) -> Batch:
        seen = batch.observed_mask.reshape(len(batch), -1)
        given = broadcast_conditions(batch.given, self.space, len(batch))
        return Batch(torch.where(seen, self.flat(batch.x), self.blank), given, seen)

    def entry_distributions(self) -> Sequence[Distribution]:
        return [self.head.entry_distribution(i) for i in range(self.space.dims)]

    def entry_reader(self) -> Callable[[int, Tensor], Tensor]:
        return self.features.reader()

    def entry_noise(self, n: int, generator: Generator | None) -> Tensor:
        return self.head.noise(n, generator)

    def particle_steps(self, member: int, rows: Batch, cached: bool) -> EntryStepper:
        return self.stepper(member, cached)(self.conditions(rows.given, len(rows)))

    @torch.no_grad()
    def stream(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Iterator[Tensor]:
        """Yields after each entry; entries not sampled yet hold their training mean or minimum."""
        batch = self.unobserved_rows(n, given)
        groups = list(self.row_groups(batch, options, generator))
        for place in range(self.space.dims):
            for rows in groups:
                rows.advance(place)
                entry = rows.entries[place]
                batch.x[rows.index, entry] = rows.columns[entry]
            yield self.to_event(batch.x.clone())

    def unobserved_rows(self, n: int, given: Given | None) -> Batch:
        """n rows of which no entry is observed, flat (n, D)."""
        x = self.blank.repeat(n, 1)  # (n, D)
        return Batch(
            x,
            broadcast_conditions(given or {}, self.space, n),
            torch.zeros_like(x, dtype=torch.bool),
        )

    def fill(
        self, batch: Batch, options: BaseConfig | None, generator: Generator | None
    ) -> Tensor:
        """Rows (n, *event) whose unobserved entries are sampled in order."""
        x = torch.empty_like(batch.x)
        with torch.inference_mode():  # saves a tenth of the time
            for rows in self.row_groups(batch, options, generator):
                for place in range(self.space.dims):
                    rows.advance(place)
                x[rows.index] = rows.x.T
        return self.to_event(x)

    def row_groups(
        self, batch: Batch, options: BaseConfig | None, generator: Generator | None
    ) -> Iterator[RowGroup]:
        """The rows grouped by member and chunk, each group at the start of its order."""
        cached = cast(AutoregressiveModel.SamplingConfig, options or self.SamplingConfig()).cached
        noise = self.head.noise(len(batch), generator)  # (n, D, 2)
        context = self.conditions(batch.given, len(batch))
        member = self.sample_members(batch, generator)  # (n,)
        for k in range(len(self.places)):
            entries, steps = self.orders[k].argsort().tolist(), self.stepper(k, cached)
            for rows in (member == k).nonzero()[:, 0].split(ROWS_PER_PASS):
                if len(rows):
                    yield self.row_group(rows, entries, steps(context[rows]), noise, batch)

    def row_group(
        self, rows: Tensor, entries: list[int], steps: EntryStepper, noise: Tensor, batch: Batch
    ) -> RowGroup:
        """Some rows of a batch (n, D) and of the noise (n, D, 2), at the start of their order."""
        index = slice(None) if len(rows) == len(batch) else rows  # all rows: a view, no copy
        own, observed = noise.transpose(0, 1)[:, index], batch.observed_mask[index]
        x = batch.x.new_empty(len(self.blank), len(observed))  # (D, m)
        fixed = observed.T.contiguous() if bool(observed.any()) else None
        if fixed is not None:
            x.copy_(batch.x[index].T)
        return RowGroup(
            index,
            entries,
            self.head,
            self.features.reader(),
            steps,
            own.unbind(),
            x,
            x.unbind(),
            fixed,
        )

    def sample_members(self, batch: Batch, generator: Generator | None) -> Tensor:
        """A member for each row from its posterior given the observed entries, (n,)."""
        members, seen = range(len(self.places)), batch.observed_mask
        if len(members) == 1:
            return torch.zeros(len(batch), dtype=torch.long, device=seen.device)
        whole = replace(batch, observed=None)
        weights = [(self.conditionals(whole, k) * seen).sum(1) for k in members]
        uniform = self.blank.new_empty(len(batch)).uniform_(generator=generator)
        return sample_categorical(torch.stack(weights, 1), uniform)

    def check_no_missing(self, batch: Batch) -> None:
        check_no_missing(self.name, batch)

    def to_event(self, x: Tensor) -> Tensor:  # (n, D) -> (n, *event)
        x = x.reshape(-1, *self.space.shape)
        return x.long() if self.space.kind == "label" else x


@dataclass(frozen=True)
class RowGroup:
    """m rows of one member while they are sampled; entries are the first axis, so that a step
    writes contiguous memory."""

    index: Tensor | slice  # which rows of the batch these are
    entries: list[int]  # the entry at each position of the order
    head: Head
    read: Callable[[int, Tensor], Tensor]  # the features of an entry
    steps: EntryStepper
    noise: Sequence[Tensor]  # of each entry, (m, 2)
    x: Tensor  # (D, m)
    columns: Sequence[Tensor]  # the entries of x, (m,)
    observed: Tensor | None  # (D, m): entries whose values are fixed, if there are any

    def sample_entry(self, place: int, params: Tensor) -> Tensor:
        """x_i ~ p(x_i | params) at a position of the order, unless observed; its features."""
        entry = self.entries[place]
        value = self.head.sample_entry(entry, params, self.noise[entry])
        here = self.columns[entry]
        if self.observed is None:
            here.copy_(value)
        else:
            torch.where(self.observed[entry], here, value, out=here)
        return self.read(entry, here)

    def advance(self, place: int) -> None:
        """Sample the entry at a position and feed it to the network."""
        params = self.steps.parameters(place)  # (m, P_i)
        self.steps.feed(place, self.sample_entry(place, params))


class UncachedSteps(EntryStepper):
    """Entrywise pass without a cache: the whole network (features, context, member) is evaluated
    for every entry."""

    def __init__(
        self,
        model: AutoregressiveModel,
        network: Callable[[Tensor, Tensor, int], Tensor],
        member: int,
        context: Tensor,
    ) -> None:
        self.model, self.network, self.member, self.context = model, network, member, context
        self.entries = model.orders[member].argsort().tolist()
        self.x = model.blank.new_zeros(len(context), model.features.width)  # (n, F)

    def parameters(self, place: int) -> Tensor:
        own = self.model.head.slices[self.entries[place]]
        return self.network(self.x, self.context, self.member)[:, own]

    def feed(self, place: int, features: Tensor) -> None:
        self.x[:, self.model.features.slices[self.entries[place]]] = features

    def take(self, rows: Tensor) -> None:
        self.x, self.context = self.x[rows], self.context[rows]


def model_name(model_class: type[Model]) -> str:
    """What error messages call a model: the name of its module."""
    return model_class.__module__.rpartition(".")[2]


def use_raw_bits(features: Features, space: Space) -> None:
    """Read bits as 0 and 1 instead of standardised, as the model's equation does."""
    kinds = [part.kind for part in space.columns] or [space.kind] * space.dims
    bits = torch.tensor([kind == "binary" for kind in kinds])[features.owner]  # (F,)
    features.shift[bits], features.factor[bits] = 0.0, 1.0
