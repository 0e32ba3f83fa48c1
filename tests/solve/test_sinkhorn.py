"""Entropic transport against its own definition, closed forms, and whatever could break it."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from monge.core.errors import DataError, UsageError
from monge.solve.transport.exact import exact
from monge.solve.transport.ground_cost import Power, cosine, squared
from monge.solve.transport.sinkhorn import sinkhorn, unrolled


def clouds(n: int = 30, m: int = 40, d: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, d, generator=g, dtype=torch.float64),
        0.5 * torch.randn(m, d, generator=g, dtype=torch.float64) + 1,
    )


def plain(cost: Tensor, epsilon: float, passes: int) -> tuple[Tensor, Tensor]:
    """The potentials by the plainest iteration in logarithms."""
    n, m = cost.shape
    f, g = cost.new_zeros(n), cost.new_zeros(m)
    for _ in range(passes):
        f = -epsilon * (torch.logsumexp((g - cost) / epsilon, 1) - math.log(m))
        g = -epsilon * (torch.logsumexp((f[:, None] - cost) / epsilon, 0) - math.log(n))
    return f, g


@pytest.mark.parametrize(("epsilon", "passes"), [(1.0, 200), (0.1, 2000), (0.02, 20_000)])
def test_it_finds_what_the_plainest_iteration_finds(epsilon, passes):
    x, y = clouds()
    f, g = plain(squared(x, y), epsilon, passes)
    plan = sinkhorn(x, y, epsilon, tolerance=1e-10)
    assert plan.converged
    assert plan.passes < passes
    torch.testing.assert_close(plan.value, f.mean() + g.mean(), rtol=0, atol=1e-9)


def test_the_plan_is_a_coupling_and_its_values_agree():
    x, y = clouds()
    a = torch.rand(30, dtype=torch.float64)
    a /= a.sum()
    plan = sinkhorn(x, y, 0.1, a=a, tolerance=1e-11)
    pi = plan.matrix
    torch.testing.assert_close(pi.sum(1), a, rtol=0, atol=1e-11)
    torch.testing.assert_close(pi.sum(0), torch.full_like(plan.b, 1 / 40), rtol=0, atol=1e-13)
    torch.testing.assert_close(plan.cost, (pi * squared(x, y)).sum())
    relative = (pi * (pi / (a[:, None] * plan.b)).log()).sum()
    torch.testing.assert_close(plan.value, plan.cost + 0.1 * relative, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        plan.sharp, plan.cost + 0.1 * torch.xlogy(pi, pi).sum(), rtol=0, atol=1e-9
    )


def test_points_and_their_cost_matrix_are_one_problem():
    x, y = clouds()
    for cost in ("squared", "euclidean", "cosine", 1.5, lambda x, y: squared(x, y).sqrt() + 1):
        points = sinkhorn(x, y, 0.2, cost_of=cost, tolerance=1e-9)
        matrix = {
            "squared": squared,
            "euclidean": Power(1.0),
            "cosine": cosine,
            1.5: Power(1.5),
        }.get(cost, cost)(x, y)
        same = sinkhorn(matrix, epsilon=0.2, tolerance=1e-9)
        torch.testing.assert_close(points.value, same.value)


def test_a_batch_is_many_problems():
    pairs = [clouds(seed=seed) for seed in range(5)]
    x, y = (torch.stack(side) for side in zip(*pairs, strict=True))
    together = sinkhorn(x, y, 0.1, tolerance=1e-9)
    apart = [sinkhorn(*pair, 0.1, tolerance=1e-9).value for pair in pairs]
    torch.testing.assert_close(together.value, torch.stack(apart), rtol=0, atol=1e-8)


def test_blocks_that_are_recomputed_change_nothing():
    x, y = clouds(300, 400)
    kept = sinkhorn(x, y, 0.1, tolerance=1e-9)
    made = sinkhorn(x, y, 0.1, tolerance=1e-9, room=0)
    assert kept.kernel.is_stored
    assert not made.kernel.is_stored
    torch.testing.assert_close(kept.value, made.value, rtol=0, atol=1e-10)


def test_points_without_weight_change_nothing():
    x, y = clouds()
    more = torch.cat([x, 100 + x[:3]])
    a = torch.cat([torch.full((30,), 1 / 30, dtype=torch.float64), torch.zeros(3).double()])
    plan = sinkhorn(more, y, 0.1, a=a, tolerance=1e-9)
    torch.testing.assert_close(plan.value, sinkhorn(x, y, 0.1, tolerance=1e-9).value)
    assert plan.matrix[30:].sum() == 0
    assert bool(plan.f.isfinite().all())


def test_a_warm_start_needs_fewer_passes():
    x, y = clouds(200, 200)
    first = sinkhorn(x, y, 0.02, tolerance=1e-8)
    again = sinkhorn(x + 1e-4, y, 0.02, tolerance=1e-8, start=(first.f, first.g))
    assert again.converged
    assert again.passes < first.passes / 2


def test_the_gradient_is_that_of_the_unrolled_iteration():
    x, y = clouds(8, 9)
    x.requires_grad_()
    value = sinkhorn(x, y, 0.5, tolerance=1e-13).value
    (envelope,) = torch.autograd.grad(value, x)
    f, g = plain(squared(x, y), 0.5, 300)
    (slow,) = torch.autograd.grad(f.mean() + g.mean(), x)
    torch.testing.assert_close(envelope, slow, rtol=0, atol=1e-9)
    (through,) = torch.autograd.grad(unrolled(x, y, 0.5, passes=300), x)
    torch.testing.assert_close(envelope, through, rtol=0, atol=1e-9)
    a, b = (torch.arange(1.0, len(part) + 1).double() for part in (x, y))
    a, b = a / a.sum(), b / b.sum()
    weighed = sinkhorn(x, y, 0.5, a=a, b=b, tolerance=1e-13)
    torch.testing.assert_close(unrolled(x, y, 0.5, a=a, b=b, passes=300), weighed.dual)
    (few,) = torch.autograd.grad(unrolled(x, y, 0.05, passes=2), x)
    assert (few - torch.autograd.grad(sinkhorn(x, y, 0.05).value, x)[0]).abs().max() > 1e-3


def test_the_gradient_in_the_weights_is_the_potential():
    x, y = clouds(8, 9)
    a = torch.full((8,), 1 / 8, dtype=torch.float64, requires_grad=True)
    plan = sinkhorn(x, y, 0.5, a=a, tolerance=1e-12)
    (slope,) = torch.autograd.grad(plan.value, a)
    torch.testing.assert_close(slope, plan.f)


def test_weights_are_normalised_on_request():
    x, y = clouds(8, 9)
    a = torch.rand(8, dtype=torch.float64)
    for size in (7, 0.01):  # sums above and below one
        asked = sinkhorn(x, y, 0.2, a=size * a, normalise=True, tolerance=1e-10)
        torch.testing.assert_close(asked.matrix.sum(1), a / a.sum(), rtol=0, atol=1e-10)
        due = sinkhorn(x, y, 0.2, a=a / a.sum(), tolerance=1e-10)
        torch.testing.assert_close(asked.value, due.value)
    torch.testing.assert_close(
        exact(squared(x, y), 7 * a, normalise=True).plan.sum(1), a / a.sum()
    )


@pytest.mark.parametrize(("epsilon", "most"), [(0.05, 40), (0.01, 90), (0.001, 260)])
def test_passes_stay_few_where_epsilon_is_small(epsilon, most):
    plan = sinkhorn(*(points.float() for points in clouds(400, 400)), epsilon, relative=True)
    assert plan.converged
    assert plan.passes < most


def test_plain_passes_alone_would_take_many_more(monkeypatch):
    x, y = (points.float() for points in clouds(400, 400))
    newton = sinkhorn(x, y, 0.001, relative=True)
    monkeypatch.setattr("monge.solve.transport.scaling.NEAR", 0.0)
    plain = sinkhorn(x, y, 0.001, relative=True, passes=4 * newton.passes)
    assert not plain.converged
    assert plain.error > 3 * newton.error


def test_what_never_becomes_a_number_ends():
    """Costs so far apart that single precision has no answer are given up, not tried for ever."""
    cost = torch.tensor([[0.0, 1e30], [1e30, 0.0], [1e-30, 5.0]])
    plan = sinkhorn(cost, epsilon=1e-20, passes=50)
    assert plan.passes < 1000


@settings(max_examples=30, deadline=None)
@given(
    log_epsilon=st.floats(-4, 1),
    log_scale=st.floats(-6, 6),
    n=st.integers(1, 12),
    m=st.integers(1, 12),
    outlier=st.sampled_from([0.0, 1e3]),
    double=st.booleans(),
    same=st.booleans(),
)
def test_it_never_gives_a_value_that_is_no_number(
    log_epsilon, log_scale, n, m, outlier, double, same
):
    g = torch.Generator().manual_seed(n * 100 + m)
    x, y = torch.randn(n, 2, generator=g), torch.randn(m, 2, generator=g)
    x[0] += outlier
    if same:
        y[:] = y[0]
    x, y = (
        10**log_scale * points.to(torch.float64 if double else torch.float32) for points in (x, y)
    )
    plan = sinkhorn(x, y, 10**log_epsilon, relative=True, passes=500)
    for value in (plan.value, plan.cost, plan.f, plan.g, plan.matrix):
        assert bool(value.isfinite().all())
    assert plan.matrix.sum().item() == pytest.approx(1, abs=1e-3)
    if plan.converged:
        assert plan.error <= 1e-4


def test_identical_points_cost_nothing():
    x = torch.ones(5, 3)
    for relative in (False, True):  # also in units of a mean cost of nothing
        plan = sinkhorn(x, x, 0.1, relative=relative)
        assert plan.converged
        assert plan.epsilon == 0.1
        assert plan.cost.item() == 0


@pytest.mark.parametrize(
    ("change", "error", "values"),
    [
        (dict(epsilon=0.0), UsageError, r"epsilon.*0\.0"),
        (dict(a=torch.tensor([1.5, -0.5])), DataError, r"\ba\b.*-0\.5"),
        (dict(a=torch.tensor([0.5, 0.6])), DataError, r"\ba\b.*1\.1\b"),
        (dict(b=torch.tensor([0.0, 0.0]), normalise=True), DataError, r"\bb\b.*\b0\b"),
        (
            dict(b=torch.tensor([0.5, math.nan])),
            DataError,
            r"weights b\b",
        ),
        (dict(b=torch.tensor([0.5, 0.25, 0.25])), DataError, r"\b3\b.*\bb\b.*\b2\b"),
        (dict(y=torch.zeros(2, 3)), DataError, r"\bx\b.*\b2\b.*\by\b.*\b3\b"),
        (
            dict(x=torch.tensor([[0.0, math.nan], [0.0, 0.0]])),
            DataError,
            r"\bx\b",
        ),
        (dict(cost_of=lambda x, y: squared(x, y) / 0), DataError, r"cost.*\binf\b"),
        (dict(cost_of=0.0), UsageError, r"cost.*\b0\.0\b"),
    ],
)
def test_bad_input_is_refused(change, error, values):
    call = dict(x=torch.zeros(2, 2), y=torch.ones(2, 2), epsilon=0.1) | change
    with pytest.raises(error, match=values):
        sinkhorn(**call)


def test_the_dual_bounds_the_optimum_for_any_potentials():
    """At the solution the plan has mass 1 and that term vanishes; elsewhere it does not."""
    x, y = clouds(7, 9)
    plan = sinkhorn(x, y, 0.5, tolerance=1e-10)
    for shift in (-0.3, 0.2, torch.linspace(-1, 1, 7).double()):
        other = replace(plan, f=plan.f + shift)
        mass = other.matrix.sum()
        linear = (other.f * plan.a).sum() + (other.g * plan.b).sum()
        torch.testing.assert_close(other.dual, linear - 0.5 * (mass - 1))
        assert float(other.dual) < float(plan.dual) - 1e-3
