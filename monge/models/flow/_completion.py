r"""Completion and transfer with flows: missing entries sampled given the observed ones.

$p(x_h | x_o) \propto p(x_h, x_o)$ and its gradient are known up to a constant, so Hamiltonian
Monte Carlo samples from it. A state s holds the coordinates of missing entries and, for observed
discrete ones, v with $u = \sigma(v)$, the dequantisation noise of $x + u$, so that the chain also
samples the noise: $P(x_h | x_o) \propto \int p(x_h, x_o + u_o) du_o$.

A chain starts at one of several samples of the flow, chosen by importance: w = (w_h, w_o') ~ p has
the weight $p(w_h, w_o) r(w_o') / p(w_h, w_o')$ for any density r, here a narrow Gaussian around
the observed entries.

Tables, whose density jumps between the cells of names, use iterated sampling importance
resampling (Andrieu, Lee & Vihola 2018) instead: some of the missing columns, all of them at first,
are sampled from the layer nearest to the data given the columns before and that they are not
empty; known ones get new noise; the present row or one of several such candidates is chosen by
importance.

Continuous flows of many entries use RePaint (Lugmayr et al. 2022, for straight paths): from noise
at t = 1 to data at t = 0 the velocity moves every entry, and the observed ones are put back at
each time as $(1 - t) x_o + t z_o$. Each step is repeated several times, its end taken back to its
start by noise, $x_t = a x_s + b \epsilon$ with $a = (1 - t)/(1 - s)$ and $b^2 = t^2 - a^2 s^2$.
On convergence the entries agree, but this does not sample from the exact conditional.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...core.abilities import CanComplete, CanTransfer, Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...prob.bijections.base import Bijection
from ...prob.distributions import normal_log_prob_rows
from ...prob.hmc import HamiltonianMonteCarlo, LogDensity
from ._base import Flow
from ._tables import TableUnits, log_normal

PROPOSAL_SCALE = 0.5
"""Scale of the Gaussian around observed entries, in standardised coordinates."""
START_CANDIDATES = 16
"""Samples from which the start of a chain is chosen."""
CoordinateSampler = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Noise (N, D) to coordinates (N, D) and their log-density (N,)."""


