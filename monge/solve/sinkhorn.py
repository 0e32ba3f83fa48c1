r"""Entropic optimal transport: the cheapest plan that is not too sharp.

$\min_{\pi \in \Pi(a, b)} \langle c, \pi\rangle + \varepsilon\,\mathrm{KL}(\pi \,\|\, a \otimes b)$
has one solution, $\pi_{ij} = a_i b_j e^{(f_i + g_j - c_{ij})/\varepsilon}$, whose potentials
alternating projections find (Sinkhorn 1964, Cuturi 2013): in turn every row of the plan is scaled
to sum to $a_i$ and every column to $b_j$.

Scalings u, v stand on top of the potentials: $\pi_{ij} = a_i u_i K_{ij} v_j b_j$. Updating them
is two products with K, read once from memory for both; when they grow they are absorbed, $f \gets
f + \varepsilon \log u$, and when a product leaves the range of its floating-point numbers one pass
is made in logarithms. So it is as fast as scaling and as safe as logarithms.

Over-relaxed steps $u \gets u^{1-w} (1/K(bv))^w$ turn a contraction $\theta$ a pass into $w - 1$
for $w = 2/(1 + \sqrt{1-\theta})$; $\theta$ is read off the errors, and w falls back towards 1
where they do not fall. A small $\varepsilon$ is approached from above by steps of 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core.error import DataError, WordError
from .cost import Cost, CostName, cost
from .kernel import ROOM, Kernel, MatrixKernel, PointKernel

CHECK = 5
"""Passes between two looks at the marginal error."""
GROWN = 30.0
"""|log u| at which scalings are absorbed: float32 ends at 88."""
STEP = 4.0
"""By what epsilon falls from stage to stage."""
ROUGH = 1e-2
"""Marginal error at which a stage hands over to the next."""
EASY = 0.02
"""Epsilon, as part of the mean cost, from which no stages are needed."""
SETTLED = 4
"""Looks after which the effect of a relaxation is judged."""
BLOWN = 10.0
"""Growth of the error that makes a relaxation too bold."""
STALLED = 20
"""Looks over which the largest error must be lower than over as many before, or a stage ends."""
SINGLE = 1e-5
"""Marginal error down to which single precision works."""


@dataclass(frozen=True)
class Plan:
    """An entropic plan between a (*S, n) and b (*S, m), by its potentials.

    error: the L1 distance of the plan's row sums from a (its columns sum to b), of the worst
    problem of a batch.
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

    @property
    def matrix(self) -> Tensor:
        """pi (*S, n, m)."""
        return torch.cat([self.block(rows) for rows in self.kernel.rows], -2)

    def block(self, rows: slice) -> Tensor:
        """Some rows of pi, (*S, k, m), without gradient."""
        self.kernel.set(self.f, self.g, self.epsilon)
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
    def sharp(self) -> Tensor:
        """<c, pi> - epsilon H(pi), (*S,): the value by the entropy of the plan itself."""
        entropy = torch.special.entr(self.a).sum(-1) + torch.special.entr(self.b).sum(-1)
        return self.value - self.epsilon * entropy


def sinkhorn(x: Tensor, y: Tensor | None = None, epsilon: float = 0.05, *,
             cost_of: CostName | float | Cost = "squared", a: Tensor | None = None,
             b: Tensor | None = None, relative: bool = False, tolerance: float = 1e-4,
             passes: int = 10_000, start: tuple[Tensor, Tensor] | None = None,
             room: int = ROOM) -> Plan:
    """The plan between points x (*S, n, d) and y (*S, m, d), or for a cost matrix x (*S, n, m).

    relative: epsilon is meant in units of the mean cost. tolerance: L1 marginal error. start:
    potentials to begin from. Float64 input whose tolerance asks for it is finished in float64.
    """
    kernel = make(x, y, cost(cost_of), room)
    a = weights(a, kernel.shape[:-1], x, "a")
    b = weights(b, torch.Size([*kernel.shape[:-2], kernel.shape[-1]]), x, "b")
    if not epsilon > 0:
        raise WordError(f"epsilon is {epsilon}; it must be above 0 (exact plans: assignment)")
    with torch.no_grad():
        mean = mean_cost(kernel)
        target = epsilon * mean if relative and mean > 0 else epsilon
        solved = solve(kernel, a.detach(), b.detach(), target, mean, tolerance, passes, start)
    return replace(solved, kernel=kernel, a=a, b=b)


