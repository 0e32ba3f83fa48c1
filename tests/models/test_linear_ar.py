"""Linear autoregression: known coefficients are found, and the model is the exact Gaussian."""

import math

import numpy as np
import pytest
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.sequence.linear_ar import (
    LinearAR,
    difference,
    join_windows,
    log_likelihood,
    maximum_likelihood,
    select,
)
from monge.prob.linear_ar import autocovariance, step_up
from monge.run import run

METHODS = ("squares", "yule_walker", "likelihood")


def simulate(phi, n, steps, mean=0.0, sigma=1.0, seed=0):
    """Stationary series (n, steps), after a long run-in."""
    g = torch.Generator().manual_seed(seed)
    x = [torch.zeros(n, dtype=torch.float64)] * len(phi)
    for _ in range(300 + steps):
        noise = sigma * torch.randn(n, generator=g, dtype=torch.float64)
        x.append(sum(p * x[-1 - j] for j, p in enumerate(phi)) + noise)
    return mean + torch.stack(x[-steps:], 1)


def fitted(x, **fields):
    """The model of rows (N, T) or (N, T, C), fitted in float64."""
    flat = x.reshape(-1, *x.shape[2:])
    mean, scale = flat.mean(0).reshape(-1), flat.std(0).reshape(-1)
    space = Space(
        kind="real",
        shape=x.shape[1:],
        rows=len(x),
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
    )
    model = LinearAR(LinearAR.Config(**fields), space).double().eval()
    model.fit(Batch(x))
    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rho", [0.8, -0.5])
def test_ar1_is_recovered_within_two_standard_errors(method, rho):
    x = simulate([rho], 1, 4000, mean=5.0, sigma=0.7)
    model = fitted(x, order=1, method=method)
    assert abs(model.phi[0, 0] - rho) < 2 * model.stderr[0, 0]
    sigma = model.variance[0].sqrt()
    assert abs(sigma - 0.7) < 2 * sigma / math.sqrt(2 * 4000)
    mean = model.intercept[0] / (1 - model.phi[0, 0])
    assert abs(mean - 5) < 3 * 0.7 / (1 - rho) / math.sqrt(4000)
    stated = model.diagnose(Batch(x))[0].sentence
    assert f"{model.phi[0, 0]:.4f} ± {model.stderr[0, 0]:.4f}" in stated


def test_standard_errors_are_those_of_repeated_fits():
    x = simulate([0.6], 200, 100, seed=3)
    each = [fitted(row[None], order=1, method="squares") for row in x]
    spread = torch.stack([model.phi[0, 0] for model in each]).std()
    stated = torch.stack([model.stderr[0, 0] for model in each]).mean()
    assert abs(stated / spread - 1) < 0.2


@pytest.mark.parametrize("method", METHODS)
def test_higher_orders_are_recovered(method):
    phi = step_up(torch.tensor([0.7, -0.4, 0.3], dtype=torch.float64))
    model = fitted(simulate(phi.tolist(), 40, 200, seed=1), order=3, method=method)
    assert (model.phi[0] - phi).abs().max() < 0.05
    assert bool(model.stationary[0])


@pytest.mark.parametrize("criterion", ["aic", "bic"])
def test_the_order_is_found(criterion):
    phi = step_up(torch.tensor([0.5, -0.6], dtype=torch.float64))
    x = simulate(phi.tolist(), 1, 3000, seed=2)
    found = select([x], 10, criterion)
    assert found == 2 if criterion == "bic" else found >= 2
    assert select([simulate([], 1, 3000, seed=2)], 10, "bic") == 0


def test_no_parameters_are_likelier_than_the_maximum():
    x = simulate([0.5, 0.3], 30, 12, seed=4)
    best = maximum_likelihood([x], 2)
    top = log_likelihood(x, best.intercept, best.phi, best.v).sum()
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        move = 0.02 * torch.randn(4, generator=g, dtype=torch.float64)
        other = log_likelihood(
            x, best.intercept + move[0], best.phi + move[1:3], best.v * move[3].exp()
        ).sum()
        assert other < top
    squares = fitted(x, order=2, method="squares")
    assert top > squares.log_prob(Batch(x)).sum() - 1e-9


