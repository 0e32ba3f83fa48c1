"""Ground costs are their formulas for every pair."""

import pytest
import torch

from monge.core.errors import UsageError
from monge.solve.transport.ground_cost import Power, cosine, cost, squared

X = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1


def pairs(function):
    rows = [function(X[b, i], Y[b, j]) for b in range(2) for i in range(4) for j in range(5)]
    return torch.stack(rows).reshape(2, 4, 5)


def unit(x):
    return x / x.norm()


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("squared", lambda x, y: (x - y).square().sum()),
        ("euclidean", lambda x, y: (x - y).norm()),
        ("cosine", lambda x, y: 1 - unit(x) @ unit(y)),
        (1.5, lambda x, y: (x - y).norm() ** 1.5),
        (2, lambda x, y: (x - y).square().sum()),
        (1, lambda x, y: (x - y).norm()),
    ],
)
def test_costs_are_their_formulas(name, formula):
    torch.testing.assert_close(cost(name)(X, Y), pairs(formula))


def test_equal_points_cost_nothing():
    for name in ("squared", "euclidean", "cosine", 1.5):
        own = cost(name)(1e3 + X, 1e3 + X).diagonal(dim1=-2, dim2=-1)
        assert (own >= 0).all()
        assert own.max() < 1e-7
    opposite = cosine(torch.tensor([[1.0, 0.0]]), torch.tensor([[-2.0, 0.0], [0.0, 3.0]]))
    assert opposite.tolist() == [[2.0, 1.0]]


def test_a_function_is_a_cost_and_a_power_of_zero_is_none():
    assert cost(squared) is squared
    for p in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match=str(p)):
            Power(p)
