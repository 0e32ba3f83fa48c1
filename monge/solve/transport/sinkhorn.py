r"""Entropic optimal transport by the Sinkhorn algorithm.

$\min_{\pi \in \Pi(a, b)} \langle c, \pi\rangle + \varepsilon\,\mathrm{KL}(\pi \,\|\, a \otimes b)$
has one solution, $\pi_{ij} = a_i b_j e^{(f_i + g_j - c_{ij})/\varepsilon}$. Its potentials are
found by alternating projections (Sinkhorn 1964, Cuturi 2013): rows are scaled to sum to $a_i$,
then columns to $b_j$, and so on.

The iteration itself is in `scaling`. Here a small $\varepsilon$ is approached from above by
factors of 4; each stage starts from potentials extrapolated in $\varepsilon$, in single precision
as far as possible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...core.errors import DataError, UsageError
from .gibbs_kernel import MAX_STORED_ENTRIES, Kernel, MatrixKernel, PointKernel
from .ground_cost import Cost, CostName, cost
from .scaling import Scaling

EPSILON_RATIO = 4.0
"""Factor of epsilon between stages."""
STAGE_TOLERANCE = 1e-2
"""Marginal error at which a stage ends."""
MIN_DIRECT_EPSILON = 0.02
"""Epsilon, relative to the mean cost, from which no stages are needed."""
MIN_FLOAT32_ERROR = 1e-5
"""Smallest marginal error that single precision reaches."""


class TracePoint(NamedTuple):
    """The state of the iteration after some passes."""

    epsilon: float  # of the stage
    passes: int
    error: float  # L1 distance of the column sums from b; the rows are exact


@dataclass(frozen=True)
class Plan:
    """An entropic plan between a (*S, n) and b (*S, m), by its potentials.

    error: the L1 distance of the plan's row sums from a (its columns sum to b), of the worst
    problem of a batch. trace: the same error of the columns while the plan was found.
    """

    kernel: Kernel = field(repr=False)
    a: Tensor
    b: Tensor
    f: Tensor  # (*S, n)
    g: Tensor  # (*S, m)
    epsilon: float
    error: float
    passes: int
    converged: bool
    trace: tuple[TracePoint, ...] = field(default=(), repr=False)

    @property
    def matrix(self) -> Tensor:
        """pi (*S, n, m)."""
        return torch.cat([self.block(rows) for rows in self.kernel.rows], -2)

    def block(self, rows: slice) -> Tensor:
        """Some rows of pi, (*S, k, m), without gradient."""
        self.kernel.take(self.f, self.g, self.epsilon)
        weight = self.a[..., rows, None] * self.b[..., None, :]
        return self.kernel.exponents(rows).exp_().mul_(weight)

    @property
    def dual(self) -> Tensor:
        """<f, a> + <g, b> - epsilon (mass - 1), (*S,): below the optimum for any potentials, equal
        to it at the solution; its gradient in the weights is the potentials."""
        mass = sum(self.block(rows).sum((-2, -1)) for rows in self.kernel.rows)
        linear = (self.f * self.a).sum(-1) + (self.g * self.b).sum(-1)
        return linear - self.epsilon * (cast(Tensor, mass).detach() - 1)

    @property
    def cost(self) -> Tensor:
        """<c, pi>, (*S,), differentiable in points or costs with the plan held fixed."""
        parts = [self.part(rows) for rows in self.kernel.rows]
        return torch.stack(parts).sum(0)

    def part(self, rows: slice) -> Tensor:
        plan = self.block(rows).detach()

        def moved() -> Tensor:
            return (plan * self.kernel.costs(rows)).sum((-2, -1))

        if len(self.kernel.rows) == 1:
            return moved()
        return cast(Tensor, checkpoint(moved, use_reentrant=False))

    @property
    def value(self) -> Tensor:
        """min <c, pi> + epsilon KL(pi | a x b), (*S,). By the envelope theorem its gradient is
        that of <c, pi> with pi fixed, and the potentials in the weights."""
        moved = self.cost
        return self.dual + (moved - moved.detach())

    @property
    def primal(self) -> Tensor:
        """<c, pi> + epsilon KL(pi | a x b), (*S,), of the plan as it is: it differs from `dual`
        by the marginal errors times the potentials, so not at the solution (strong duality)."""
        parts = []
        for rows in self.kernel.rows:
            plan, reference = self.block(rows), self.a[..., rows, None] * self.b[..., None, :]
            entropy = torch.xlogy(plan, plan / reference) - plan + reference
            parts.append((plan * self.kernel.costs(rows) + self.epsilon * entropy).sum((-2, -1)))
        return torch.stack(parts).sum(0)

    @property
    def sharp(self) -> Tensor:
        """<c, pi> - epsilon H(pi), (*S,): the value by the entropy of the plan itself."""
        entropy = torch.special.entr(self.a).sum(-1) + torch.special.entr(self.b).sum(-1)
        return self.value - self.epsilon * entropy


def sinkhorn(
    x: Tensor,
    y: Tensor | None = None,
    epsilon: float = 0.05,
    *,
    cost_of: CostName | float | Cost = "squared",
    a: Tensor | None = None,
    b: Tensor | None = None,
    relative: bool = False,
    tolerance: float = 1e-4,
    passes: int = 10_000,
    start: tuple[Tensor, Tensor] | None = None,
    normalise: bool = False,
    room: int = MAX_STORED_ENTRIES,
) -> Plan:
    """The plan between points x (*S, n, d) and y (*S, m, d), or for a cost matrix x (*S, n, m).

    relative: epsilon is in units of the mean cost. tolerance: L1 marginal error. start:
    initial potentials. normalise: weights are divided by their sum. Float64 input whose
    tolerance requires it is finished in float64.
    """
    kernel = make(x, y, cost(cost_of), room)
    a = weights(a, kernel.shape[:-1], x, "a", normalise)
    b = weights(b, torch.Size([*kernel.shape[:-2], kernel.shape[-1]]), x, "b", normalise)
    if not epsilon > 0:
        raise UsageError(
            f"expected epsilon above 0, found {epsilon}; for an unregularised plan use `exact`"
        )
    with torch.no_grad():
        mean = kernel.mean()
        if not math.isfinite(mean):
            raise DataError(f"the mean cost is {mean}; fix the cost, or scale the points")
        target = epsilon * mean if relative and mean > 0 else epsilon
        solved = solve(kernel, a.detach(), b.detach(), target, mean, tolerance, passes, start)
    return replace(solved, kernel=kernel, a=a, b=b)


def unrolled(
    x: Tensor,
    y: Tensor | None = None,
    epsilon: float = 0.05,
    *,
    cost_of: CostName | float | Cost = "squared",
    a: Tensor | None = None,
    b: Tensor | None = None,
    passes: int = 100,
) -> Tensor:
    """<f, a> + <g, b> after `passes` plain passes on logarithms, (*S,), differentiable through all
    of them: the gradient of the iteration, not of its limit."""
    matrix = x if y is None else cost(cost_of)(x, y)  # (*S, n, m)
    a = weights(a, matrix.shape[:-1], x, "a")
    b = weights(b, torch.Size([*matrix.shape[:-2], matrix.shape[-1]]), x, "b")
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(passes):
        f = -epsilon * torch.logsumexp(
            (g[..., None, :] - matrix) / epsilon + b.log()[..., None, :], -1
        )
        g = -epsilon * torch.logsumexp((f[..., None] - matrix) / epsilon + a.log()[..., None], -2)
    return (f * a).sum(-1) + (g * b).sum(-1)


def make(x: Tensor, y: Tensor | None, of: Cost, room: int) -> Kernel:
    for name, value in (("x", x), ("y", y)):
        if value is not None and not bool(value.isfinite().all()):
            raise DataError(f"{name} holds values that are not finite; fix or drop such rows")
    if y is None:
        return MatrixKernel(x, room)
    if x.shape[-1] != y.shape[-1]:
        raise DataError(
            f"x has {x.shape[-1]} dimensions and y has {y.shape[-1]}; give "
            "points of equal dimension"
        )
    return PointKernel(x, y, of, room)


def weights(
    given: Tensor | None, shape: torch.Size, like: Tensor, name: str, normalise: bool = False
) -> Tensor:
    """Weights (*S, n), uniform by default."""
    if given is None:
        return like.new_full(shape, 1 / shape[-1])
    if not bool(given.isfinite().all()):
        raise DataError(f"the weights {name} are not all finite; fix them")
    if bool((given < 0).any()):
        raise DataError(
            f"the weights {name} must not be negative, found {given.min().item():.3g}; fix them"
        )
    if given.shape[-1] != shape[-1]:
        raise DataError(
            f"there are {given.shape[-1]} weights {name} for {shape[-1]} points; give "
            "each point one"
        )
    total = given.sum(-1, keepdim=True)
    if normalise and bool((total > 0).all()):
        given = given / total
    elif bool((total.detach() - 1).abs().max() > 1e-4):
        worst = total.flatten()[(total - 1).abs().argmax()].item()
        raise DataError(
            f"the weights {name} sum to {worst:.6g}; divide them by their sum, or pass "
            "normalise=True"
        )
    return given.expand(shape).to(like.dtype)


def solve(
    kernel: Kernel,
    a: Tensor,
    b: Tensor,
    epsilon: float,
    mean: float,
    tolerance: float,
    passes: int,
    start: tuple[Tensor, Tensor] | None,
) -> Plan:
    """Solve in stages of decreasing epsilon, in single precision as far as possible."""
    double = a.dtype == torch.float64
    low = kernel.to(torch.float32) if double else kernel
    work = Scaling(low, a.float(), b.float(), start)
    stages = [epsilon]
    while start is None and stages[-1] < MIN_DIRECT_EPSILON * mean:
        stages.append(stages[-1] * EPSILON_RATIO)
    spent = 0
    trail: list[tuple[Tensor, Tensor]] = []
    trace: list[tuple[float, int, float]] = []
    for stage in reversed(stages):
        last = stage == epsilon
        rough = max(tolerance, MIN_FLOAT32_ERROR) if last else max(STAGE_TOLERANCE, tolerance)
        if len(trail) > 1:  # potentials are nearly linear in epsilon
            work.f, work.g = (
                new + (new - old) / EPSILON_RATIO for old, new in zip(*trail[-2:], strict=True)
            )
        before, spent = spent, spent + work.run(stage, rough, passes - spent)
        trace += work.trace_from(before)
        trail.append((work.f, work.g))
    if double:
        work = Scaling(kernel, a, b, (work.f.double(), work.g.double()))
        before, spent = spent, spent + work.run(epsilon, tolerance, passes - spent)
        trace += work.trace_from(before)
    kernel.whole = None  # the plan recomputes blocks from its potentials
    return Plan(
        kernel,
        a,
        b,
        work.f,
        work.g,
        epsilon,
        work.error,
        spent,
        work.error <= tolerance,
        tuple(TracePoint(*point) for point in trace),
    )
