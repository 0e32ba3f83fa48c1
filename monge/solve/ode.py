r"""Ordinary differential equations $\dot y = f(t, y)$ by explicit Runge-Kutta methods.

$k_i = f(t + c_i h,\; y + h \sum_{j<i} a_{ij} k_j)$ and $y(t + h) \approx y + h \sum_i b_i k_i$: a
method is its tableau (c, a, b). That of Dormand and Prince (1980) has a second row of weights of
one order less; the difference of the two results estimates the error of the step. The step size is
set by a proportional-integral controller (Gustafsson 1991),

$h' = 0.9\, h\, \epsilon_n^{-0.7/5} \epsilon_{n-1}^{0.4/5}$, where a step with $\epsilon > 1$ is
rejected and repeated.

Each row of a batch has its own step size, so its solution does not depend on other rows. Times may
increase or decrease. The solution is differentiable through the steps; `solve.adjoint` does
without storing them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import DivergenceError, UsageError

Method = Literal["euler", "midpoint", "heun", "rk4", "dopri5"]
State = tuple[Tensor, ...]
Field = Callable[[Tensor, State], State]
"""f(t, y); t is () or, if rows have their own step size, (B,)."""
MAX_STEPS = 20_000
"""Steps after which an adaptive method gives up."""
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0


@dataclass(frozen=True)
class Tableau:
    """The Butcher tableau of a method: nodes c, the rows of a after the first, weights b, and the
    weights of the error estimate, if any."""

    order: int
    nodes: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    error: tuple[float, ...] = ()


LAST = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
TABLEAUX: dict[Method, Tableau] = {
    "euler": Tableau(1, (0.0,), (), (1.0,)),
    "midpoint": Tableau(2, (0.0, 0.5), ((0.5,),), (0.0, 1.0)),
    "heun": Tableau(2, (0.0, 1.0), ((1.0,),), (0.5, 0.5)),
    "rk4": Tableau(
        4,
        (0.0, 0.5, 0.5, 1.0),
        ((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
        (1 / 6, 1 / 3, 1 / 3, 1 / 6),
    ),
    "dopri5": Tableau(
        5,
        (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0),
        (
            (1 / 5,),
            (3 / 40, 9 / 40),
            (44 / 45, -56 / 15, 32 / 9),
            (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
            (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        ),
        LAST,
        (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    ),
}


@dataclass(frozen=True)
class Solver:
    """Settings of a solver: method, step count or tolerance."""

    method: Method = "dopri5"
    steps: int = 32  # of fixed-step methods, over the whole interval
    tolerance: float = 1e-5  # dopri5: error of a step, relative and absolute
    control: Literal["row", "batch"] = "row"  # whose error sets the step size

    def check(self, dtype: torch.dtype) -> None:
        least = 4 * torch.finfo(dtype).eps
        if self.method == "dopri5" and not self.tolerance >= least:
            raise UsageError(
                f"tolerance={self.tolerance:g} is below the precision of {str(dtype)[6:]}; "
                f"give at least {least:.0e} or compute in float64"
            )


DEFAULT_SOLVER = Solver()


@dataclass
class Tally:
    """The cost of a solution; if rows differ, the steps of the slowest."""

    steps: int = 0
    rejected: int = 0  # steps that at least one row had to repeat
    evaluations: int = 0


@dataclass(frozen=True)
class Solution:
    """y at the last of the times, and at each of them, the first included."""

    end: State
    path: tuple[State, ...]
    tally: Tally = field(default_factory=Tally)


def integrate(
    f: Field, start: State, times: Sequence[float] = (0.0, 1.0), options: Solver = DEFAULT_SOLVER
) -> Solution:
    """y at each of the times, from y(times[0]) = start; every tensor of a state is (B, ...)."""
    tally = Tally()
    path = tuple(y for reached, y in walk(f, start, times, options, tally) if reached)
    return Solution(path[-1], path, tally)


def integrate_one(
    f: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    times: Sequence[float] = (0.0, 1.0),
    options: Solver = DEFAULT_SOLVER,
) -> Tensor:
    """y at the last of the times, of an equation of one tensor."""
    return integrate(lambda t, y: (f(t, y[0]),), (start,), times, options).end[0]


def walk(
    f: Field,
    start: State,
    times: Sequence[float],
    options: Solver,
    tally: Tally,
    counted: int | None = None,
) -> Iterator[tuple[bool, State]]:
    """y after every step, and whether one of the times is reached there; only the first `counted`
    tensors of the state, or all, affect the step size. Rows with their own step size are at
    different times between the requested ones."""
    rises = {a < b for a, b in itertools.pairwise(times) if a != b}
    if len(rises) > 1:
        raise UsageError(
            f"expected increasing or decreasing times, found {list(times)}; sort them"
        )
    options.check(start[0].dtype)
    method = adaptive if options.method == "dopri5" else fixed
    yield True, start
    yield from method(counting(f, tally), start, times, options, tally, counted)


def counting(f: Field, tally: Tally) -> Field:
    def counted(t: Tensor, y: State) -> State:
        tally.evaluations += 1
        return f(t, y)

    return counted


def fixed(
    f: Field, y: State, times: Sequence[float], options: Solver, tally: Tally, counted: int | None
) -> Iterator[tuple[bool, State]]:
    tableau, total = TABLEAUX[options.method], abs(times[-1] - times[0])
    for start, end in itertools.pairwise(times):
        count = max(1, math.ceil(options.steps * abs(end - start) / total - 1e-9)) if total else 0
        grid = torch.linspace(start, end, count + 1, dtype=torch.float64)
        ticks = grid.to(y[0]).unbind()
        h = y[0].new_tensor((end - start) / max(count, 1))
        for t in ticks[:-1]:
            y = advance_state(y, h, tableau.weights, stages(f, t, h, y, tableau, f(t, y)))
            tally.steps += 1
            yield False, y
        yield True, y


def adaptive(
    f: Field, y: State, times: Sequence[float], options: Solver, tally: Tally, counted: int | None
) -> Iterator[tuple[bool, State]]:
    tableau, shape = TABLEAUX[options.method], y[0].shape[:1] if options.control == "row" else ()
    t = y[0].new_full(shape, times[0])
    first = f(t, y)
    h = first_step(f, t, y, first, times[-1] - times[0], options, counted)
    before = torch.ones_like(h)
    for end in times[1:]:
        while bool((left := end - t).any()):
            step = torch.where(h.abs() < left.abs(), h, left)
            k = stages(f, t, step, y, tableau, first)
            new = advance_state(y, step, tableau.weights, k)
            last = f(t + step, new)
            ratio = error_ratio(y, new, step, tableau.error, [*k, last], options, counted)
            good = ratio <= 1  # false for NaN
            tally.steps, tally.rejected = tally.steps + 1, tally.rejected + int(not good.all())
            check_step(t, step, tally, good)
            y, first = select_accepted(good, new, y), select_accepted(good, last, first)
            t = torch.where(good, torch.where(step == left, end, t + step), t)
            h = next_step(h, step, ratio, before, good, step == left)
            before = torch.where(good, ratio.clamp_min(1e-4), before)
            yield False, y
        yield True, y


def stages(
    f: Field, t: Tensor, h: Tensor, y: State, tableau: Tableau, first: State
) -> list[State]:
    """The stages k_1 .. k_s of a step of length h."""
    k = [first]
    for node, row in zip(tableau.nodes[1:], tableau.rows, strict=True):
        k.append(f(t + node * h, advance_state(y, h, row, k)))
    return k


def advance_state(y: State, h: Tensor, weights: Sequence[float], k: Sequence[State]) -> State:
    """y + h sum_i w_i k_i."""
    return tuple(
        torch.addcmul(part, along(h, part), weighted_sum(weights, [each[place] for each in k]))
        for place, part in enumerate(y)
    )


def weighted_sum(weights: Sequence[float], tensors: Sequence[Tensor]) -> Tensor:
    used = [(w, tensor) for w, tensor in zip(weights, tensors, strict=True) if w]
    total = used[0][1] * used[0][0]
    for w, tensor in used[1:]:
        total = torch.add(total, tensor, alpha=w)
    return total


def along(h: Tensor, y: Tensor) -> Tensor:
    """One number per row, or one for all, in a shape that broadcasts with y (B, ...)."""
    return h.reshape(-1, *(1,) * (y.ndim - 1)) if h.ndim else h


def select_accepted(good: Tensor, new: State, old: State) -> State:
    if bool(good.all()):
        return new
    return tuple(torch.where(along(good, b), a, b) for a, b in zip(new, old, strict=True))


@torch.no_grad()
def error_ratio(
    y: State,
    new: State,
    h: Tensor,
    weights: Sequence[float],
    k: Sequence[State],
    options: Solver,
    counted: int | None,
) -> Tensor:
    """The error of a step in units of the tolerance: (B,), or () for the batch."""
    errors, scales = [], []
    for place, (a, b) in enumerate(zip(y[:counted], new[:counted], strict=True)):
        errors.append(along(h, a) * weighted_sum(weights, [each[place] for each in k]))
        scales.append(options.tolerance * (1 + torch.maximum(a.abs(), b.abs())))
    return scaled_rms(errors, scales, options)


def scaled_rms(values: Sequence[Tensor], scales: Sequence[Tensor], options: Solver) -> Tensor:
    """The root mean square of value / scale over a row or the batch; the largest of a
    state's tensors."""
    ratios = [(value / scale).square() for value, scale in zip(values, scales, strict=True)]
    if options.control == "batch":
        return torch.stack([ratio.mean() for ratio in ratios]).amax().sqrt()
    return torch.stack([ratio.reshape(len(ratio), -1).mean(1) for ratio in ratios]).amax(0).sqrt()


