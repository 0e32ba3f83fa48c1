"""Forecasts: the closed-form mean, the joint distribution and its marginals, networks, errors."""

import numpy as np
import pandas as pd
import pytest
import torch

from monge import registry
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.data import loading as data
from monge.models.sequence.direct_forecast import DirectForecast
from monge.nn import forecasters
from monge.prob.copula import GaussianCopula, SinhArcsinhMargins
from monge.run import run
from monge.train.trainer import Trainer
from monge.verify import subjects
from monge.verify.framework import hold, identities

PAST = Space(kind="real", shape=(12, 2), name="past", rows=500, mean=(3.0, -1.0), scale=(2.0, 0.5))
SPACE = Space(
    kind="real",
    shape=(3, 2),
    name="future",
    rows=500,
    mean=(3.0, -1.0),
    scale=(2.0, 0.5),
    given={"past": PAST},
)
NETS = ("nlinear", "dlinear", "layers", "recurrence", "convolution", "attention")


def wave(n=600, seed=0):
    """A series of two channels, (n, 2)."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    clean = np.stack([np.sin(2 * np.pi * t / 12), np.cos(2 * np.pi * t / 12)], 1)
    return 5 * clean + rng.normal(size=(n, 2)) * [0.3, 1.0]


def windows(x, lookback, horizon):
    every = torch.from_numpy(x).unfold(0, lookback + horizon, 1).mT  # (N, L + H, C)
    return every[:, :lookback], every[:, lookback:]


def built(net="nlinear", space=SPACE, *settings):
    torch.manual_seed(0)
    config = DirectForecast.Config(rank=2).override(f"net={net}", *settings)
    model = config.build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def question(n=5, seed=1, space=SPACE):
    return subjects.random_rows(space, n, make_generator(seed))


@pytest.mark.parametrize("net", NETS)
def test_every_network_gives_a_distribution(net):
    model, batch = built(net), question()
    assert model.log_prob(batch).shape == (5,)
    x = model.sample(5, batch.given, generator=make_generator(0))
    assert x.shape == (5, 3, 2)
    again = DirectForecast.Config.from_dict(model.config.to_dict())
    assert again == model.config


def test_it_integrates_to_one():
    one = Space(
        kind="real",
        shape=(2,),
        mean=(1.0,),
        scale=(2.0,),
        low=(-5.0,),
        high=(7.0,),
        rows=50,
        given={"past": Space(kind="real", shape=(4,), rows=50)},
    )
    subject = subjects.Subject("direct_forecast", built("nlinear", one), question(8, space=one))
    rows = [
        row
        for each in identities()
        if each.needs and each.listing.id == "X50"
        for row in hold(each, [subject], every=True)
    ]
    assert [row for row in rows if row.passed]
    assert not [row for row in rows if row.passed is False]


def test_the_density_is_that_of_the_change_of_variables():
    """log p(x) against the autograd Jacobian of the map from normal scores."""
    model, batch = built(), question(1)
    centre, spread = model.read(batch.given)
    own, causes = model.dependence.parts
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(6).double(), own.diag() + causes @ causes.mT
    )

    def event(z):
        r = model.margins.inverse(z[None]).reshape(centre.shape)
        return model.frame.outside(centre + spread.exp() * r).flatten()

    z = torch.randn(6, generator=make_generator(4), dtype=torch.float64)
    slopes = torch.autograd.functional.jacobian(event, z)
    expected = normal.log_prob(z) - torch.linalg.slogdet(slopes)[1]
    x = event(z).reshape(1, 3, 2)
    torch.testing.assert_close(model.log_prob(Batch(x, batch.given))[0], expected)


def test_quantiles_invert_the_cumulative_and_are_those_of_samples():
    model, batch = built(), question(1)
    distribution = model.marginals(batch.given)
    x = model.sample(20_000, batch.given, generator=make_generator(2)).flatten(1)
    for level in (0.1, 0.5, 0.9):
        t = distribution.quantile(level)
        torch.testing.assert_close(distribution.cumulative(t), torch.full((1, 6), level).double())
        assert ((x <= t).double().mean(0) - level).abs().max() < 5 * 0.5 / 20_000**0.5
    torch.testing.assert_close(distribution.quantile(0.5), model.mean(batch.given).flatten(1))


def test_samples_are_correlated_as_in_the_copula():
    torch.manual_seed(0)
    copula = GaussianCopula(6, 2).double()
    copula.raw.data.normal_()
    own, causes = copula.parts
    expected = own.diag() + causes @ causes.mT
    torch.testing.assert_close(expected.diagonal(), torch.ones(6).double())
    z = copula.sample(40_000, expected, make_generator(0))
    assert (torch.corrcoef(z.T) - expected).abs().max() < 0.03
    distribution = torch.distributions.MultivariateNormal(torch.zeros(6).double(), expected)
    alone = torch.distributions.Normal(0.0, 1.0).log_prob(z[:9]).sum(1)
    torch.testing.assert_close(copula.log_density(z[:9]), distribution.log_prob(z[:9]) - alone)


def test_margins_begin_calibrated_and_with_the_right_tails():
    g = make_generator(0)
    heavy = torch.distributions.StudentT(3.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        r = torch.stack([heavy.sample((4000,)), torch.randn(4000, generator=g)], 1).double()
    margins = SinhArcsinhMargins(torch.arange(2)).double()
    margins.fit(r)
    z, _ = margins(r)
    inside = (z.abs() < 1.2816).double().mean(0)
    assert (inside - 0.8).abs().max() < 0.01
    assert margins.delta[0] < 0.85 < margins.delta[1]
    torch.testing.assert_close(margins.inverse(z), r)


def test_the_linear_map_is_ridge_regression():
    past, future = windows(wave(), 24, 6)
    net = forecasters.NLinear.Config(ridge=1e-2).build(24, 6, 2).double()
    net.solve(past, future)
    last = past[:, -1:]
    a = torch.cat([(past - last).mT.reshape(-1, 24), torch.ones(2 * len(past), 1)], 1).double()
    y = (future - last).mT.reshape(-1, 6)
    penalty = 1e-2 * (a * a).sum() / 25
    expected = torch.linalg.solve(a.mT @ a + penalty * torch.eye(25).double(), a.mT @ y)
    torch.testing.assert_close(net.weight[0], expected)
    grid = forecasters.NLinear.Config(shared=False).build(24, 6, 2).double()
    excess = grid.solve(past, future)
    assert (excess >= 1).all()
    errors = [(one(past) - future).square().mean() for one in (net, grid)]
    assert max(errors) < 1.0


def test_few_windows_make_errors_to_come_larger():
    """White noise cannot be forecast: errors of windows that were fitted are too small."""
    g = make_generator(0)
    past, future = windows(torch.randn(70, 1, generator=g).double().numpy(), 30, 2)
    net = forecasters.NLinear.Config(ridge=1e-3).build(30, 2, 1).double()
    excess = net.solve(past, future)
    assert float(excess[0]) > 1.3
    long = windows(torch.randn(4000, 1, generator=g).double().numpy(), 4, 2)
    assert float(forecasters.NLinear.Config().build(4, 2, 1).double().solve(*long)[0]) < 1.02


@pytest.mark.parametrize("net", ["nlinear", "dlinear"])
def test_a_solved_map_is_not_trained_and_a_trained_one_is(net):
    solved = built(net)
    assert not solved.net.weight.requires_grad
    trained = built(net, SPACE, "net.solve=false")
    assert trained.net.weight.requires_grad
    before = trained.net.weight.clone()
    excess = trained.net.solve(question().given["past"].x, question().x)
    assert torch.equal(before, trained.net.weight)
    assert torch.equal(excess, torch.ones(2).double())


def test_parts_are_trained_apart_unless_the_likelihood_is_asked_for():
    batch = question()
    model = built("layers")
    terms = model.loss(batch)
    assert set(terms) == {"squared_error", "margins", "dependence"}
    terms["margins"].sum().backward(retain_graph=True)
    assert all(p.grad is None for p in model.net.parameters())
    assert model.dependence.raw.grad is None
    assert model.margins.log_scale.grad is not None
    terms["dependence"].sum().backward()
    assert model.dependence.raw.grad is not None
    joint = built("layers", SPACE, "fit=likelihood")
    torch.testing.assert_close(joint.loss(batch)["nll"], -joint.log_prob(batch))
    torch.testing.assert_close(-(terms["margins"] + terms["dependence"]), model.log_prob(batch))


def test_what_is_known_beforehand_moves_the_mean():
    """A channel that the known column determines, and its own past does not."""
    rng = np.random.default_rng(0)
    price = rng.normal(size=300)
    times = pd.date_range("2020-01-01", periods=300, freq="D").strftime("%Y-%m-%d")
    table = pd.DataFrame(
        {"day": times, "y": 3 * price + 0.1 * rng.normal(size=300), "price": price}
    )
    source = data.open(table, "known=price", "horizon=3", "lookback=7")
    view = source.view(target="future")
    config = DirectForecast.smallest_config(view.space).override("net=dlinear", "net.kernel=3")
    trainer = Trainer(config.build(view.space), view.training(), TrainConfig(lr=1e-3))
    trainer.train_step(1.0)
    rows, model = view.split("test").whole(), trainer.model.eval()
    assert (model.mean(rows.given) - rows.x).square().mean() < 0.2 * rows.x.var()
    still = {**rows.given, "known": Batch(torch.zeros_like(rows.given["known"].x))}
    assert (model.mean(still) - rows.x).square().mean() > 0.5 * rows.x.var()


def test_a_season_is_forecast_better_than_by_repeating_it(tmp_path):
    fit = run.fit(
        "direct_forecast",
        wave(400),
        "data.horizon=6",
        "data.lookback=24",
        "data.season=12",
        budget="40steps",
        out=tmp_path / "run",
    )
    measured = fit.evaluate()
    assert measured["mse"].value < 0.8 * measured["seasonal_naive.mse"].value
    assert measured["crps"].value < measured["seasonal_naive.crps"].value
    assert measured["crps"].value < measured["mae"].value
    assert abs(measured["coverage_0.8"].value - 0.8) < 0.08
    assert measured["mse"].unit == "standardised"
    kept = run.load(tmp_path / "run").model
    batch = fit.split().whole()
    torch.testing.assert_close(kept.log_prob(batch), fit.model.log_prob(batch))


def test_what_is_no_future_of_a_past_is_refused():
    assert "data.horizon" in DirectForecast.unsupported_reason(
        Space(kind="real", shape=(4,), rows=9)
    )
    odd = Space(kind="real", shape=(4, 3), rows=9, given={"past": PAST})
    assert "channels of its future" in DirectForecast.unsupported_reason(odd)
    with pytest.raises(DataError, match=r"\btime\b.*data\.horizon"):
        run.start(
            "direct_forecast", data.open(wave(), "horizon=3"), event="future", given=["time"]
        )
    model, batch = built(), question()
    hidden = torch.ones(5, 12, 2, dtype=torch.bool)
    hidden[0, 0] = False
    with pytest.raises(DataError, match=r"data\.gaps=fill"):
        model.mean({"past": Batch(batch.given["past"].x, observed=hidden)})


def test_it_is_listed():
    entry = registry.entry("direct_forecast")
    assert entry.is_predictor
    assert {"mean", "predict", "mode", "sample", "log-likelihood"} <= set(entry.abilities)
