r"""Tools of Markov chains and of particles: step sizes, convergence, Stein's direction.

Dual averaging finds the logarithm of a step size at which the acceptance rate is as wished
(Nesterov 2009; Hoffman & Gelman 2014, sec. 3.2). The potential scale reduction
$\hat R = \sqrt{var_{all} / var_{within}}$ of chains cut into halves is 1 if they agree (Gelman &
Rubin 1992; Gelman et al. 2013). Stein variational gradient descent moves particles by

$\phi(w) = \frac1K \sum_j [k(w_j, w) \nabla \log p(w_j) + \nabla_{w_j} k(w_j, w)]$

with $k(w, w') = e^{-|w - w'|^2 / h}$, $h = med^2 / \log K$ for the median distance med (Liu & Wang
2016): uphill together, and apart from one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SHRINKAGE, DELAY, FORGETTING = 0.05, 10.0, 0.75
"""gamma, t_0 and kappa of dual averaging, as in Hoffman & Gelman 2014."""


@dataclass(frozen=True)
class DualAveraging:
    """The state of dual averaging after t steps, four numbers in one tensor."""

    state: Tensor  # (4,): t, mean error of the acceptance, log-step, averaged log-step

    @classmethod
    def start(cls, step: float) -> DualAveraging:
        return cls(torch.tensor([0.0, 0.0, math.log(step), math.log(step)]))

    def update(self, acceptance: Tensor, target: float, first: float) -> DualAveraging:
        """After one more acceptance rate (); `first` is the step size it started with."""
        t, error, _, mean = self.state.unbind()
        t = t + 1
        error = error + (target - acceptance - error) / (t + DELAY)
        log_step = math.log(10 * first) - t.sqrt() / SHRINKAGE * error
        share = t**-FORGETTING
        averaged = share * log_step + (1 - share) * mean
        return DualAveraging(torch.stack([t, error, log_step, averaged]))

    @property
    def step(self) -> Tensor:
        """The step size to try next, ()."""
        return self.state[2].exp()

    @property
    def averaged(self) -> Tensor:
        """The step size to keep, ()."""
        return self.state[3].exp()


def split_rhat(values: Tensor) -> Tensor:
    """R-hat of each number of chains (S, C, ...) of S states, each chain cut into halves, (...);
    1 for numbers that do not vary."""
    half = len(values) // 2
    parts = torch.cat([values[:half], values[half : 2 * half]], 1).double()  # (S/2, 2 C, ...)
    within = parts.var(0).mean(0)
    between = parts.mean(0).var(0)
    found = ((half - 1) / half + between / within).sqrt()
    return torch.where(within > 0, found, torch.where(between > 0, torch.inf, 1.0))


def median_bandwidth(squares: Tensor) -> Tensor:
    """h of the kernel from squared distances (K, K) of particles."""
    count = len(squares)
    above = torch.triu_indices(count, count, 1)
    median = squares[above[0], above[1]].median()
    return (median / math.log(max(count, 2))).clamp(min=1e-12)


def stein_direction(w: Tensor, score: Tensor, bandwidth: Tensor | None = None) -> Tensor:
    """phi (K, P) of particles w (K, P) with the gradients of log p (K, P); a single one goes
    uphill."""
    if len(w) == 1:
        return score
    squares = torch.cdist(w, w).square()
    h = median_bandwidth(squares) if bandwidth is None else bandwidth
    kernel = (-squares / h).exp()  # (K, K)
    apart = 2 / h * (kernel.sum(1, keepdim=True) * w - kernel @ w)
    return (kernel @ score + apart) / len(w)
