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
