"""Alternating projections, matrix scaling, barycentres and unbalanced transport."""

import itertools
import math

import pytest
import torch

from monge.core.errors import DataError
from monge.solve.transport.exact import exact
from monge.solve.transport.projections import (
    alternating_projections,
    barycentre,
    optimality,
    scale_kernel,
    scaling_exists,
    unbalanced,
)
from monge.solve.transport.sinkhorn import sinkhorn

EPSILON = 0.3


def problem(n=5, m=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    cost = torch.rand(n, m, generator=g, dtype=torch.float64)
    p, q = (torch.rand(k, generator=g, dtype=torch.float64) + 0.2 for k in (n, m))
    return cost, p / p.sum(), q / q.sum()


def test_projections_alternate_between_the_marginals_and_end_at_the_plan():
    cost, p, q = problem()
    trace = list(itertools.islice(alternating_projections((-cost / EPSILON).exp(), p, q), 200))
    assert all(step.row_error < 1e-12 for step in trace[1::2])
    assert all(step.column_error < 1e-12 for step in trace[2::2])
    errors = [step.column_error for step in trace[1::2]]
    assert all(late <= early + 1e-12 for early, late in itertools.pairwise(errors))
    assert errors[0] > 1e-2 > 1e-9 > errors[-1]
    plan = sinkhorn(cost, None, EPSILON, a=p, b=q, tolerance=1e-11).matrix
    torch.testing.assert_close(trace[-1].plan, plan, atol=1e-9, rtol=0)


def test_iterates_are_those_of_scaling_vectors():
    cost, p, q = problem()
    k = (-cost / EPSILON).exp()
    u, v = torch.ones_like(p) / k.sum(), torch.ones_like(q)
    steps = alternating_projections(k, p, q)
    next(steps)
    for _ in range(5):
        u = p / (k @ v)
        torch.testing.assert_close(next(steps).plan, u[:, None] * k * v)
        v = q / (k.T @ u)
        torch.testing.assert_close(next(steps).plan, u[:, None] * k * v)


def test_the_conditions_of_the_optimum_hold_at_the_plan_alone():
    cost, p, q = problem()
    k = (-cost / EPSILON).exp()
    plan = sinkhorn(cost, None, EPSILON, a=p, b=q, tolerance=1e-11).matrix
    at = optimality(plan, k, p, q)
    assert max(at.stationarity, at.row_error, at.column_error) < 1e-8
    swap = torch.zeros_like(plan)
    swap[0, 0] = swap[1, 1] = 1e-3
    swap[0, 1] = swap[1, 0] = -1e-3
    moved = optimality(plan + swap, k, p, q)  # the same marginals, not stationary
    assert max(moved.row_error, moved.column_error) < 1e-8
    assert moved.stationarity > 1e-3
    apart = optimality(p[:, None] * q, k, p, q)
    assert apart.stationarity > 0.1


def test_kernels_with_zeros_are_scaled_where_a_plan_exists():
    half = torch.full((2,), 0.5, dtype=torch.float64)
    full, corner = torch.ones(2, 2), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    empty = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert scaling_exists(full, half, half) == "scaling"
    assert scaling_exists(corner, half, half) == "limit"  # the plan is the diagonal
    assert scaling_exists(empty, half, half) == "none"
    assert scaling_exists(torch.zeros(2, 2), half, half) == "none"
    lean = torch.tensor([0.7, 0.3], dtype=torch.float64)
    assert scaling_exists(corner, lean, half) == "scaling"
    rare = torch.tensor([1e-6, 1 - 1e-6], dtype=torch.float64)  # entries of 2.5e-8 at most
    assert scaling_exists(torch.ones(2, 40), rare, torch.full((40,), 1 / 40)) == "scaling"
    last = next(itertools.islice(alternating_projections(corner.double(), lean, half), 400, None))
    assert max(last.row_error, last.column_error) < 1e-6
    assert float(last.plan[1, 0]) == 0
    slow = next(itertools.islice(alternating_projections(corner.double(), half, half), 400, None))
    assert float(slow.plan[0, 1]) < 2e-3
    for wrong in (-full, torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.zeros(2, 2)):
        with pytest.raises(DataError):
            next(alternating_projections(wrong, half, half))


def test_projections_begin_at_the_normalised_kernel_and_end_after_the_passes_asked_for():
    cost, p, q = problem()
    kernel = (-cost / EPSILON).exp()
    first = next(alternating_projections(5 * kernel, p, q))
    torch.testing.assert_close(first.plan, kernel / kernel.sum())
    assert scale_kernel(kernel, p, q, tolerance=0.0, passes=3).passes == 3
    ready = kernel * (p / kernel.sum(1))[:, None]  # its rows have their sums, its columns not
    found = scale_kernel(ready, p, q)
    assert 1 <= found.passes < 200  # as soon as the error allows it
    torch.testing.assert_close(found.plan.sum(0), q)


def test_scaling_vectors_of_a_kernel_with_zeros_are_found():
    torch.manual_seed(0)
    allowed = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).double()
    kernel = allowed * (0.5 + torch.rand(4, 4, dtype=torch.float64))
    plan = allowed * torch.rand(4, 4, dtype=torch.float64)
    plan = plan / plan.sum()
    p, q = plan.sum(1), plan.sum(0)
    found = scale_kernel(kernel, p, q, 1e-12)
    assert found.u is not None
    assert found.v is not None
    torch.testing.assert_close(found.u[:, None] * kernel * found.v, found.plan)
    torch.testing.assert_close(found.plan.sum(1), p)
    torch.testing.assert_close(found.plan.sum(0), q)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    corner = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    limit = scale_kernel(corner, half, half, 1e-3)
    assert limit.u is None
    assert scale_kernel(corner, half, half, 0.0, passes=5).passes == 5
    with pytest.raises(DataError, match="2 zeros"):
        scale_kernel(torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double(), half, half)