def test_overlapping_windows_are_one_series():
    x = simulate([0.8], 1, 300, seed=5)
    windows = x[0].unfold(0, 20, 1)[..., None]
    (whole,) = join_windows(windows)
    assert torch.equal(whole[..., 0], x)
    apart = join_windows(torch.cat([windows[:100], windows[150:]]))
    assert [piece.shape[1] for piece in apart] == [119, 150]
    one, many = fitted(x, order=2), fitted(windows[..., 0], order=2)
    torch.testing.assert_close(one.phi, many.phi)
    torch.testing.assert_close(one.stderr, many.stderr)
    other = simulate([0.8], 7, 20)[..., None]
    assert join_windows(other)[0] is other


def test_channels_have_models_of_their_own():
    x = torch.stack([simulate([0.9], 30, 60, seed=6), simulate([-0.4], 30, 60, seed=7)], 2)
    model = fitted(x, order=1, method="likelihood")
    assert (model.phi[:, 0] - torch.tensor([0.9, -0.4])).abs().max() < 0.08
    alone = fitted(x[..., 1], order=1, method="likelihood")
    torch.testing.assert_close(model.phi[1], alone.phi[0], atol=1e-5, rtol=0)
    parts = [
        fitted(x[..., c], order=1, method="likelihood").log_prob(Batch(x[..., c]))
        for c in range(2)
    ]
    torch.testing.assert_close(model.log_prob(Batch(x)), sum(parts), atol=1e-4, rtol=1e-6)


def test_samples_have_the_autocovariance_of_the_model():
    model = fitted(simulate([0.7, -0.3], 60, 50, seed=8), order=2, method="yule_walker")
    x = model.sample(20_000, generator=make_generator(0))
    gamma = autocovariance(model.phi[0], model.variance[0], 3)
    mean = model.intercept[0] / (1 - model.phi[0].sum())
    for lag in range(4):
        found = ((x[:, 10] - mean) * (x[:, 10 + lag] - mean)).mean()
        assert abs(found - gamma[lag]) < 5 * gamma[0] * 2**0.5 / 20_000**0.5


def test_a_forecast_is_the_conditional_distribution():
    """E and Var of the next two values given a prefix, in closed form."""
    x = simulate([0.8], 30, 10, mean=2.0, seed=9)
    model = fitted(x, order=1, method="likelihood")
    rows = x[:1].expand(20_000, -1)
    seen = (torch.arange(10) < 8).expand(20_000, -1)
    samples = model.complete(Batch(rows, observed=seen), generator=make_generator(1))[:, 8:]
    rho, v = model.phi[0, 0], model.variance[0]
    mean = model.intercept[0] / (1 - rho)
    for step in (1, 2):
        aim, spread = mean + rho**step * (x[0, 7] - mean), v * (1 + rho**2 * (step - 1))
        assert abs(samples[:, step - 1].mean() - aim) < 5 * (spread / 20_000).sqrt()
        assert abs(samples[:, step - 1].var() / spread - 1) < 0.06


def test_an_explosive_process_is_diagnosed_as_not_stationary():
    t = torch.arange(60.0, dtype=torch.float64)
    x = (1.05**t)[None] + 0.01 * torch.randn(
        1, 60, generator=make_generator(0), dtype=torch.float64
    )
    model = fitted(x, order=1)
    assert not bool(model.stationary[0])
    assert model.log_prob(Batch(x)).isfinite().all()
    assert model.sample(3, generator=make_generator(0)).isfinite().all()
    assert {finding.name for finding in model.diagnose(Batch(x))} == {
        "estimates",
        "not_stationary",
    }
    calm = fitted(x, order=1, method="yule_walker")
    assert bool(calm.stationary[0])