@torch.no_grad()
def first_step(
    f: Field,
    t: Tensor,
    y: State,
    slope: State,
    length: float,
    options: Solver,
    counted: int | None,
) -> Tensor:
    """A step whose error will be about the tolerance (Hairer, Norsett & Wanner 1993, II.4)."""
    scales = [options.tolerance * (1 + part.abs()) for part in y[:counted]]
    place, speed = (
        scaled_rms(y[:counted], scales, options),
        scaled_rms(slope[:counted], scales, options),
    )
    trial = torch.where((place > 1e-5) & (speed > 1e-5), 0.01 * place / speed, 1e-6)
    sign = math.copysign(1.0, length)
    trial = sign * trial.clamp(max=abs(length))
    ahead = f(t + trial, advance_state(y, trial, (1.0,), [slope]))
    turn = [b - a for a, b in zip(slope[:counted], ahead[:counted], strict=True)]
    bend = scaled_rms(turn, scales, options) / trial.abs().clamp_min(torch.finfo(trial.dtype).tiny)
    steep = torch.maximum(speed, bend)
    fine = torch.where(steep > 1e-15, (0.01 / steep).pow(1 / 5), 1e-3)
    return sign * torch.minimum(100 * trial.abs(), fine).clamp(max=abs(length))


def next_step(
    h: Tensor, step: Tensor, ratio: Tensor, before: Tensor, good: Tensor, cut: Tensor
) -> Tensor:
    """The next step size; a step cut short to end at a requested time does not reduce it."""
    grown = SAFETY * ratio.pow(-0.7 / 5) * before.pow(0.4 / 5)
    factor = torch.where(good, grown.clamp(SHRINK, GROW), grown.clamp(SHRINK, 1.0))
    new = step * torch.where(factor.isfinite(), factor, SHRINK)
    return torch.where(cut & good & (new.abs() < h.abs()), h, new)


def check_step(t: Tensor, step: Tensor, tally: Tally, good: Tensor) -> None:
    """Raise DivergenceError for a step that failed and cannot be smaller, or one too many."""
    least = 4 * torch.finfo(t.dtype).eps
    stuck = ~good & (step.abs() < least * t.abs().clamp_min(1e-3))
    if bool(stuck.any()) or tally.steps > MAX_STEPS:
        where = t.flatten()[stuck.flatten().int().argmax()]
        raise DivergenceError(
            f"the step size of the solver underflowed at t={float(where):.3g}, where the field is "
            "too steep or not finite; raise the tolerance or use a fixed-step method such as rk4"
        )