def test_the_solver_shows_its_errors_and_that_duality_is_strong():
    cost, p, q = problem(40, 50)
    plans = [
        sinkhorn(cost, None, 0.003, a=p, b=q, tolerance=tolerance) for tolerance in (0.1, 1e-10)
    ]
    for plan in plans:
        passes = [point.passes for point in plan.trace]
        assert passes == sorted(passes)
        assert passes[-1] < plan.passes
        assert plan.trace[0].epsilon > plan.trace[-1].epsilon == plan.epsilon
        assert plan.trace[-1].error <= (0.1 if plan is plans[0] else 1e-10)
    gaps = [float((plan.primal - plan.dual).abs()) for plan in plans]
    assert gaps[1] < 1e-9 < 1e-6 < gaps[0]
    best = exact(cost, p, q).cost
    f, g = exact(cost, p, q).potentials
    assert float(f @ p + g @ q) == pytest.approx(float(best), abs=1e-9)


def test_the_barycentre_of_two_humps_lies_between_them():
    x = torch.linspace(0, 1, 60, dtype=torch.float64)
    humps = torch.stack([torch.softmax(-((x - c) ** 2) / 2e-3, 0) for c in (0.2, 0.6)])
    cost, weights = (x[:, None] - x) ** 2, torch.tensor([0.25, 0.75], dtype=torch.float64)
    found = barycentre(cost, humps, weights, 1e-3, 500)
    assert float(found.sum()) == pytest.approx(1)
    assert float(found @ x) == pytest.approx(0.25 * 0.2 + 0.75 * 0.6, abs=5e-3)
    assert float(x[found.argmax()]) == pytest.approx(0.5, abs=0.02)  # one hump, not two
    with pytest.raises(DataError):
        barycentre(cost, humps, 2 * weights, 1e-3)


def test_no_change_of_a_barycentre_lowers_its_cost():
    """The gradient of sum_s lambda_s OT_s in the weights a is sum_s lambda_s f_s + epsilon log a,
    which is constant at the minimum over weights that sum to one."""
    cost, _, _ = problem(6, 6)
    measures = torch.stack([problem(6, 6, seed)[1] for seed in (1, 2, 3)])
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    found = barycentre(cost, measures, weights, EPSILON)
    potentials = [
        sinkhorn(cost, None, EPSILON, a=found, b=each, tolerance=1e-12).f for each in measures
    ]
    slope = weights @ torch.stack(potentials) + EPSILON * found.log()
    assert float(slope.std()) < 1e-8
    apart = weights @ measures  # the mean of the measures is no minimum
    others = [
        sinkhorn(cost, None, EPSILON, a=apart, b=each, tolerance=1e-12).f for each in measures
    ]
    assert float((weights @ torch.stack(others) + EPSILON * apart.log()).std()) > 1e-3


def test_unbalanced_transport_has_its_closed_form_and_its_limits():
    one = torch.ones(1, dtype=torch.float64)
    for reach, c in ((0.5, 1.0), (3.0, 0.2)):
        plan = unbalanced(torch.full((1, 1), c, dtype=torch.float64), one, one, 0.1, reach)
        assert float(plan) == pytest.approx(math.exp(-c / (0.1 + 2 * reach)), rel=1e-9)
    cost, p, q = problem()
    balanced = sinkhorn(cost, None, EPSILON, a=p, b=q, tolerance=1e-11).matrix
    found = unbalanced(cost, p, q, EPSILON, math.inf)
    torch.testing.assert_close(found, balanced, atol=1e-9, rtol=0)
    torch.testing.assert_close(unbalanced(cost, p, q, EPSILON, 1e6), balanced, atol=1e-5, rtol=0)


def test_no_plan_near_the_unbalanced_one_costs_less():
    cost, p, q = problem()
    q = 2 * q

    def kl(x, y):
        return (torch.xlogy(x, x / y) - x + y).sum()

    def total(plan):
        return (
            (cost * plan).sum()
            + EPSILON * kl(plan, p[:, None] * q)
            + 0.4 * (kl(plan.sum(1), p) + kl(plan.sum(0), q))
        )

    plan, g = unbalanced(cost, p, q, EPSILON, 0.4), torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = 0.02 * torch.randn(plan.shape, generator=g, dtype=torch.float64)
        assert float(total(plan * noise.exp())) > float(total(plan))


def test_the_barycentre_of_one_measure_is_its_blurred_image():
    """With one measure b the free marginal of the plan is K (b / K^T 1)."""
    cost, _, q = problem()
    kernel = (-cost / EPSILON).exp()
    expected = kernel @ (q / kernel.sum(0))
    one = torch.ones(1, dtype=torch.float64)
    torch.testing.assert_close(barycentre(cost, q[None], one, EPSILON, 50), expected)
    both = torch.stack([q, q.flip(0)])  # a measure of weight 0 has no part in it
    alone = torch.tensor([1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(barycentre(cost, both, alone, EPSILON, 50), expected)
    with pytest.raises(DataError):
        barycentre(cost, both, torch.tensor([1.5, -0.5], dtype=torch.float64), EPSILON)