@dataclass(frozen=True)
class MissingEntries:
    """The distribution of the missing entries of rows y (B, D), through states s (B, D)."""

    log_p: LogDensity  # of coordinates w (B, D)
    outer: Bijection  # w -> y, entry by entry
    y: Tensor
    observed: Tensor  # (B, D)
    discrete: Tensor  # (D,)

    @property
    def dequantised(self) -> Tensor:
        """Observed discrete entries, which lie anywhere in their interval."""
        return self.observed & self.discrete

    def density(self, s: Tensor) -> Tensor:
        w, volume = self.coordinates(s)
        return self.log_p(w) + volume

    def coordinates(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinates of a state, and the log-volume of its observed part."""
        y = torch.where(self.dequantised, self.y + s.sigmoid(), self.y)
        rest, _ = self.outer(torch.zeros_like(s))  # hidden entries add a constant to the volume
        w, log_det = self.outer.inverse(torch.where(self.observed, y, rest))
        log_derivatives = F.logsigmoid(s) + F.logsigmoid(-s)
        volume = log_det + torch.where(self.dequantised, log_derivatives, 0.0).sum(1)
        return torch.where(self.observed, w, s), volume

    def sample(self, start: Tensor, moves: int, leaps: int, generator: Generator | None) -> Tensor:
        """The coordinates (B, D) at the end of chains from states."""
        chain = HamiltonianMonteCarlo(
            self.density, ~self.observed | self.dequantised, moves, leaps, generator
        )
        return self.coordinates(chain.run(start))[0]

    def sample_start(self, sampler: CoordinateSampler, generator: Generator | None) -> Tensor:
        """One of several states for each row, chosen by importance."""
        candidates = [self.candidate(sampler, generator) for _ in range(START_CANDIDATES)]
        states, weights = (torch.stack(each) for each in zip(*candidates, strict=True))
        chances = weights.nan_to_num(nan=-math.inf).clamp_min(-1e30).T.softmax(1)
        place = torch.multinomial(chances, 1, generator=generator)[:, 0]
        return states[place, torch.arange(len(place), device=place.device)]

    def candidate(
        self, sampler: CoordinateSampler, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """A state (B, D) and its log-weight (B,)."""
        y = self.y
        noise, uniform = (
            make(y.shape, generator=generator, dtype=y.dtype, device=y.device)
            for make in (torch.randn, torch.rand)
        )
        proposed, log_q = sampler(noise)
        s = torch.where(self.dequantised, torch.logit(uniform, 1e-6), proposed)
        w, volume = self.coordinates(s)
        logistic = torch.where(self.dequantised, F.logsigmoid(s) + F.logsigmoid(-s), 0.0).sum(1)
        gap = torch.where(self.observed, proposed - w, 0.0)
        near = -0.5 * (gap / PROPOSAL_SCALE).square().sum(1)
        return s, self.log_p(w) + volume - logistic + near - log_q


TABLE_CANDIDATES = 8
"""Rows from which each move of the chain of a table chooses."""
MAX_CHAIN_ROWS = 1024
"""Rows of a table that are completed at a time."""
MAX_GRADIENT_ROWS = 256
"""Rows of numbers that are completed at a time: a move keeps the graph of the whole density, which
through an equation of a continuous flow takes megabytes a row."""


@dataclass(frozen=True)
class MissingColumns:
    """The distribution of the missing columns of rows x (B, D) of a table, by the coordinates of
    their cells, y (B, D)."""

    inner: Bijection
    table: TableUnits
    x: Tensor  # with any valid value where a cell is missing
    observed: Tensor  # (B, D)
    context: Tensor | None
    generator: Generator | None

    def uniform(self) -> Tensor:
        shape, device = self.x.shape, self.x.device
        return torch.rand(shape, generator=self.generator, dtype=torch.float64, device=device)

    def sample(self, moves: int) -> Tensor:
        """Coordinates at the end of chains."""
        missing, y = ~self.observed, torch.zeros_like(self.x)
        log_q = y[:, 0]
        for move in range(moves):
            some = self.uniform() < 0.5
            y, log_q = self.choose(y, log_q, missing & some if move % 2 else missing, move > 0)
        return y

    def choose(
        self, y: Tensor, log_q: Tensor, fresh: Tensor, keeps: bool
    ) -> tuple[Tensor, Tensor]:
        """The present rows, unless they are only a start, or candidates, by importance."""
        rows = [(y, log_q)] if keeps else []
        rows += [self.propose(y, fresh) for _ in range(TABLE_CANDIDATES - len(rows))]
        states, noises = (torch.stack(each) for each in zip(*rows, strict=True))
        weights = torch.stack([self.log_ratio(state, fresh) for state in states]) - noises
        chances = weights.nan_to_num(nan=-math.inf).clamp_min(-1e30).T.softmax(1)
        place = torch.multinomial(chances, 1, generator=self.generator)[:, 0]
        index = place, torch.arange(len(place), device=place.device)
        return states[index], noises[index]

    def propose(self, y: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with new noise in observed cells and `fresh` ones sampled given the columns before
        and that they are not empty; and log q of the noise, (B,)."""
        known, log_slopes = self.table.place(self.x, self.uniform())
        y = torch.where(self.observed, known, y)
        normal, empty = torch.special.ndtri(self.uniform()).to(y), self.table.cells.empty_cells()

        def choose(i: int, log_p: Tensor) -> Tensor:
            present = log_p.masked_fill(empty[i, : log_p.shape[1]], -torch.inf)
            new, _ = self.table.step(i, present.log_softmax(-1), normal[:, i])
            return torch.where(fresh[:, i], new, y[:, i])

        log_q = -torch.where(self.observed, log_slopes, 0.0).sum(1)
        return self.table.walk(len(y), self.context, choose), log_q

    def log_ratio(self, y: Tensor, fresh: Tensor) -> Tensor:
        """log p(y), without the density of what is `fresh` where it is sampled, (B,)."""
        w, log_slopes, log_p = self.table.reweight(y, self.context)
        z, log_det = self.inner.inverse(w, self.context)
        empty = self.table.cells.empty_cells()
        log_present = log_p.masked_fill(empty, -torch.inf).logsumexp(-1).to(w)
        proposal = log_normal(w) + log_slopes - log_present
        total = normal_log_prob_rows(z) + log_det + log_slopes.sum(1)
        return total - torch.where(fresh, proposal, 0.0).sum(1)


class CompletableFlow(Flow, CanComplete):
    """A flow whose coordinates belong to one entry each, so that missing ones can move alone."""

    @property
    def completion(self) -> str:
        if self.table:
            return (
                "sampled by iterated importance resampling, whose limit is "
                "p(missing | observed, not empty); moves=N makes the chain longer"
            )
        return (
            "sampled by Hamiltonian Monte Carlo, whose limit is p(missing | observed); "
            "moves=N makes the chain longer"
        )

    class SamplingConfig(Flow.SamplingConfig):
        moves: Annotated[int, Range(2)] = 24
        """Completion: moves of the chain; more reduce its bias."""
        leaps: Annotated[int, Range(1)] = 4
        """Completion, except of tables: leapfrog steps of a move; more go further."""

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        options = options or self.SamplingConfig()
        assert isinstance(options, CompletableFlow.SamplingConfig), "expected sampling options"
        if self.table:
            observed = batch.observed_mask.reshape(len(batch), -1)
            context = self.context(batch.given, len(batch))
            x = self.complete_table(self.flat(batch), observed, context, options.moves, generator)
        else:
            pieces = torch.arange(len(batch)).split(MAX_GRADIENT_ROWS)
            x = torch.cat(
                [self.complete_entries(batch[rows], options, generator) for rows in pieces]
            )
        return torch.where(batch.observed_mask, batch.x.to(x.dtype), x)

    def complete_entries(
        self, batch: Batch, options: SamplingConfig, generator: Generator | None
    ) -> Tensor:
        """Rows (B, ...) of numbers whose missing entries are sampled."""
        observed = batch.observed_mask.reshape(len(batch), -1)
        missing = self.missing_entries(batch, observed)
        start = missing.sample_start(self.coordinate_sampler(batch), generator)
        w = missing.sample(start, options.moves, options.leaps, generator)
        return self.to_data(w, self.context(batch.given, len(batch)))

    def complete_table(
        self,
        x: Tensor,
        observed: Tensor,
        context: Tensor | None,
        moves: int,
        generator: Generator | None,
    ) -> Tensor:
        """Rows (B, D) whose missing cells are sampled, given that they are not empty."""
        table = self.table
        assert table is not None, "expected a table"
        x = torch.where(observed, x, table.cells.any_value().to(x))
        found = []
        for rows in torch.arange(len(x), device=x.device).split(MAX_CHAIN_ROWS):
            own = None if context is None else context[rows]
            missing = MissingColumns(self.inner, table, x[rows], observed[rows], own, generator)
            y, _ = table.units(missing.sample(moves))
            found.append(table.cells.decode(y))
        return torch.cat(found)

    def missing_entries(self, batch: Batch, observed: Tensor) -> MissingEntries:
        """The distribution of the entries of rows that are not observed (B, D)."""
        context = self.context(batch.given, len(batch))

        def log_p(w: Tensor) -> Tensor:
            z, log_det = self.inner.inverse(w, context)
            return normal_log_prob_rows(z) + log_det

        return MissingEntries(log_p, self.outer, self.flat(batch), observed, ~self.low.isnan())

    def coordinate_sampler(self, batch: Batch) -> CoordinateSampler:
        """The map from noise to coordinates, given the conditions of the rows."""
        context = self.context(batch.given, len(batch))

        def sampler(z: Tensor) -> tuple[Tensor, Tensor]:
            w, log_det = self.inner(z, context)
            return w, normal_log_prob_rows(z) - log_det

        return sampler


REPAINT_STEPS = 40
"""Steps of RePaint between noise and data."""
REPAINT_RESAMPLES = 4
"""How often RePaint repeats a step."""


def repaint(
    velocity: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    observed: Tensor,
    generator: Generator | None,
) -> Tensor:
    """x (B, D) with entries that are not observed sampled by v(x, t)."""

    def noise() -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    fixed, here = noise(), noise()
    times = torch.linspace(1, 0, REPAINT_STEPS + 1, dtype=x.dtype, device=x.device)
    for t, s in itertools.pairwise(times):
        for number in range(REPAINT_RESAMPLES if s > 0 and t < 1 else 1):
            if number:
                a = (1 - t) / (1 - s)
                here = a * here + (t.square() - (a * s).square()).sqrt() * noise()
            here = torch.where(observed, torch.lerp(x, fixed, t), here)
            here = here + (s - t) * velocity(here, t)
    return torch.where(observed, x, here)


class TransferFlow(CompletableFlow, CanTransfer):
    """x' = f(f^{-1}(x, c), c'): the code of x is unchanged, its conditions change from c to c'."""

    @torch.no_grad()
    def transfer(self, batch: Batch, given: Given) -> Tensor:
        return self.decode(self.encode(batch), {**batch.given, **given})
