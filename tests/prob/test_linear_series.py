"""The recursion of Levinson and Durbin against the equations that it solves."""

import pytest
import torch

from monge.prob.linear_ar import (
    autocovariance,
    conditional_means,
    is_stationary,
    levinson,
    prediction_variances,
    sample_autocovariance,
    step_down,
    step_up,
)

KAPPA = torch.tensor([[0.5, -0.3, 0.2], [-0.8, 0.1, 0.6]], dtype=torch.float64)
V = torch.tensor([0.7, 2.0], dtype=torch.float64)


def toeplitz(gamma):
    index = torch.arange(len(gamma))
    return gamma[(index[:, None] - index).abs()]


def test_coefficients_and_partial_correlations_are_one_another():
    phi = step_up(KAPPA)
    found, predictors = step_down(phi)
    torch.testing.assert_close(found, KAPPA)
    assert [each.shape[-1] for each in predictors] == [0, 1, 2, 3]
    torch.testing.assert_close(predictors[1], KAPPA[:, :1])
    torch.testing.assert_close(predictors[2], step_up(KAPPA[:, :2]))


def test_autocovariances_solve_the_yule_walker_equations():
    phi = step_up(KAPPA)
    gamma = autocovariance(phi, V, 6)
    for row in range(2):
        g = gamma[row]
        matrix = toeplitz(g[:3])
        torch.testing.assert_close(torch.linalg.solve(matrix, g[1:4]), phi[row])
        torch.testing.assert_close(g[0] - phi[row] @ g[1:4], V[row])
        for lag in (4, 5, 6):
            torch.testing.assert_close(g[lag], phi[row] @ g[lag - 3 : lag].flip(0))
    kappa, variances = levinson(gamma[:, :4])
    torch.testing.assert_close(kappa, KAPPA)
    torch.testing.assert_close(variances, prediction_variances(KAPPA, V))
    torch.testing.assert_close(variances[:, 0], gamma[:, 0])
    torch.testing.assert_close(variances[:, -1], V)


def test_stationary_is_where_all_roots_lie_inside():
    for phi, expected in (([0.5, 0.4], True), ([0.5, 0.6], False), ([1.0, 0.0], False)):
        assert bool(is_stationary(torch.tensor(phi, dtype=torch.float64))) is expected


def test_sample_autocovariances_are_pooled():
    x = torch.tensor([[1.0, 2.0, -1.0], [0.0, 1.0, 3.0]])
    assert sample_autocovariance(x, 2).tolist() == pytest.approx(
        [16 / 6, (2 - 2 + 0 + 3) / 6, (-1 + 0) / 6]
    )


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_conditional_means_are_those_of_the_normal_series(steps):
    phi, intercept = step_up(KAPPA), torch.tensor([0.3, -1.0], dtype=torch.float64)
    _, predictors = step_down(phi)
    first = torch.zeros(2, 3, 3, dtype=torch.float64)
    for count in range(3):
        first[:, count, :count] = predictors[count]
    x = torch.randn(4, steps, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = conditional_means(x, intercept, phi, first)
    mean, gamma = intercept / (1 - phi.sum(-1)), autocovariance(phi, V, steps)
    assert found.shape == x.shape
    for c in range(2):
        matrix = toeplitz(gamma[c])
        for t in range(steps):
            expected = mean[c].expand(4)
            if t:
                weights = torch.linalg.solve(matrix[:t, :t], matrix[t, :t])
                expected = mean[c] + (x[:, :t, c] - mean[c]) @ weights
            torch.testing.assert_close(found[:, t, c], expected)
