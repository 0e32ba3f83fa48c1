r"""Identities of optimal transport: plans, projections, potentials, distances.

With $K = e^{-c/\lambda}$ the entropic plan is the KL projection of $K / \sum K$ onto the couplings
of p and q, and Sinkhorn's scalings are projections onto one marginal after the other.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from ..core.rng import make_generator
from ..prob.divergence import entropy, kl, sinkhorn_divergence, wasserstein
from ..solve.transport.exact import bures, doubly_stochastic, exact, on_line
from ..solve.transport.sinkhorn import Plan, sinkhorn, unrolled
from ._helpers import most
from .framework import Residual

ROUNDING = 1e-12
"""What float64 leaves of sums of a few hundred products."""
LAMBDA = 0.3


def problem(n: int = 6, m: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """A cost matrix with two marginals that are not uniform."""
    g = make_generator(0)
    cost = torch.rand(n, m, dtype=torch.float64, generator=g)
    p, q = (torch.rand(k, dtype=torch.float64, generator=g) + 0.1 for k in (n, m))
    return cost, p / p.sum(), q / q.sum()


def solved(weight: float = LAMBDA, n: int = 6, m: int = 8) -> tuple[Plan, Tensor, Tensor, Tensor]:
    cost, p, q = problem(n, m)
    return sinkhorn(cost, epsilon=weight, a=p, b=q, tolerance=1e-14), cost, p, q


def objective(pi: Tensor, cost: Tensor, weight: float = LAMBDA) -> Tensor:
    """<c, pi> - lambda H(pi)."""
    return (pi * cost).sum((-2, -1)) - weight * entropy(pi.flatten(-2))


def gibbs(cost: Tensor, weight: float = LAMBDA) -> Tensor:
    """The starting point of the projections, K / sum K."""
    kernel = torch.exp(-cost / weight)
    return kernel / kernel.sum()


def to_rows(pi: Tensor, p: Tensor) -> Tensor:
    """The projection onto the plans whose rows sum to p."""
    return pi * (p / pi.sum(-1))[..., None]


def to_columns(pi: Tensor, q: Tensor) -> Tensor:
    return pi * q / pi.sum(-2, keepdim=True)


def x65_the_objective_is_a_divergence() -> Residual:
    """<c,pi> - l H(pi) = l KL(pi || K / sum K) - l log sum K, at the plan.

    Examines: prob.divergence, solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 4.1; Benamou et al. 2015,
    Iterative Bregman Projections for Regularized Transportation Problems."""
    worst = 0.0
    for weight in (0.1, LAMBDA, 1.0):
        plan, cost, _, _ = solved(weight)
        total = torch.exp(-cost / weight).sum().log()
        right = weight * (kl(plan.matrix.flatten(), gibbs(cost, weight).flatten()) - total)
        worst = most(worst, float((plan.sharp - right).abs()))
    return Residual(worst, ROUNDING)


def x66_scalings_are_projections() -> Residual:
    """Passes of Sinkhorn's algorithm project onto rows, then onto columns.

    The potentials after k passes are those of k projections, and the limit is the plan.

    Examines: solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 4.2."""
    cost, p, q = problem()
    both = p[:, None] * q
    start = both * torch.exp(-cost / LAMBDA)
    pi, worst = start, 0.0
    for passes in range(1, 21):
        pi = to_columns(to_rows(pi, p), q)
        potentials = LAMBDA * (pi / start).log()  # f + g, (n, m)
        found = unrolled(cost, epsilon=LAMBDA, a=p, b=q, passes=passes)
        worst = most(worst, float((found - (both * potentials).sum()).abs()))
    ours = solved()[0].matrix
    for _ in range(2000):
        pi = to_columns(to_rows(pi, p), q)
    return Residual(most(worst, float((ours - pi).abs().max())), ROUNDING)


def x67_the_plan_is_the_projection() -> Residual:
    """KL(Q || K) = KL(Q || pi) + KL(pi || K) for the plan and any coupling Q.

    Examines: prob.divergence, solve.transport.sinkhorn.

    Source: Csiszár 1975, I-Divergence Geometry of Probability Distributions."""
    plan, cost, p, q = solved()
    start, near = gibbs(cost).flatten(), plan.matrix.flatten()
    others = torch.rand(300, 6, 8, dtype=torch.float64)
    for _ in range(400):
        others = to_columns(to_rows(others, p), q)
    far, rest = kl(others.flatten(1), start), kl(others.flatten(1), near)
    return Residual(float((far - rest - kl(near, start)).abs().max()), ROUNDING)


def x68_potentials_give_the_value() -> Residual:
    """At the plan, marginals are exact and the value is <f,p> + <g,q>.

    Examines: prob.divergence, solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 4.4."""
    plan, cost, p, q = solved()
    pi = plan.matrix
    f, g = plan.f + LAMBDA * p.log(), plan.g + LAMBDA * q.log()  # of exp((f + g - c) / lambda)
    value = float((objective(pi, cost) - (f @ p + g @ q)).abs())
    marginals = float((pi.sum(1) - p).abs().max() + (pi.sum(0) - q).abs().max())
    return Residual(most(value, marginals), ROUNDING)


def x68_strong_convexity_leaves_one_plan() -> Residual:
    """F(Q) - F(pi) >= l/2 |Q - pi|_1^2 for every coupling Q.

    Examines: prob.divergence, solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 4.1."""
    plan, cost, p, q = solved()
    pi = plan.matrix
    others = torch.rand(300, 6, 8, dtype=torch.float64)
    for _ in range(300):
        others = to_columns(to_rows(others, p), q)
    gain = objective(others, cost) - objective(pi, cost)
    slack = LAMBDA / 2 * (others - pi).abs().sum((1, 2)).square() - gain
    return Residual(float(slack.max()), 1e-10)


def x69_one_doubly_stochastic_limit() -> Residual:
    """Rows first or columns first, and D1 A D2 alike: one limit.

    Examines: solve.transport.exact.

    Source: Sinkhorn & Knopp 1967, Concerning Nonnegative Matrices and Doubly Stochastic
    Matrices."""
    a = torch.rand(5, 5, dtype=torch.float64) + 0.05
    ways = torch.rand(2, 5, dtype=torch.float64) + 0.5
    limits = [
        doubly_stochastic(a, 1e-14),
        doubly_stochastic(a.T, 1e-14).T,
        doubly_stochastic(ways[0][:, None] * a * ways[1], 1e-14),
    ]
    return Residual(most(float((limits[0] - other).abs().max()) for other in limits[1:]), 1e-12)


def x70_little_entropy_is_exact_transport() -> Residual:
    """0 <= <c,pi_l> - OT <= l log(nm), and OT is the best permutation.

    Examines: solve.transport.exact, solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, prop. 4.1."""
    cost = problem(6, 6)[0]
    best = min(cost[range(6), order].mean() for order in itertools.permutations(range(6)))
    worst = float((exact(cost).cost - best).abs())
    for weight in (0.1, 0.03, 0.01):
        gap = float(sinkhorn(cost, epsilon=weight, tolerance=1e-12).cost - best)
        worst = most(worst, -gap, gap - weight * math.log(36))
    return Residual(worst, 1e-11)


def x70_much_entropy_is_independence() -> Residual:
    """As lambda grows the plan tends to p x q.

    Examines: solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, prop. 4.1."""
    plan, _, p, q = solved(1e6)
    return Residual(float((plan.matrix - p[:, None] * q).abs().max()), 1e-6)


def x71_on_a_line_sorted_points_are_matched() -> Residual:
    """W_p of sorted points is the linear program's; W_1 = int |F - G|.

    Examines: solve.transport.exact.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 2.6."""
    x, y = (torch.randn(k, dtype=torch.float64) for k in (7, 9))
    worst = most(
        float((on_line(x, y, p) - exact((x[:, None] - y).abs().pow(p)).cost).abs())
        for p in (1.0, 2.0, 3.0)
    )
    cuts = torch.cat([x, y]).sort().values
    below = (x <= cuts[:-1, None]).double().mean(1) - (y <= cuts[:-1, None]).double().mean(1)
    area = float((on_line(x, y, 1.0) - (below.abs() * cuts.diff()).sum()).abs())
    return Residual(most(worst, area), 1e-12)


def x71_wasserstein_is_a_metric_and_sees_a_shift() -> Residual:
    """W_1(x, x + s) = |s|, symmetric, and the triangle inequality holds.

    Examines: prob.divergence.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 2.4."""
    x, y, z = (torch.randn(8, 2, dtype=torch.float64) for _ in range(3))
    shift = torch.tensor([3.0, -4.0], dtype=torch.float64)
    moved = abs(float(wasserstein(x, x + shift)) - 5)
    turned = float((wasserstein(x, y, 2.0) - wasserstein(y, x, 2.0)).abs())
    detour = float(wasserstein(x, z, 2.0) - wasserstein(x, y, 2.0) - wasserstein(y, z, 2.0))
    return Residual(most(moved, turned, detour), 1e-12)


def x71_gaussians_have_a_closed_form() -> Residual:
    """W_2^2 of one-dimensional normals is (m - n)^2 + (s - t)^2.

    Examines: solve.transport.exact.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 2.6."""
    mean, std = (torch.randn(2, 1, dtype=torch.float64) for _ in range(2))
    covs = std.square()[..., None]
    closed = (mean[0] - mean[1]).square() + (std[0].abs() - std[1].abs()).square()
    return Residual(float((bures(mean[0], covs[0], mean[1], covs[1]) - closed).abs()), 1e-12)


def x72_a_lipschitz_potential_attains_the_distance() -> Residual:
    """W_1 = max over 1-Lipschitz f of E f(x) - E f(y), and no f exceeds it.

    Examines: solve.transport.exact.

    Source: Villani 2009, Optimal Transport: Old and New, remark 6.5."""
    x, y = (torch.randn(12, dtype=torch.float64) for _ in range(2))
    distance = on_line(x, y, 1.0)
    cuts, heights = potential(x, y)

    def gain(points: Tensor) -> Tensor:
        return heights[torch.searchsorted(cuts, points)].mean()

    attained = float((gain(x) - gain(y) - distance).abs())
    slopes = torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None]
    critics = [
        torch.tanh(slopes * x).mean(1) - torch.tanh(slopes * y).mean(1),
        (slopes * x).sin().mean(1) - (slopes * y).sin().mean(1),
    ]
    beyond = most(float(each.max() - distance) for each in critics)
    return Residual(most(attained, beyond), 1e-12)


def potential(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Points of a line, sorted, and the heights there of the best f of slope at most 1."""
    cuts = torch.cat([x, y]).sort().values
    rise = (
        torch.sign(
            (y <= cuts[:-1, None]).double().mean(1) - (x <= cuts[:-1, None]).double().mean(1)
        )
        * cuts.diff()
    )
    return cuts, torch.cat([torch.zeros(1, dtype=torch.float64), rise.cumsum(0)])