def make(x: Tensor, y: Tensor | None, of: Cost, room: int) -> Kernel:
    for name, value in (("x", x), ("y", y)):
        if value is not None and not bool(value.isfinite().all()):
            raise DataError(f"{name} holds values that are not finite; mend or drop such rows")
    if y is None:
        return MatrixKernel(x, room)
    if x.shape[-1] != y.shape[-1]:
        raise DataError(f"x has {x.shape[-1]} dimensions and y has {y.shape[-1]}; a cost needs "
                        "points of one space")
    return PointKernel(x, y, of, room)


def weights(given: Tensor | None, shape: torch.Size, like: Tensor, name: str) -> Tensor:
    """Weights (*S, n), uniform where none are given."""
    if given is None:
        return like.new_full(shape, 1 / shape[-1])
    if bool((given < 0).any()):
        raise DataError(f"the weights {name} reach {given.min().item():.3g}; none may be negative")
    total = given.detach().sum(-1)
    if bool((total - 1).abs().max() > 1e-4):
        worst = total.flatten()[(total - 1).abs().argmax()].item()
        raise DataError(f"the weights {name} sum to {worst:.6g}; divide them by their sum")
    return given.expand(shape).to(like.dtype)


def mean_cost(kernel: Kernel) -> float:
    """The mean of c over all pairs (for points, over a block of rows at most)."""
    rows = kernel.rows[0] if isinstance(kernel, PointKernel) else slice(None)
    return kernel.costs(rows).detach().mean().item()


def solve(kernel: Kernel, a: Tensor, b: Tensor, epsilon: float, mean: float, tolerance: float,
          passes: int, start: tuple[Tensor, Tensor] | None) -> Plan:
    """Stage by stage down to epsilon, in single precision as far as that goes."""
    double = a.dtype == torch.float64
    low = kernel.to(torch.float32) if double else kernel
    work = _Work(low, a.float(), b.float(), start)
    stages = [epsilon]
    while start is None and stages[-1] < EASY * mean:
        stages.append(stages[-1] * STEP)
    spent = 0
    for stage in reversed(stages):
        last = stage == epsilon
        rough = max(tolerance, SINGLE) if last else max(ROUGH, tolerance)
        spent += work.run(stage, rough, passes - spent)
    if double:
        w, work = work.w, _Work(kernel, a, b, (work.f.double(), work.g.double()))
        work.w = w
        spent += work.run(epsilon, tolerance, passes - spent)
    return Plan(kernel, a, b, work.f, work.g, epsilon, work.error, spent,
                work.error <= tolerance)


