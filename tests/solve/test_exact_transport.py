"""Exact transport: certificates, brute force, the line, Gaussians, doubly stochastic matrices."""

import itertools
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import wasserstein_distance

from monge.core.errors import DataError
from monge.solve.transport.exact import (
    bures,
    doubly_stochastic,
    exact,
    on_line,
    program,
    simplex,
    sliced,
    soft_permutation,
)
from monge.solve.transport.ground_cost import squared


def points(n: int, d: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_an_assignment_is_the_best_of_all_permutations():
    cost = squared(points(6), points(6, seed=1))
    best = min(cost[range(6), order].mean() for order in itertools.permutations(range(6)))
    assert exact(cost).cost.item() == pytest.approx(best.item(), abs=1e-14)


@pytest.mark.parametrize("sizes", [(20, 20), (15, 25), (250, 250)])
def test_the_potentials_prove_the_plan(sizes):
    cost = squared(points(sizes[0]), points(sizes[1], seed=1))
    found = exact(cost)
    n, m = sizes
    torch.testing.assert_close(found.plan.sum(1), torch.full((n,), 1 / n).double())
    torch.testing.assert_close(found.plan.sum(0), torch.full((m,), 1 / m).double())
    f, g = found.potentials
    assert (cost - f[:, None] - g).min() >= -1e-10
    torch.testing.assert_close(f.mean() + g.mean(), found.cost)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_large_assignment_is_scipys_whatever_its_scale(scale):
    cost = scale * (squared(points(220), points(220, seed=1)) - 3)
    rows, columns = linear_sum_assignment(cost)
    known = cost[rows, columns].mean().item()
    assert exact(cost).cost.item() == pytest.approx(known, rel=1e-12)
    assert exact(torch.full((220, 220), scale)).cost.item() == pytest.approx(scale)


def test_weights_are_moved_whole():
    cost = squared(points(4), points(3, seed=1))
    a, b = torch.arange(1.0, 5).double() / 10, torch.tensor([0.5, 0.25, 0.25]).double()
    found = exact(cost, a, b)
    torch.testing.assert_close(found.plan.sum(1), a)
    plan, f, g = program(cost.numpy(), 3 * a.numpy(), 2 * b.numpy())  # shares, whatever their sum
    assert (plan * cost.numpy()).sum() == pytest.approx(found.cost.item(), abs=1e-12)
    assert f @ a.numpy() + g @ b.numpy() == pytest.approx(found.cost.item(), abs=1e-12)


def test_a_network_simplex_is_asked_for_the_plan_of_shares(monkeypatch):
    """POT's solver is exchanged for ours, which tells the masses it was given."""
    asked = {}

    def emd(a, b, cost, log=False, numItermax=0):
        asked.update(a=a, b=b, log=log, most=numItermax)
        plan, f, g = program(cost, a, b)
        return plan, {"u": f, "v": g}

    module = ModuleType("ot")
    module.__spec__, module.emd = ModuleSpec("ot", None), emd
    monkeypatch.setitem(sys.modules, "ot", module)
    cost = squared(points(4), points(3, seed=1))
    a, b = torch.arange(1.0, 5).double() / 10, torch.tensor([0.5, 0.25, 0.25]).double()
    found = exact(cost, a, b)
    f, g = found.potentials
    torch.testing.assert_close(f @ a + g @ b, found.cost)
    assert asked["log"]
    assert asked["most"] == 10_000_000  # many more than are needed
    simplex(cost.numpy(), 3 * a.numpy(), 2 * b.numpy())
    assert (asked["a"].sum(), asked["b"].sum()) == (pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
def test_on_a_line_sorted_points_are_matched(p):
    x, y = points(7, 1)[:, 0], points(11, 1, seed=1)[:, 0]
    cost = (x[:, None] - y).abs().pow(p)
    torch.testing.assert_close(on_line(x, y, p), exact(cost).cost)


def test_the_first_distance_on_a_line_is_scipys():
    x, y = points(7, 1)[:, 0], points(11, 1, seed=1)[:, 0]
    a = torch.rand(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = wasserstein_distance(x, y, a)
    assert on_line(x, y, 1.0, a / a.sum()).item() == pytest.approx(known, abs=1e-12)


def test_slices_of_a_shift_see_its_mean_projection():
    x, shift = points(200), torch.tensor([3.0, 4.0]).double()
    far = sliced(x, x + shift, 2.0, 4000, torch.Generator().manual_seed(0))
    assert far.item() == pytest.approx(5 / 2**0.5, rel=0.03)  # E <theta, s>^2 = |s|^2 / d


def test_gaussians_have_a_closed_form():
    zero, eye = torch.zeros(2).double(), torch.eye(2).double()
    torch.testing.assert_close(bures(zero, eye, zero + 1, 4 * eye), torch.tensor(4.0).double())
    cloud = points(3000) @ torch.tensor([[1.0, 0.3], [0.0, 2.0]]).double()
    cov = cloud.T.cov()
    assert bures(cloud.mean(0), cov, cloud.mean(0), cov).item() == pytest.approx(0, abs=1e-9)


def test_any_positive_matrix_becomes_doubly_stochastic():
    a = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.01
    scaled = doubly_stochastic(a, 1e-13)
    for axis in (0, 1):
        torch.testing.assert_close(scaled.sum(axis), torch.ones(6).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(doubly_stochastic(a.T, 1e-13).T, scaled, rtol=0, atol=1e-12)
    ratio = scaled / a
    torch.testing.assert_close(ratio * ratio[0, 0], ratio[:, :1] * ratio[:1], rtol=1e-11, atol=0)


def test_cold_scores_become_a_permutation():
    scores = points(5, 5)
    soft = soft_permutation(scores, 0.01, 200)
    best = max(itertools.permutations(range(5)), key=lambda o: scores[range(5), o].sum())
    assert soft.argmax(1).tolist() == list(best)
    for axis in (0, 1):
        torch.testing.assert_close(soft_permutation(scores).sum(axis), torch.ones(5).double())


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: doubly_stochastic(torch.zeros(2, 2)), r"\(2, 2\).*\b0\b"),
        (lambda: on_line(torch.zeros(2), torch.zeros(2), 0.5), r"p=0\.5"),
        (lambda: exact(torch.full((2, 2), torch.nan)), "cost"),
    ],
)
def test_bad_input_is_refused(call, value):
    with pytest.raises(DataError, match=value):
        call()
