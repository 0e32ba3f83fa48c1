r"""Hamiltonian Monte Carlo: samples from a density known up to a constant.

Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011): a state s with a momentum $m \sim N(0, I)$
follows $\dot s = m$, $\dot m = \nabla \log p(s)$ by leapfrog steps of size $\epsilon$, and the end
is accepted with probability $\min(1, e^{H - H'})$, $H = |m|^2 / 2 - \log p(s)$, which leaves p
invariant. Each row is a separate chain, which adapts $\epsilon$ in the first half of its moves, so
the second half is a fixed Markov chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

LogDensity = Callable[[Tensor], Tensor]
"""log p up to a constant of states (B, D), (B,)."""
TARGET_ACCEPTANCE = 0.8
"""Acceptance rate at a good step size (Beskos et al. 2013: 0.65 and more)."""
INITIAL_STEP_SIZE = 0.3
"""Initial step size, for states of scale 1."""


@dataclass(frozen=True)
class HamiltonianMonteCarlo:
    """`moves` proposals of `leaps` leapfrog steps each, over the entries where `free` (B, D)."""

    log_p: LogDensity
    free: Tensor
    moves: int
    leaps: int
    generator: Generator | None

    def run(self, start: Tensor) -> Tensor:
        """The states at the end of the chains, (B, D)."""
        s, rate = start, start.new_full((len(start), 1), INITIAL_STEP_SIZE)
        value, slope = self.gradient(s)
        for move in range(self.moves):
            end, reached, uphill, chance = self.leap(s, value, slope, rate)
            taken = self.uniform(chance) < chance  # (B,)
            s = torch.where(taken[:, None], end, s)
            slope = torch.where(taken[:, None], uphill, slope)
            value = torch.where(taken, reached, value)
            if 2 * move < self.moves:
                gain = 1.5 / (1 + move) ** 0.5
                rate = rate * (gain * (chance - TARGET_ACCEPTANCE))[:, None].exp()
        return s

    def leap(
        self, s: Tensor, value: Tensor, slope: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The end of a move, log p and its gradient there, and the acceptance probability."""
        before = (
            torch.randn(s.shape, generator=self.generator, dtype=s.dtype, device=s.device)
            * self.free
        )
        step = (
            rate * (0.8 + 0.4 * self.uniform(value))[:, None]
        )  # random lengths avoid closed orbits
        momentum = before + step / 2 * slope
        for number in range(self.leaps):
            s = s + step * momentum
            reached, slope = self.gradient(s)
            momentum = momentum + step / (2 if number == self.leaps - 1 else 1) * slope
        energy = (before.square() - momentum.square()).sum(1) / 2
        change = (reached - value + energy).nan_to_num(nan=-torch.inf, posinf=-torch.inf)
        return s, reached, slope, change.clamp(max=0).exp()

    def gradient(self, s: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            s = s.detach().requires_grad_()
            value = self.log_p(s)
            (slope,) = torch.autograd.grad(value.sum(), s)
        return value.detach(), slope * self.free

    def uniform(self, like: Tensor) -> Tensor:
        return torch.rand(
            like.shape, generator=self.generator, dtype=like.dtype, device=like.device
        )
