"""Quantiles of marginal distributions."""

import pytest
import torch

from monge.core.marginals import Marginals
from monge.core.space import Space


class Table(Marginals):
    """Three binary entries of two rows."""

    space = Space(kind="binary", shape=(3,), mean=(0.5,), scale=(0.5,), rows=10)

    def __init__(self, p):
        self.p = p

    @property
    def probabilities(self):
        return [torch.stack([1 - p, p], 1) for p in self.p.T]

    def cumulative(self, t):
        return torch.where(t >= 1, 1.0, torch.where(t >= 0, 1 - self.p, 0.0))


@pytest.mark.parametrize("level", [0.05, 0.4, 0.5, 0.95])
def test_a_quantile_is_the_smallest_value_with_enough_probability(level):
    p = torch.tensor([[0.0, 0.3, 0.55], [1.0, 0.61, 0.02]], dtype=torch.float64)
    table = Table(p)
    found = table.quantile(level)
    assert (table.cumulative(found) >= level).all()
    assert (table.cumulative(found - 1) < level).all()
    assert found.dtype == p.dtype


class Normals(Marginals):
    """Normal numbers around the means (B, 2), of which the training values lay in [low, high]."""

    def __init__(self, means, low, high):
        self.means = means
        self.space = Space(kind="real", shape=(2,), low=(low,), high=(high,))

    @property
    def probabilities(self):
        return [self.means[:, :0]] * 2

    def cumulative(self, t):
        return torch.special.ndtr(t - self.means)


def test_a_bracket_is_the_training_range_and_as_much_on_either_side():
    near = Normals(torch.zeros(3, 2).double(), -2.0, 3.0)
    low, high = near.bracket(0.5)
    assert (low == -7).all()
    assert (high == 8).all()
    point = Normals(torch.full((1, 2), 5.0).double(), 5.0, 5.0).bracket(0.5)
    assert (point[0] < 5).all()
    assert (5 < point[1]).all()


@pytest.mark.parametrize("level", [1e-6, 0.1, 0.5, 0.999])
def test_quantiles_are_found_far_from_the_training_range(level):
    means = torch.tensor([[1e4, -1e4], [0.0, 30.0]], dtype=torch.float64)
    found = Normals(means, -1.0, 1.0).quantile(level)
    due = means + torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
    torch.testing.assert_close(found, due, rtol=1e-9, atol=1e-9)
    low, high = Normals(means, -1.0, 1.0).bracket(level)
    assert ((low < due) & (due < high)).all()


def test_the_highest_quantile_is_the_last_value():
    """Also where probabilities add up to a little less than one."""
    p = torch.full((1, 3), 0.3, dtype=torch.float64)
    assert Table(p).quantile(1.0 + 1e-12).tolist() == [[1.0] * 3]
