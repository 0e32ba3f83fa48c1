r"""Hidden entries of a flow, drawn given the others.

$p(x_h | x_o) \propto p(x_h, x_o)$ is known up to a constant, and its gradient too: a Hamiltonian
chain draws from it. A state s holds the coordinates of what is hidden and, for a whole number
that was seen, v with $u = \sigma(v)$, the place of $x + u$ in its interval, so that the chain also
draws the noise: $P(x_h | x_o) \propto \int p(x_h, x_o + u_o) du_o$.

Chains start at draws of the law, of which one is chosen by importance: w = (w_h, w_o') ~ p has the
weight $p(w_h, w_o) r(w_o') / p(w_h, w_o')$ for any density r, here a narrow Gaussian about what
was seen.

Flows that draw hidden entries given the others, by a chain.

Hidden entries by walking a continuous flow (Lugmayr et al. 2022, for straight paths).

From noise at t = 1 to data at t = 0 the velocity moves every entry; what was seen is put back at
each time as $(1 - t) x_o + t z_o$. A step is taken several times, its end being led back to its
start by noise, $x_t = a x_s + b \epsilon$ with $a = (1 - t)/(1 - s)$ and $b^2 = t^2 - a^2 s^2$,
so that what is hidden comes to agree with what was seen. Where this converges the entries agree,
but it is no draw from the exact conditional.

Flows that keep a code and change what is given.
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
from ...prob.distributions import log_normal
from ...prob.hmc import Density, Hamiltonian
from ._base import Flow

PROPOSAL_SCALE = 0.5
"""Scale of the Gaussian about what was seen, in coordinates near one."""
START_CANDIDATES = 16
"""Draws of which a chain's start is chosen."""
CoordinateSampler = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Coordinates of noise (N, D), and their log-density (N,)."""


@dataclass(frozen=True)
class MissingEntries:
    """The law of what is not seen of rows y (B, D), through states s (B, D)."""

    log_p: Density  # of coordinates w (B, D)
    outer: Bijection  # w -> y, entry by entry
    y: Tensor
    seen: Tensor  # (B, D)
    whole: Tensor  # (D,)

    @property
    def spread(self) -> Tensor:
        """Entries seen as whole numbers, which lie anywhere in their interval."""
        return self.seen & self.whole

    def density(self, s: Tensor) -> Tensor:
        w, volume = self.placed(s)
        return self.log_p(w) + volume

    def placed(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinates of a state, and what the density of its seen part is multiplied by."""
        y = torch.where(self.spread, self.y + s.sigmoid(), self.y)
        rest, _ = self.outer(torch.zeros_like(s))  # hidden entries add a constant to the volume
        w, paid = self.outer.inverse(torch.where(self.seen, y, rest))
        slopes = F.logsigmoid(s) + F.logsigmoid(-s)
        volume = paid + torch.where(self.spread, slopes, 0.0).sum(1)
        return torch.where(self.seen, w, s), volume

    def draw(self, start: Tensor, moves: int, leaps: int, generator: Generator | None) -> Tensor:
        """The coordinates (B, D) at the end of chains from states."""
        chain = Hamiltonian(self.density, ~self.seen | self.spread, moves, leaps, generator)
        return self.placed(chain.run(start))[0]

    def initialise_from_data(self, draw: CoordinateSampler, generator: Generator | None) -> Tensor:
        """One of several states for each row, chosen by importance."""
        options = [self.option(draw, generator) for _ in range(START_CANDIDATES)]
        states, weights = (torch.stack(each) for each in zip(*options, strict=True))
        chances = weights.nan_to_num(nan=-math.inf).clamp_min(-1e30).T.softmax(1)
        place = torch.multinomial(chances, 1, generator=generator)[:, 0]
        return states[place, torch.arange(len(place), device=place.device)]

    def option(self, draw: CoordinateSampler, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """A state (B, D) and the logarithm of its weight (B,)."""
        y = self.y
        noise, uniform = (
            make(y.shape, generator=generator, dtype=y.dtype, device=y.device)
            for make in (torch.randn, torch.rand)
        )
        drawn, log_q = draw(noise)
        s = torch.where(self.spread, torch.logit(uniform, 1e-6), drawn)
        w, volume = self.placed(s)
        logistic = torch.where(self.spread, F.logsigmoid(s) + F.logsigmoid(-s), 0.0).sum(1)
        near = -0.5 * (torch.where(self.seen, drawn - w, 0.0) / PROPOSAL_SCALE).square().sum(1)
        return s, self.log_p(w) + volume - logistic + near - log_q


class CompletableFlow(Flow, CanComplete):
    """A flow whose coordinates belong to one entry each, so that those hidden can move alone."""

    completion = (
        "drawn by a Hamiltonian Monte Carlo chain whose law is p(hidden | seen); "
        "moves=N makes it longer"
    )

    class SamplingConfig(Flow.SamplingConfig):
        moves: Annotated[int, Range(2)] = 24
        """Completion: moves of the chain; more forget its start better."""
        leaps: Annotated[int, Range(1)] = 4
        """Completion: gradients a move follows; more go further."""

    @torch.no_grad()
    def complete(
        self, batch: Batch, options: BaseConfig | None = None, generator: Generator | None = None
    ) -> Tensor:
        options = options or self.SamplingConfig()
        assert isinstance(options, CompletableFlow.SamplingConfig), (
            "completions are asked for with Sampling"
        )
        seen = batch.observed_mask.reshape(len(batch), -1)
        law = self.hidden(batch, seen)
        start = law.initialise_from_data(self.drawing(batch), generator)
        x = self.leave(law.draw(start, options.moves, options.leaps, generator))
        return torch.where(batch.observed_mask, batch.x.to(x.dtype), x)

    def hidden(self, batch: Batch, seen: Tensor) -> MissingEntries:
        """The law of what is not seen (B, D) of rows."""
        context = self.context(batch.given, len(batch))

        def log_p(w: Tensor) -> Tensor:
            z, log_det = self.inner.inverse(w, context)
            return log_normal(z) + log_det

        return MissingEntries(log_p, self.outer, self.flat(batch), seen, ~self.low.isnan())

    def drawing(self, batch: Batch) -> CoordinateSampler:
        """What makes coordinates of noise, given the same as the rows are."""
        context = self.context(batch.given, len(batch))

        def draw(z: Tensor) -> tuple[Tensor, Tensor]:
            w, log_det = self.inner(z, context)
            return w, log_normal(z) - log_det

        return draw


REPAINT_STEPS = 40
"""Times between noise and data."""
REPAINT_RESAMPLES = 4
"""How often a step is taken."""


def repaint(
    velocity: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    seen: Tensor,
    generator: Generator | None,
) -> Tensor:
    """x (B, D) with what is not seen drawn, by v(x, t)."""

    def noise() -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)

    still, here = noise(), noise()
    times = torch.linspace(1, 0, REPAINT_STEPS + 1, dtype=x.dtype, device=x.device)
    for t, s in itertools.pairwise(times):
        for turn in range(REPAINT_RESAMPLES if s > 0 and t < 1 else 1):
            if turn:
                a = (1 - t) / (1 - s)
                here = a * here + (t.square() - (a * s).square()).sqrt() * noise()
            here = torch.where(seen, torch.lerp(x, still, t), here)
            here = here + (s - t) * velocity(here, t)
    return torch.where(seen, x, here)


class TransferFlow(CompletableFlow, CanTransfer):
    """x' = f(f^{-1}(x, c), c'): what the code holds stays, what c says becomes what c' says."""

    @torch.no_grad()
    def transfer(self, batch: Batch, given: Given) -> Tensor:
        return self.decode(self.encode(batch), {**batch.given, **given})
