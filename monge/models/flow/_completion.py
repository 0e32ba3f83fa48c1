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
importance. Several draws of a row are chosen from one larger set of candidates.

Continuous flows of few entries, whose density takes a solver, choose among candidates too, which
come from a kernel density of samples of the flow, itself conditioned on the observed entries: a
mixture of Gaussians, so that $q(w_h | w_o)$ is known.

Continuous flows of many entries use RePaint (Lugmayr et al. 2022, for straight paths): from noise
at t = 1 to data at t = 0 the velocity moves every entry, and the observed ones are put back at
each time as $(1 - t) x_o + t z_o$. Each step is repeated several times, its end taken back to its
start by noise, $x_t = a x_s + b \epsilon$ with $a = (1 - t)/(1 - s)$ and $b^2 = t^2 - a^2 s^2$.
On convergence the entries agree, but this does not sample from the exact conditional.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

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
from .._particles import effective_size
from ._base import Flow
from ._tables import TableUnits, log_normal

PROPOSAL_SCALE = 0.5
"""Scale of the Gaussian around observed entries, in standardised coordinates."""
START_CANDIDATES = 16
"""Samples from which the start of a chain is chosen."""
Effective = tuple[int, float, float]
"""Candidates of a row, and their effective number in the median row and in the worst."""
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

    def candidates(
        self, proposals: Sequence[KernelDensity], count: int, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Coordinates (B, D) with the missing entries of every `count` rows sampled from their
        own density, and their log-weights, (B,)."""
        uniform = torch.rand(self.y.shape, generator=generator, dtype=self.y.dtype)
        s = torch.where(self.dequantised, torch.logit(uniform.to(self.y), 1e-6), 0.0)
        w, volume = self.coordinates(s)
        logistic = torch.where(self.dequantised, F.logsigmoid(s) + F.logsigmoid(-s), 0.0).sum(1)
        every = zip(proposals, w.split(count), self.observed[::count], strict=True)
        found = [density.sample(rows, seen, generator) for density, rows, seen in every]
        w, log_q = (torch.cat(part) for part in zip(*found, strict=True))
        return w, self.log_p(w) + volume - logistic - log_q

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


CANDIDATES_PER_DRAW = 4
"""Fewest candidates from which each of several draws of a row is chosen."""
KERNELS, MIN_KERNELS, MAX_KERNELS = 2000, 200, 20_000
"""Samples of a flow that make a kernel density, the fewest if there are many conditions, and the
most for all conditions together."""
RIDGE = 1e-6
"""What is added to the variances of kernels, which samples on a line would make singular."""


@dataclass(frozen=True)
class KernelDensity:
    """A mixture of Gaussians of one covariance around samples of a flow. The samples are drawn
    towards their mean, so that the mixture has their mean and covariance (West 1993); the
    bandwidth is Silverman's."""

    centres: Tensor  # (M, D)
    covariance: Tensor  # (D, D), of a kernel

    @classmethod
    def of(cls, samples: Tensor) -> KernelDensity:
        x = samples[samples.isfinite().all(1)].double()
        (n, d), mean = x.shape, x.mean(0)
        width = min((4 / ((d + 2) * n)) ** (1 / (d + 4)), 1.0)
        covariance = torch.cov(x.T).reshape(d, d)
        covariance = covariance + RIDGE * covariance.diagonal().mean() * torch.eye(d).to(x)
        return cls(mean + (1 - width**2) ** 0.5 * (x - mean), width**2 * covariance)

    def sample(
        self, w: Tensor, seen: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Rows w (N, D) with the entries that are not seen (D,) sampled given the others, and the
        log-density of these, (N,)."""
        o, h, kernel = seen.nonzero()[:, 0], (~seen).nonzero()[:, 0], self.covariance
        if not len(h):
            return w, torch.zeros_like(w[:, 0])
        known = w[:, o].double()
        known = known[:1] if bool((known == known[:1]).all()) else known  # (1 or N, O)
        gain = torch.linalg.solve(kernel[o][:, o], kernel[o][:, h])  # (O, H)
        gap = known[:, None] - self.centres[:, o]  # (1 or N, M, O)
        away = torch.linalg.solve(kernel[o][:, o], gap.mT).mT
        chances = (-0.5 * (gap * away).sum(-1)).log_softmax(1).expand(len(w), -1)  # (N, M)
        means = (self.centres[:, h] + gap @ gain).expand(len(w), -1, -1)  # (N, M, H)
        root = torch.linalg.cholesky(kernel[h][:, h] - kernel[h][:, o] @ gain)
        which = torch.multinomial(chances.exp(), 1, generator=generator)
        noise = torch.randn(len(w), len(h), generator=generator, dtype=w.dtype, device=w.device)
        found = means.take_along_dim(which[..., None], 1)[:, 0] + noise.double() @ root.T  # (N, H)
        apart = (found[:, None] - means).mT  # (N, H, M)
        scaled = torch.linalg.solve_triangular(root, apart, upper=False)
        log_q = (chances - 0.5 * scaled.square().sum(1)).logsumexp(1) - root.logdet()
        return w.index_copy(1, h, found.to(w)), log_q.to(w)  # up to a constant


def choose_candidates(
    log_weights: Tensor, draws: int, generator: Generator | None
) -> tuple[Tensor, Effective]:
    """The numbers (B * draws,) of some of the candidates of B rows by their log-weights (B, N),
    and how many these are worth."""
    log_weights = log_weights.double().nan_to_num(nan=-math.inf).clamp_min(-1e30)
    chances, count = log_weights.softmax(1), log_weights.shape[1]
    which = torch.multinomial(chances, draws, replacement=True, generator=generator)
    first = count * torch.arange(len(which), device=which.device)[:, None]
    sizes = effective_size(log_weights)
    return (first + which).flatten(), (count, float(sizes.median()), float(sizes.min()))


TABLE_CANDIDATES = 8
"""Rows from which each move of the chain of a table chooses."""
MAX_CHAIN_ROWS = 1024
"""Rows of a table that are completed at a time."""
MAX_GRADIENT_ROWS = 256
"""Rows of numbers that are completed at a time: a move keeps the graph of the whole density."""
MAX_CANDIDATES = 4096
"""Candidates of all rows that are weighed at a time."""


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

    def candidates(self) -> tuple[Tensor, Tensor]:
        """Coordinates (B, D) with all missing columns sampled, and their log-weights, (B,)."""
        missing = ~self.observed
        y, log_q = self.propose(torch.zeros_like(self.x), missing)
        return y, self.log_ratio(y, missing) - log_q

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

    effective: Effective | None = None
    """Of the last choice among candidates."""

    @property
    def completion(self) -> str:
        if self.effective is not None:
            count, median, worst = self.effective
            return (
                f"chosen by importance among {count} candidates of each row, which tends to "
                "p(missing | observed, not empty) as they become more (effective sample size "
                f"{median:.3g} in the median row, {worst:.3g} in the worst)"
            )
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
        chosen: Any = options or self.SamplingConfig()
        self.effective = None
        if self.table:
            parts = [
                self.missing_columns(batch[rows], generator).sample(chosen.moves)
                for rows in torch.arange(len(batch)).split(MAX_CHAIN_ROWS)
            ]
            x = self.decode_cells(torch.cat(parts))
        else:
            pieces = torch.arange(len(batch)).split(MAX_GRADIENT_ROWS)
            x = torch.cat(
                [self.complete_entries(batch[rows], chosen, generator) for rows in pieces]
            )
        return torch.where(batch.observed_mask, batch.x.to(x.dtype), x)

    @torch.no_grad()
    def complete_several(
        self,
        batch: Batch,
        draws: int,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Of a table, several draws of a row are chosen from as many candidates as one chain of
        it tries, or from more."""
        if draws == 1 or not self.table:
            return super().complete_several(batch, draws, options, generator)
        chosen: Any = options or self.SamplingConfig()
        count = max(TABLE_CANDIDATES * chosen.moves, CANDIDATES_PER_DRAW * draws)
        found, self.effective = [], None
        for rows in torch.arange(len(batch)).split(max(MAX_CANDIDATES // count, 1)):
            every = batch[rows.repeat_interleave(count)]
            y, log_weights = self.missing_columns(every, generator).candidates()
            which, own = choose_candidates(log_weights.view(-1, count), draws, generator)
            found.append(y[which])
            self.effective = weaker(self.effective, own)
        x = self.decode_cells(torch.cat(found)).unflatten(0, (-1, draws))
        return torch.where(batch.observed_mask[:, None], batch.x[:, None].to(x.dtype), x)

    def complete_entries(
        self, batch: Batch, options: SamplingConfig, generator: Generator | None
    ) -> Tensor:
        """Rows (B, ...) of numbers whose missing entries are sampled."""
        observed = batch.observed_mask.reshape(len(batch), -1)
        missing = self.missing_entries(batch, observed)
        start = missing.sample_start(self.coordinate_sampler(batch), generator)
        w = missing.sample(start, options.moves, options.leaps, generator)
        return self.to_data(w, self.context(batch.given, len(batch)))

    @property
    def weighing_map(self) -> Bijection:
        """The map from which completion has the density of rows."""
        return self.inner

    def missing_columns(self, batch: Batch, generator: Generator | None) -> MissingColumns:
        """The distribution of the missing cells of rows of a table."""
        table = self.table
        assert table is not None, "expected a table"
        observed = batch.observed_mask.reshape(len(batch), -1)
        x = torch.where(observed, self.flat(batch), table.cells.any_value().to(self.flat(batch)))
        context = self.context(batch.given, len(batch))
        return MissingColumns(self.weighing_map, table, x, observed, context, generator)

    def decode_cells(self, y: Tensor) -> Tensor:
        """Rows of a table at coordinates of their cells (B, D)."""
        assert self.table is not None, "expected a table"
        return self.table.cells.decode(self.table.units(y)[0])

    def missing_entries(self, batch: Batch, observed: Tensor) -> MissingEntries:
        """The distribution of the entries of rows that are not observed (B, D)."""
        context = self.context(batch.given, len(batch))

        def log_p(w: Tensor) -> Tensor:
            z, log_det = self.weighing_map.inverse(w, context)
            return normal_log_prob_rows(z) + log_det

        return MissingEntries(log_p, self.outer, self.flat(batch), observed, ~self.low.isnan())

    def coordinate_sampler(self, batch: Batch) -> CoordinateSampler:
        """The map from noise to coordinates, given the conditions of the rows."""
        context = self.context(batch.given, len(batch))

        def sampler(z: Tensor) -> tuple[Tensor, Tensor]:
            w, log_det = self.inner(z, context)
            return w, normal_log_prob_rows(z) - log_det

        return sampler


def weaker(first: Effective | None, second: Effective) -> Effective:
    """The candidates of both; of the medians the smaller, of the worst too."""
    if first is None:
        return second
    return second[0], min(first[1], second[1]), min(first[2], second[2])


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
