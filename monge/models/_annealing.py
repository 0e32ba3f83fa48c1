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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import torch
from torch import Tensor, nn

from ..core.abilities import Likelihood
from ..core.config import Config as BaseConfig
from ..core.config import Range
from ..core.rng import derive_seed, keyed_uniform
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
PILOT_CHAINS = 8
"""Chains of a row by which its step sizes are chosen."""
SAMPLES_PER_BLOCK = 8
"""Samples or chains of a row whose noise is drawn at once; more are drawn in a loop."""
MAX_CHAINS = 2048
"""Chains of all rows that are annealed at once."""
Blocks = Sequence[tuple[int, int]]
"""Blocks of the chains of a row: the number of the first, and how many."""


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


class AnnealedLikelihoodConfig(BaseConfig):
    """How the likelihood of a row with latent codes is estimated."""

    method: Literal["importance", "ais"] = "importance"
    """importance: the mean weight of samples of q(z | x); ais: annealed importance sampling,
    whose samples move from q(z | x) to p(z | x), much tighter and slower."""
    samples: Annotated[int, Range(1)] = 8
    """Importance samples, or chains of ais: more are tighter and slower; 1 is the ELBO, with
    ais a single chain."""
    temperatures: Annotated[int, Range(1)] = 100
    """ais: distributions between q(z | x) and p(z | x)."""
    leaps: Annotated[int, Range(1, 50)] = 3
    """ais: leapfrog steps of a move."""


@dataclass(frozen=True)
class RowNoise:
    """Noise of the chains of rows, keyed by row and block, so that it depends neither on other
    rows nor on the number of chains."""

    row: Tensor  # (B,)
    seed: int
    normal: Callable[[int, int], Tensor]
    """Standard normal noise (S, B, ...) of S chains of every row, by a seed."""

    def normals(self, blocks: Blocks, *keys: int | str) -> Tensor:  # (S B, D)
        parts = [self.normal(count, derive_seed(self.seed, *keys, at)) for at, count in blocks]
        return torch.cat(parts).flatten(2).flatten(0, 1)

    def moves(self, blocks: Blocks, key: str) -> MoveNoise:
        numbers = itertools.count()

        def draw() -> tuple[Tensor, Tensor]:
            number = next(numbers)
            momentum = self.normals(blocks, key, "momentum", number)
            seeds = [derive_seed(self.seed, key, "accept", number, first) for first, _ in blocks]
            uniform = [
                keyed_uniform(self.row, (count,), each).T
                for each, (_, count) in zip(seeds, blocks, strict=True)
            ]
            return momentum, torch.cat(uniform).flatten().to(momentum)

        return draw


@torch.no_grad()
def annealed_bound(
    energy: Callable[[Tensor], Tensor],
    noise: RowNoise,
    options: AnnealedLikelihoodConfig,
    max_chains: int = MAX_CHAINS,
) -> Likelihood:
    """log p(x) of rows by chains in the noise of their codes z = T(e), e ~ N(0, I) before
    annealing: `energy` gives -log p(x, z) / q(z | x) of chains (S B, D), (S B,). Each row has step
    sizes of its own."""
    rows = len(noise.row)

    def evaluate(w: Tensor) -> Chains:
        return evaluate_energy(energy, w)

    def start(blocks: Blocks, key: str) -> tuple[Tensor, MoveNoise]:
        return noise.normals(blocks, key), noise.moves(blocks, key)

    path = NormalPath.tuned(evaluate, options.leaps, *start([(0, PILOT_CHAINS)], "pilot"), rows)
    blocks = [
        (first, min(SAMPLES_PER_BLOCK, options.samples - first))
        for first in range(0, options.samples, SAMPLES_PER_BLOCK)
    ]
    at_once, log_weights = max(max_chains // (SAMPLES_PER_BLOCK * rows), 1), []
    for place in range(0, len(blocks), at_once):
        first, moves = start(blocks[place : place + at_once], "codes")
        log_weight = path.run(first, options.temperatures, moves)[1]
        log_weights.append(log_weight.unflatten(0, (-1, rows)))
    text = f"{options.samples} chains of {options.temperatures} temperatures"
    if options.samples == 1:
        return Likelihood(log_weights[0][0], "bound", None, text)
    value, error = log_mean_exp(torch.cat(log_weights))
    return Likelihood(value, "bound", error, text)


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
