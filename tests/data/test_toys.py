"""Toys: seeded, and where the density is known it is that of the rows."""

import math

import pytest
import torch

from monge.data import loading as data

SPACING = {
    "ring": 0.01,
    "grid": 0.02,
    "rings": 0.02,
    "checkerboard": 0.05,
    "eight_gaussians": 0.05,
}


def cells(step):
    edge = 2.5 if step < 0.02 else 3.5 if step < 0.05 else 5
    line = torch.arange(-edge, edge, step).double() + step / 2
    return torch.cartesian_prod(line, line)


@pytest.mark.parametrize("name", SPACING)
def test_a_density_integrates_to_one_and_is_that_of_the_rows(name):
    source = data.open(name)
    points = cells(SPACING[name])
    mass = source.density(points).exp() * SPACING[name] ** 2
    assert abs(mass.sum() - 1) < 1e-3
    x = source.view().split("all").whole().x.double()
    # the mean of log p over rows is the negative entropy, within five standard errors
    inside = mass > 0
    surprise = source.density(x)
    entropy = -(mass[inside] * source.density(points[inside])).sum()
    assert abs(surprise.mean() + entropy) < 5 * surprise.std() / math.sqrt(len(x)) + 2e-3
    # and so is the mass of each quarter of the plane
    for corner in ((1, 1), (1, -1), (-1, 1)):
        there = ((points * torch.tensor(corner)) > 0).all(1)
        share = ((x * torch.tensor(corner)) > 0).all(1).double().mean()
        assert abs(mass[there].sum() - share) < 0.025


def test_the_entropy_of_the_checkerboard():
    source = data.open("checkerboard")
    surprise = -source.density(source.view().split("all").whole().x.double())
    assert abs(surprise.mean() - 3.466) < 1e-3
    assert surprise.isfinite().all()


@pytest.mark.parametrize("name", ["moons", "spirals", "pinwheel", *SPACING])
def test_toys_are_seeded(name):
    def rows(*settings):
        return data.open(name, *settings).view().split("all").whole().x

    assert rows().shape == (10_000, 2)
    assert rows().abs().max() < 7
    assert torch.equal(rows("rows=50"), rows()[:50])
    assert not torch.equal(rows("rows=50", "seed=1"), rows("rows=50"))
    assert (data.open(name).density is None) == (name not in SPACING)