class _Work:
    """Potentials f, g and scalings u, v on their way."""

    def __init__(self, kernel: Kernel, a: Tensor, b: Tensor,
                 start: tuple[Tensor, Tensor] | None) -> None:
        self.kernel, self.a, self.b = kernel, a, b
        self.fresh = start is None
        first = (torch.zeros_like(a), torch.zeros_like(b)) if start is None else start
        self.f, self.g = (potential.to(a.dtype).clone() for potential in first)
        self.error, self.w = math.inf, 1.0

    def run(self, epsilon: float, tolerance: float, passes: int) -> int:
        """Passes at one epsilon until the marginal error is small; how many it took."""
        self.epsilon = epsilon
        self.load()
        if self.fresh:
            self.rest()
            self.fresh = False
        pace, done = _Pace(self.w), 0
        while done < passes:
            for _ in range(CHECK - 1):
                self.sweep(pace.w)
            error = self.sweep(pace.w, look=True)
            done += CHECK
            if not math.isfinite(error) or self.grown():
                self.settle(math.isfinite(error))
                continue
            if error <= tolerance and self.proven(tolerance):
                done += 2
                break
            if pace.look(error, CHECK):
                self.error = error
                break
        self.w = pace.w
        self.absorb()
        return done

    def proven(self, tolerance: float) -> bool:
        """Two plain passes: the first makes the columns exact, the second sees what that leaves
        of the rows, and can only better it."""
        self.sweep(1.0)
        self.error = self.sweep(1.0, look=True)
        return self.error <= tolerance

    def load(self) -> None:
        self.kernel.set(self.f, self.g, self.epsilon)
        self.u, self.v = torch.ones_like(self.a), torch.ones_like(self.b)

    def sweep(self, w: float, look: bool = False) -> float:
        """One pass: every row scaled, then every column; where it is looked at, the L1 error of
        the row sums before it."""
        given, c = self.b * self.v, torch.zeros_like(self.b)
        error = torch.zeros_like(c[..., 0])
        for rows, block in self.kernel.blocks():
            a, u = self.a[..., rows], self.u[..., rows]
            r = across(block, given)  # (*S, k)
            if look:
                error += (a * (u * r - 1).abs()).sum(-1)
            relax(u, r, w)
            c += across(block.mT, a * u)
        relax(self.v, c, w)
        return float(error.max()) if look else math.nan

    def grown(self) -> bool:
        return any(float(s.log().abs().max()) > GROWN for s in (self.u, self.v))

    def absorb(self) -> None:
        self.f = self.f + self.epsilon * self.u.log()
        self.g = self.g + self.epsilon * self.v.log()

    def settle(self, sound: bool) -> None:
        """Take the scalings into the potentials; where they overflowed, one pass in logarithms
        from the potentials of before."""
        if sound:
            self.absorb()
            self.load()
        else:
            self.load()
            self.rest()

    def rest(self) -> None:
        """One pass in logarithms: f_i = -epsilon log sum_j b_j e^((g_j - c_ij)/epsilon), and so
        for g, which no choice of potentials and epsilon can overflow."""
        log_b, total = self.b.log(), torch.full_like(self.b, -torch.inf)
        for rows in self.kernel.rows:
            block = self.kernel.exponents(rows)
            shift = torch.logsumexp(block + log_b[..., None, :], -1)  # (*S, k)
            self.f[..., rows] -= self.epsilon * shift
            block += (self.a[..., rows].log() - shift)[..., None]
            total = torch.logaddexp(total, torch.logsumexp(block, -2))
        self.g = self.g - self.epsilon * total
        self.load()


def across(block: Tensor, vector: Tensor) -> Tensor:
    """The product (*S, k) of matrices (*S, k, m) and vectors (*S, m)."""
    if block.ndim == 2:
        return block.mv(vector)
    return (block @ vector[..., None])[..., 0]


def relax(scaling: Tensor, product: Tensor, w: float) -> None:
    """scaling <- scaling^(1 - w) product^(-w), in place."""
    if w == 1.0:
        torch.reciprocal(product, out=scaling)
    else:
        scaling.pow_(1 - w).mul_(product.pow_(-w))


class _Pace:
    """How far to over-relax, and whether to go on at all, from the errors that were seen.

    A new w stirs the error up before it pays, so it is judged after a while and not at once.
    """

    def __init__(self, w: float) -> None:
        self.w = w
        self.errors: list[float] = []  # since w was chosen

    def look(self, error: float, passes: int) -> bool:
        """Take note of an error; true where rounding no longer lets it fall."""
        self.errors.append(error)
        if error > BLOWN * self.errors[0]:
            self.choose(1 + (self.w - 1) / 2)
        elif len(self.errors) > (1 if self.w == 1.0 else SETTLED):
            back = min(len(self.errors) - 1, SETTLED - 1)
            self.relax((error / self.errors[-1 - back]) ** (1 / (passes * back)))
        late, early = self.errors[-STALLED:], self.errors[-2 * STALLED:-STALLED]
        return len(early) == STALLED and max(late) > 0.9 * max(early)

    def relax(self, rate: float) -> None:
        """w from what a pass left of the error: (rate + w - 1)^2 = rate w^2 theta (Young 1954)."""
        rate = min(rate, 0.9999)
        if rate > self.w - 1:
            theta = min((rate + self.w - 1) ** 2 / (rate * self.w**2), 0.9999)
            best = 2 / (1 + math.sqrt(1 - theta))
            if best > self.w + 0.01:
                self.choose(best)

    def choose(self, w: float) -> None:
        self.w, self.errors = w, self.errors[-1:]