def test_short_prefixes_are_completed_below_the_order():
    """The conditionals of a step do not depend on how many follow."""
    model = fitted(simulate([0.5, 0.2, 0.1], 40, 12, seed=3), order=3, method="likelihood")
    x = simulate([0.5], 6, 12)[..., None]
    mean, variance = model.conditional_moments(x)
    for steps in range(1, 12):
        early, spread = model.conditional_moments(x[:, :steps])
        torch.testing.assert_close(early, mean[:, :steps])
        torch.testing.assert_close(spread, variance[:steps])


def test_images_and_missing_values_are_refused():
    image = Space(kind="real", shape=(1, 4, 4), rows=9)
    assert "1x4x4" in LinearAR.unsupported_reason(image)
    x = simulate([0.5], 4, 9)
    hidden = torch.ones(4, 9, dtype=torch.bool)
    hidden[:, 3] = False
    with pytest.raises(DataError, match="linear_ar"):
        fitted(x, order=1).log_prob(Batch(x, observed=hidden))
    with pytest.raises(DataError, match=r"linear_ar.*row 0\b.*\b3\b.*\b2\b"):
        fitted(x, order=1).complete(Batch(x, observed=~hidden))


def test_a_series_is_fitted_and_forecast_by_completing(tmp_path):
    x = simulate([0.9], 1, 400, mean=10.0, seed=1)[0].numpy()
    fit = run.fit(
        "linear_ar", x, "data.horizon=5", "data.lookback=20", "order=1", out=tmp_path / "run"
    )
    assert abs(float(fit.model.phi[0, 0]) - 0.9) < 0.1
    table = fit.forecast(8, n=4000)
    steps = np.arange(1, 9)
    rho, mean = float(fit.model.phi[0, 0]), float(fit.model.intercept[0] / (1 - fit.model.phi[0]))
    np.testing.assert_allclose(table["x"], mean + rho**steps * (x[-1] - mean), atol=0.2)
    measured = fit.evaluate()
    assert measured["mse"].value < 1.1 * measured["ar1.mse"].value


