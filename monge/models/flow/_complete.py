r"""Hidden entries of a flow, drawn given the others.

$p(x_h | x_o) \propto p(x_h, x_o)$ is known up to a constant, and its gradient too: a Hamiltonian
chain draws from it. A state s holds the coordinates of what is hidden and, for a whole number
that was seen, v with $u = \sigma(v)$, the place of $x + u$ in its interval, so that the chain also
draws the noise: $P(x_h | x_o) \propto \int p(x_h, x_o + u_o) du_o$.

Chains start at draws of the law, of which one is chosen by importance: w = (w_h, w_o') ~ p has the
weight $p(w_h, w_o) r(w_o') / p(w_h, w_o')$ for any density r, here a narrow Gaussian about what
was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...prob.bijections.base import Bijection
from ...prob.hamiltonian import Density, Hamiltonian

NEAR = 0.5
"""Scale of the Gaussian about what was seen, in coordinates near one."""
STARTS = 16
"""Draws of which a chain's start is chosen."""
Draw = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Coordinates of noise (N, D), and their log-density (N,)."""


@dataclass(frozen=True)
class Hidden:
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

    def begin(self, draw: Draw, generator: Generator | None) -> Tensor:
        """One of several states for each row, chosen by importance."""
        options = [self.option(draw, generator) for _ in range(STARTS)]
        states, weights = (torch.stack(each) for each in zip(*options, strict=True))
        chances = weights.nan_to_num(nan=-math.inf).clamp_min(-1e30).T.softmax(1)
        place = torch.multinomial(chances, 1, generator=generator)[:, 0]
        return states[place, torch.arange(len(place), device=place.device)]

    def option(self, draw: Draw, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """A state (B, D) and the logarithm of its weight (B,)."""
        y = self.y
        noise, uniform = (make(y.shape, generator=generator, dtype=y.dtype, device=y.device)
                          for make in (torch.randn, torch.rand))
        drawn, log_q = draw(noise)
        s = torch.where(self.spread, torch.logit(uniform, 1e-6), drawn)
        w, volume = self.placed(s)
        logistic = torch.where(self.spread, F.logsigmoid(s) + F.logsigmoid(-s), 0.0).sum(1)
        near = -0.5 * (torch.where(self.seen, drawn - w, 0.0) / NEAR).square().sum(1)
        return s, self.log_p(w) + volume - logistic + near - log_q
