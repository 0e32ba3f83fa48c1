"""Common errors on transport: the marginal, the side, the order."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ...prob.divergence import sinkhorn_divergence
from ...solve.transport.exact import exact, on_line
from ...solve.transport.sinkhorn import sinkhorn
from .._helpers import gap, most, normal
from ..framework import Control
from ..transport import LAMBDA, gibbs, problem, solved, to_columns, to_rows

ROUNDING = 1e-12


def r7_scalings_are_updated_one_after_the_other() -> Control:
    """Common error: Sinkhorn updates u and v at once; correct: v from the new u, for a mass of 1.

    Examines: solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 4.2."""
    right = solved()[0].matrix.sum() - 1
    return Control(simultaneous_mass(), float(right.abs()), ROUNDING)


def simultaneous_mass(passes: int = 200) -> float:
    """How far from one the mass of the plan is when u and v are updated at once: it
    alternates between two wrong values."""
    cost, p, q = problem()
    kernel = torch.exp(-cost / LAMBDA)
    u, v = torch.ones_like(p), torch.ones_like(q)
    for _ in range(passes):
        u, v = p / (kernel @ v), q / (kernel.T @ u)
    return float((u @ kernel @ v - 1).abs())


def r8_columns_are_scaled_from_the_right() -> Control:
    """Common error: columns are scaled by diag(p / 1'pi) pi; correct: pi diag(q / 1'pi).

    Examines: solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 4.2."""
    plan, cost, p, q = solved(n=6, m=6)
    pi = to_rows(gibbs(cost), p)
    printed, proper = (p / pi.sum(0))[:, None] * pi, pi
    for _ in range(2000):
        proper = to_columns(to_rows(proper, p), q)
    right = most(gap(plan.matrix, proper), gap(plan.matrix.sum(0), q))
    return Control(gap(printed.sum(0), q), right, ROUNDING)


def r72_a_distance_needs_moments() -> Control:
    """Common error: W_1 is always finite; correct: where E|x| is, so not for Cauchy.

    Examines: solve.transport.exact.

    Source: Villani 2009, Optimal Transport: Old and New, ch. 6."""
    growth = []
    for quantile in (lambda u: torch.tan(math.pi * (u - 0.5)), torch.special.ndtri):
        few, many = (
            on_line(quantile((torch.arange(n).double() + 0.5) / n), torch.zeros(n).double(), 1.0)
            for n in (1000, 100_000)
        )
        growth.append(gap(few, many))
    return Control(growth[0], growth[1], 1e-2)


def r73_plans_are_bound_by_both_marginals() -> Control:
    """Common error: min over all pi, which is K / sum K; correct: min over couplings of p and q.

    Examines: solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 4.1."""
    plan, cost, p, q = solved()
    return Control(marginal_gap(gibbs(cost), p, q), marginal_gap(plan.matrix, p, q), ROUNDING)


def marginal_gap(pi: Tensor, p: Tensor, q: Tensor) -> float:
    return max(gap(pi.sum(1), p), gap(pi.sum(0), q))


def r74_columns_sum_to_q() -> Control:
    """Common error: q = pi 1; correct: q = pi' 1.

    Examines: solve.transport.sinkhorn.

    Source: Peyré & Cuturi 2019, Computational Optimal Transport, sec. 2.3."""
    plan, _, _, q = solved(n=6, m=6)
    return Control(gap(plan.matrix.sum(1), q), gap(plan.matrix.sum(0), q), ROUNDING)


def r75_a_shape_is_one_argument() -> Control:
    """Common error: np.ones(N, 1); correct: np.ones((N, 1)), the shape is one argument.

    The even weights that a plan starts from are those ones over N.

    Examines: solve.transport.sinkhorn.

    Source: Harris et al. 2020, Array Programming with NumPy."""
    cost, n = problem()[0], 6
    try:
        printed = float(np.ones(n, cast(Any, 1)).sum()) - n
    except TypeError:
        printed = 1.0  # an error: 1 is no type of numbers
    even = sinkhorn(cost, epsilon=LAMBDA).a
    proper = torch.from_numpy(np.ones((n, 1)))[:, 0] / n
    return Control(printed, gap(even, proper), ROUNDING)


def r76_a_sinkhorn_cost_is_biased() -> Control:
    """Common error: a Sinkhorn cost is W_1; correct: it is not 0 at x = y until debiased.

    Examines: prob.divergence, solve.transport.sinkhorn.

    Source: Genevay, Peyré & Cuturi 2018, Learning Generative Models with Sinkhorn Divergences;
    Feydy et al. 2019, Interpolating between Optimal Transport and MMD Using Sinkhorn
    Divergences."""
    x = normal(10, 2)
    plain = float(sinkhorn(x, x, 0.4, tolerance=1e-13).value.abs())
    fair = sinkhorn_divergence(x, x.clone(), 0.4, relative=False, tolerance=1e-13)
    return Control(plain, abs(float(fair)), ROUNDING)


def r125_entropy_does_not_discount_outliers() -> Control:
    """Common error: entropic transport ignores outliers; correct: it moves their whole mass.

    The cost grows with the distance of one point in ten as that of the exact plan does.

    Examines: solve.transport.sinkhorn, solve.transport.exact.

    Source: Balaji, Chellappa & Feizi 2020, Robust Optimal Transport with Applications in
    Generative Modeling and Domain Adaptation; Peyré & Cuturi 2019, Computational Optimal
    Transport, sec. 10.2."""
    x, y = normal(2, 10, 1)
    costs, masses = [], []
    for far in (10.0, 1000.0):
        y[-1] = far
        plan = sinkhorn(x, y, 0.5, tolerance=1e-12)
        costs.append(float(plan.cost / exact((x - y.T).square()).cost))
        masses.append(abs(float(plan.matrix[:, -1].sum()) - 0.1))
    grown = float(sinkhorn(x, y, 0.5, tolerance=1e-12).cost) / 100.0**2
    return Control(grown, most(*masses, abs(costs[1] - 1)), 1e-4)
