"""Measures of forecasts against their definitions and closed forms."""

import math

import pytest
import torch

from monge.core.rng import make_generator
from monge.evaluate.forecasts import (
    SeriesReference,
    crps,
    naive_forecasts,
    normal_crps,
    points,
    spread,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def reference(past, season=4):
    return SeriesReference.of(past, season, past.flatten(0, 1).std(0))


def test_crps_of_samples_is_that_of_the_distribution():
    mean, sigma, truth = 2 * normal(3, 2, 2), 1.5, normal(3, 2, 2, seed=1)
    samples = mean + sigma * normal(4000, 3, 2, 2, seed=2)
    scale = torch.tensor([2.0, 0.5]).double()
    expected = normal_crps(mean, torch.full((2, 2), sigma).double(), truth, scale)
    torch.testing.assert_close(crps(samples, truth, scale), expected, rtol=0.03, atol=0.02)


def test_crps_is_the_absolute_error_of_a_point_and_fair_for_few_samples():
    truth, one = normal(5, 2, 1), torch.ones(1).double()
    same = normal(5, 2, 1, seed=1).expand(7, -1, -1, -1)
    torch.testing.assert_close(crps(same, truth, one), (same[0] - truth).abs().mean((1, 2)))
    x, y = normal(4000, 2, seed=3), torch.zeros(4000, 1, 1).double()
    few = crps(x.T.reshape(2, 4000, 1, 1), y, one).mean()
    assert abs(float(few) - (math.sqrt(2) - 1) / math.sqrt(math.pi)) < 0.03  # of N(0, 1) at 0


def test_crps_rewards_the_true_distribution_and_no_other():
    truth = normal(4000, 1, 1)
    one, zero = torch.ones(1).double(), torch.zeros(4000, 1, 1).double()
    scores = {
        sigma: float(normal_crps(zero, torch.full((1, 1), sigma).double(), truth, one).mean())
        for sigma in (0.5, 1.0, 2.0)
    }
    assert min(scores, key=scores.get) == 1.0


def test_references_repeat_the_past():
    past = torch.arange(10.0).reshape(1, 10, 1)
    found = naive_forecasts(past, 6, 4)
    assert found["naive"].flatten().tolist() == [9] * 6
    assert found["seasonal_naive"].flatten().tolist() == [6, 7, 8, 9, 6, 7]
    assert naive_forecasts(past, 3, 99)["seasonal_naive"].flatten().tolist() == [0, 1, 2]


def test_ar1_is_the_distribution_of_the_next_values():
    x = torch.zeros(400, 60, 1).double()
    noise = normal(400, 60, 1)
    for t in range(1, 60):
        x[:, t] = 2 + 0.7 * (x[:, t - 1] - 2) + 0.5 * noise[:, t]
    own = reference(x[:, 10:])
    assert abs(float(own.rho[0]) - 0.7) < 0.02
    mean, sigma = own.ar1(x[:1, :20], 3)
    rho = float(own.rho[0])
    last = float(x[0, 19, 0])
    assert float(mean[0, 1, 0]) == pytest.approx(
        float(own.mean[0]) + rho**2 * (last - float(own.mean[0]))
    )
    assert float(sigma[1, 0]) == pytest.approx(float(own.sigma[0]) * math.sqrt(1 + rho**2))


def test_scaled_errors_are_one_where_the_naive_forecast_errs():
    past = normal(50, 40, 2)
    own = reference(past)
    truth, forecast = normal(50, 3, 2, seed=4), normal(50, 3, 2, seed=5)
    found = points(forecast, truth, own)
    gap = (forecast - truth).abs()
    torch.testing.assert_close(found["mse"], (gap / own.scale).square().mean((1, 2)))
    assert abs(float(found["mase"].mean()) - 1) < 0.1  # white noise: both err alike
    both = 200 * gap / (forecast.abs() + truth.abs())
    torch.testing.assert_close(found["smape"], both.mean((1, 2)))
    assert float(points(truth, truth, own)["smape"].sum()) == 0


def test_windows_are_spread_over_all():
    assert spread(10, 4).tolist() == [0, 2, 5, 7]
    assert spread(3, 9).tolist() == [0, 1, 2]
