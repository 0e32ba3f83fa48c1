r"""Annealed importance sampling of a normaliser, and its value for the weights of the moment.

A path of distributions $p_k(x) \propto f_{\beta_k}(x)$ leads from a base whose Z is known to the
model. Chains start at exact samples of the base; from one temperature to the next a chain is
weighted by $f_{\beta_k}(x) / f_{\beta_{k-1}}(x)$ and moves by a step that leaves $p_k$ as it is.
The mean weight is an unbiased estimate of $Z / Z_{base}$ for any number of temperatures (Neal
2001), and chains drawn in proportion to their weights follow the model as they become many.

Where the base is N(0, I) and $f_\beta(w) = N(w; 0, I)\, e^{-\beta E(w)}$, chains move by
Hamiltonian steps: half a step of the momentum down the energy, an exact rotation of position and
momentum, in which the base is at rest, and half a step of the momentum again, the end accepted
with its probability (split Hamiltonian Monte Carlo, Shahbaba et al. 2014). Step sizes are chosen
by chains of their own, so that the weights stay unbiased.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..prob.distributions import log_mean_exp

State = TypeVar("State")
LogZ = tuple[Tensor, Tensor]
"""log Z and its standard error, each ()."""
LARGEST_TURN = math.pi / 2
"""Angle after which a chain of the base has forgotten where it was."""
TARGET_ACCEPTANCE = 0.7
"""Share of moves accepted at a good step size: 0.57 for Langevin moves, more for longer ones."""
PILOT_STEPS = 25
"""Temperatures at which step sizes are chosen along the path."""


def anneal(
    state: State,
    step: Callable[[State, float, float], tuple[State, Tensor]],
    temperatures: int,
) -> tuple[State, Tensor]:
    """The states at the end of the path, and their log-weights (N,). `step` leads from one inverse
    temperature to the next and gives the change of the log-weights."""
    ladder, log_weight = torch.linspace(0, 1, temperatures + 1).tolist(), None
    for low, high in itertools.pairwise(ladder):
        state, gain = step(state, low, high)
        log_weight = gain if log_weight is None else log_weight + gain
    assert log_weight is not None, "expected one temperature or more"
    return state, log_weight


@dataclass(frozen=True)
class Chains:
    """States of chains with their energies and the gradients of these."""

    w: Tensor  # (N, D)
    energy: Tensor  # (N,)
    slope: Tensor  # (N, D)

    def where(self, taken: Tensor, other: Chains) -> Chains:
        """These states where `taken` (N,), else the others."""
        column = taken[:, None]
        return Chains(
            torch.where(column, self.w, other.w),
            torch.where(taken, self.energy, other.energy),
            torch.where(column, self.slope, other.slope),
        )


Evaluate = Callable[[Tensor], Chains]
"""States w (N, D) with their energies and gradients."""
MoveNoise = Callable[[], tuple[Tensor, Tensor]]
"""The noise of a move: standard normal momenta (N, D), and uniforms (N,) that decide whether it is
taken."""


def evaluate_energy(energy: Callable[[Tensor], Tensor], w: Tensor) -> Chains:
    """States w (N, D) with their energies (N,) and gradients."""
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        value = energy(w)
        (slope,) = torch.autograd.grad(value.sum(), w)
    return Chains(w.detach(), value.detach(), slope)


def leap(
    evaluate: Evaluate,
    chains: Chains,
    momentum: Tensor,
    beta: float,
    step: Tensor,
    leaps: int,
) -> tuple[Chains, Tensor]:
    """The end of a move under N(w; 0, I) e^(-beta E) with step sizes (N or 1, 1), and the
    probability to accept it, (N,)."""
    cos, sin, before, end = step.cos(), step.sin(), momentum, chains
    for _ in range(leaps):
        momentum = momentum - step / 2 * beta * end.slope
        w, momentum = cos * end.w + sin * momentum, cos * momentum - sin * end.w
        end = evaluate(w)
        momentum = momentum - step / 2 * beta * end.slope
    old = (chains.w.square() + before.square()).sum(1) / 2 + beta * chains.energy
    new = (end.w.square() + momentum.square()).sum(1) / 2 + beta * end.energy
    return end, (old - new).nan_to_num(nan=-torch.inf).clamp(max=0).exp()


@dataclass(frozen=True)
class NormalPath:
    """N(w; 0, I) e^(-beta E) from beta = 0 to 1, with the step sizes of moves on the way: one for
    all chains, or one for each of `rows` problems that are solved side by side, of which chains
    (S rows, D) hold first those of the first chain."""

    evaluate: Evaluate
    leaps: int
    sizes: Tensor  # (K, rows)

    @classmethod
    def tuned(
        cls, evaluate: Evaluate, leaps: int, start: Tensor, noise: MoveNoise, rows: int = 1
    ) -> NormalPath:
        """With step sizes at which chains from `start` (S rows, D) are accepted as often as is
        good; these chains are to have noise of their own, so that the weights of others do not
        depend on it."""
        largest = LARGEST_TURN / leaps  # beyond, a move would turn back to where it came from
        chains, size = evaluate(start), start.new_full((rows,), largest)
        sizes = list[Tensor]()
        for number in range(PILOT_STEPS):
            here = cls(evaluate, leaps, size[None])
            chains, chance = here.attempt(chains, (number + 1) / PILOT_STEPS, noise)
            rate = chance.reshape(-1, rows).mean(0)
            size = (size * (rate - TARGET_ACCEPTANCE).exp()).clamp(max=largest)
            sizes.append(size)
        return cls(evaluate, leaps, torch.stack(sizes))

    def attempt(self, chains: Chains, beta: float, noise: MoveNoise) -> tuple[Chains, Tensor]:
        """One move, and the probability of each chain to take it."""
        size = self.sizes[min(int(beta * len(self.sizes)), len(self.sizes) - 1)]  # (rows,)
        step = size.repeat(len(chains.w) // len(size))[:, None]
        momentum, uniform = noise()
        end, chance = leap(self.evaluate, chains, momentum, beta, step, self.leaps)
        return end.where(uniform < chance, chains), chance

    def run(self, start: Tensor, temperatures: int, noise: MoveNoise) -> tuple[Tensor, Tensor]:
        """The ends (N, D) of chains that start at samples of N(0, I), and their log-weights."""

        def step(chains: Chains, low: float, high: float) -> tuple[Chains, Tensor]:
            moved, _ = self.attempt(chains, high, noise)
            return moved, (low - high) * chains.energy

        chains, log_weight = anneal(self.evaluate(start), step, temperatures)
        return chains.w, log_weight


def log_mean(log_weight: Tensor) -> LogZ:
    """The logarithm of the mean weight (N,), and its standard error."""
    value, error = log_mean_exp(log_weight[:, None])
    return value[0], error[0]


class NormaliserCache:
    """The last log Z that was estimated: it holds until the weights or the options change."""

    def __init__(self) -> None:
        self.last: tuple[object, LogZ] | None = None

    def find(self, model: nn.Module, options: Hashable, estimate: Callable[[], LogZ]) -> LogZ:
        tensors = [*model.parameters(), *model.buffers()]
        key = (options, *((id(t), t.data_ptr(), t._version) for t in tensors))
        if self.last is None or self.last[0] != key:
            self.last = key, estimate()
        return self.last[1]
