"""Adaptive integrals are those of closed form, and say how far off they are."""

import math

import pytest
import torch

from monge.solve import quadrature
from monge.solve.quadrature import ORDER, grid, integral, lattice, rule


def normal(scale):
    return lambda x: torch.exp(-x.square().sum(1, keepdim=True) / (2 * scale**2))


@pytest.mark.parametrize(("dims", "scale"), [(1, 1.0), (1, 1e-3), (2, 0.7)])
def test_gaussian_integrals_and_moments(dims, scale):
    def f(x):
        p = normal(scale)(x)
        return torch.cat([p, p * x[:, :1].square()], 1)

    whole = (2 * math.pi * scale**2) ** (dims / 2)
    found, error = integral(f, dims, 1e-8)
    assert error <= 1e-8
    assert found.tolist() == pytest.approx([whole, whole * scale**2], abs=2e-8)


def test_a_step_gets_more_points_until_there_are_too_many():
    seen = []

    def step(x):
        seen.append(len(x))
        return ((x > 0.3) & (x < 1.7)).double()

    found, error = integral(step, 1, 1e-6)
    assert float(found) == pytest.approx(1.4, abs=1e-5)
    first, seen[:] = sum(seen), []
    _, rough = integral(step, 1, 1e-6, points=1000)
    assert rough > 1e-6 >= error
    assert sum(seen) < first


def test_what_is_not_a_number_ends():
    found, _ = integral(lambda x: torch.full_like(x, math.nan), 1, 1e-6)
    assert found.isnan().all()


def test_the_rule_is_exact_for_polynomials_in_the_mapped_variable():
    def f(y):  # t^2 dt, as y = t / (1 - t^2)
        t = (-1 + (1 + 4 * y.square()).sqrt()) / (2 * y)
        return t.square() * (1 - t.square()).square() / (1 + t.square())

    centres, half = torch.tensor([[0.5], [-0.25]], dtype=torch.float64), 0.25
    exact = [((c + half) ** 3 - (c - half) ** 3) / 3 for c in (0.5, -0.25)]
    assert rule(f, centres, half)[:, 0].tolist() == pytest.approx(exact, rel=1e-12)
    assert ORDER == len(grid(torch.arange(ORDER), 1))


def test_grids_and_lattices():
    assert grid(torch.tensor([1.0, 2.0]), 2).tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    points, log_volume = lattice(2, 5, 2.0)
    assert points.shape == (25, 2)
    assert (float(points.min()), float(points.max())) == (-2.0, 2.0)
    assert log_volume == pytest.approx(0.0)
    assert lattice(3, 9, 2.0)[1] == pytest.approx(3 * math.log(0.5))
    points, log_volume = lattice(1, 200, 9.0)
    total = float(torch.exp(log_volume - points.square() / 2).sum())
    assert total == pytest.approx(math.sqrt(2 * math.pi), rel=1e-12)
    assert quadrature.BOXES == 100
