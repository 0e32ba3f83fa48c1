r"""Completion and transfer with flows: missing entries sampled given the observed ones.

$p(x_h | x_o) \propto p(x_h, x_o)$ and its gradient are known up to a constant, so Hamiltonian
Monte Carlo samples from it. A state s holds the coordinates of missing entries and, for observed
discrete ones, v with $u = \sigma(v)$, the dequantisation noise of $x + u$, so that the chain also
samples the noise: $P(x_h | x_o) \propto \int p(x_h, x_o + u_o) du_o$.

A chain starts at one of several samples of the flow, chosen by importance: w = (w_h, w_o') ~ p has
the weight $p(w_h, w_o) r(w_o') / p(w_h, w_o')$ for any density r, here a narrow Gaussian around
the observed entries.

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


class CompletableFlow(Flow, CanComplete):
    """A flow whose coordinates belong to one entry each, so that missing ones can move alone."""

    completion = (
        "sampled by Hamiltonian Monte Carlo, whose limit is p(missing | observed); "
        "moves=N makes the chain longer"
    )

    class SamplingConfig(Flow.SamplingConfig):
        moves: Annotated[int, Range(2)] = 24
        """Completion: moves of the Hamiltonian Monte Carlo chain; more reduce its bias."""
        leaps: Annotated[int, Range(1)] = 4
        """Completion: leapfrog steps of a move; more go further."""

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        options = options or self.SamplingConfig()
        assert isinstance(options, CompletableFlow.SamplingConfig), "expected sampling options"
        observed = batch.observed_mask.reshape(len(batch), -1)
        missing = self.missing_entries(batch, observed)
        start = missing.sample_start(self.coordinate_sampler(batch), generator)
        x = self.to_data(missing.sample(start, options.moves, options.leaps, generator))
        return torch.where(batch.observed_mask, batch.x.to(x.dtype), x)

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