def x73_debiasing_removes_the_reference() -> Residual:
    """OT_KL = OT_H + l (H(p) + H(q)); S(a, a) = 0 <= S(a, b); OT(a, a) != 0.

    Examines: prob.divergence, solve.transport.sinkhorn.

    Source: Feydy et al. 2019, Interpolating between Optimal Transport and MMD Using Sinkhorn
    Divergences."""
    plan, _, p, q = solved()
    shift = float((plan.value - plan.sharp - LAMBDA * (entropy(p) + entropy(q))).abs())
    x, y = (torch.randn(10, 2, dtype=torch.float64) for _ in range(2))
    same = abs(float(sinkhorn_divergence(x, x.clone(), 0.4, relative=False, tolerance=1e-13)))
    negative = -float(sinkhorn_divergence(x, y, 0.4, relative=False, tolerance=1e-13))
    biased = 0.01 - float(sinkhorn(x, x, 0.4, tolerance=1e-13).value.abs())
    return Residual(most(shift, same, negative, biased), ROUNDING)


@torch.enable_grad()
def x74_the_envelope_gives_the_gradient() -> Residual:
    """d value / d x with the plan fixed = through all iterations.

    Examines: solve.transport.sinkhorn.

    Source: Feydy et al. 2019, Interpolating between Optimal Transport and MMD Using Sinkhorn
    Divergences."""
    # points of a unit square, so that 400 passes converge whatever the seed
    x, y = (torch.rand(5, 2, dtype=torch.float64) for _ in range(2))
    x.requires_grad_()
    (envelope,) = torch.autograd.grad(sinkhorn(x, y, 0.5, tolerance=1e-14).value, x)
    (through,) = torch.autograd.grad(unrolled(x, y, 0.5, passes=400), x)
    return Residual(float((envelope - through).abs().max()), 1e-9)