def airline(seed=0, steps=132):
    """A positive series that grows in proportion, with a season of 12."""
    g, t = make_generator(seed), torch.arange(float(steps), dtype=torch.float64)
    noise = torch.randn(steps, generator=g, dtype=torch.float64)
    season = torch.randn(12, generator=g, dtype=torch.float64).repeat(steps // 12)
    return (100 * (0.01 * t + 0.15 * season + 0.03 * noise).exp())[None]


def test_the_order_is_selected_by_regression():
    """The Yule-Walker equations see only the trend of this series: order 1 or 2."""
    x = airline().log() + 0.02 * torch.arange(132)
    assert select([x], 24, "bic") >= 12
    assert select([torch.zeros(1, 30, dtype=torch.float64)], 5, "bic") == 0
    assert select([simulate([0.5], 40, 3)], 2, "bic") <= 2


@pytest.mark.parametrize(("times", "season"), [(1, 0), (2, 0), (0, 4), (1, 4)])
def test_differences_are_unit_roots(times, season):
    x = simulate([0.6], 3, 80, seed=2)
    for lag in [1] * times + [season] * (season > 0):
        start = torch.ones(3, lag, dtype=torch.float64)
        out = [*start.unbind(1)]
        for column in x.unbind(1):
            out.append(out[-lag] + column)
        x = torch.stack(out, 1)
    model = fitted(x, order=1, difference=times, season=season, scale="linear")
    plain = fitted(difference(x, times, season), order=1)
    at_one = model.phi[0].sum()
    assert float(at_one) == pytest.approx(1, abs=1e-9)
    assert float(model.variance[0]) == pytest.approx(float(plain.variance[0]), rel=1e-9)
    mean, _ = model.conditional_moments(x[..., None])
    own, _ = plain.conditional_moments(difference(x, times, season)[..., None])
    gaps = difference(x, times, season) - own[..., 0]
    torch.testing.assert_close((x - mean[..., 0])[:, 20:], gaps[:, 20 - times - season :])
    assert model.stderr[0, 0] == pytest.approx(float(plain.stderr[0, 0]), rel=1e-9)


def test_growth_in_proportion_is_modelled_on_the_scale_of_logarithms():
    x = airline()
    model = fitted(x)
    assert float(model.c[0]) > 0
    flat = fitted(x, scale="linear")
    assert float(flat.c[0]) == 0
    windows = x[0].unfold(0, 48, 1)
    model, flat = fitted(windows), fitted(windows, scale="linear")
    assert model.log_prob(Batch(windows)).sum() > flat.log_prob(Batch(windows)).sum()
    steady = fitted(simulate([0.5], 1, 400, mean=9.0))
    assert float(steady.c[0]) == 0


def test_a_density_on_another_scale_integrates_to_one():
    model = fitted(airline()[:, :60].reshape(20, 3), order=1, scale="log")
    grid = torch.linspace(1.0, 2000.0, 200_001, dtype=torch.float64)
    rows = torch.stack([torch.full_like(grid, 150.0), torch.full_like(grid, 160.0), grid], 1)
    last = model.conditionals(Batch(rows))[:, 2]
    assert float(torch.trapezoid(last.exp(), grid)) == pytest.approx(1, abs=1e-3)
    samples = model.complete(
        Batch(rows[:4000], observed=(torch.arange(3) < 2).expand(4000, -1)),
        generator=make_generator(0),
    )[:, 2]
    mean = float(torch.trapezoid(last.exp() * grid, grid))
    assert float(samples.mean()) == pytest.approx(mean, abs=5 * float(samples.std()) / 4000**0.5)


def test_first_values_of_a_growing_series_follow_one_another():
    """A random walk: its second value is near the first, however far its values wander."""
    g = make_generator(4)
    x = torch.randn(200, 30, generator=g, dtype=torch.float64).cumsum(1) + 50
    x = x + 5 * torch.randn(200, 1, generator=g, dtype=torch.float64)
    model = fitted(x, order=2, difference=1, scale="linear")
    mean, variance = model.conditional_moments(x[..., None])
    assert not bool(model.stationary[0])
    assert float(variance[1, 0]) < 2 < float(variance[0, 0])
    assert float((x[:, 1] - mean[:, 1, 0]).square().mean()) < 2


@pytest.mark.parametrize("start", ["mean", "stationary"])
def test_the_start_is_a_setting_and_not_a_run(start, tmp_path):
    x = simulate([0.9], 1, 100, seed=1)[0].numpy()
    fit = run.fit("linear_ar", x, "data.horizon=5", f"start={start}", out=tmp_path / "run")
    assert fit.config.start == start


def test_a_season_longer_than_the_series_is_refused():
    with pytest.raises(UsageError, match="season=12"):
        fitted(simulate([0.5], 4, 9), season=12)


def test_intervals_of_forecasts_hold_their_share_of_values():
    """Of many series as short as those of practice, each with a model of its own."""
    x = simulate([1.2, -0.4], 40, 156)
    found = []
    for row in x:
        model = fitted(row[None, :144], scale="linear", max_order=8)
        path, mean = [*row[:144]], model.intercept[0]
        weights = [torch.ones((), dtype=torch.float64)]
        for _ in range(12):
            past = torch.stack(path[::-1][: model.max_order])
            path.append(mean + (model.phi[0] * past).sum())
            recent = torch.stack(weights[::-1][: model.max_order])
            weights.append((model.phi[0, : len(recent)] * recent).sum())
        spread = (model.variance[0] * torch.stack(weights[:12]).square().cumsum(0)).sqrt()
        found.append((row[144:] - torch.stack(path[144:])).abs() < 1.2816 * spread)
    share = float(torch.stack(found).double().mean())
    assert 0.75 < share < 0.85
