"""Rolling out: the product of blocks, sampled by feeding samples back, with any network."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.sequence.direct_forecast import DirectForecast
from monge.models.sequence.recursive_forecast import RecursiveForecast
from monge.run import run
from monge.verify import subjects

PAST = Space(kind="real", shape=(8, 2), name="past", rows=500, mean=(3.0, -1.0), scale=(2.0, 0.5))
SPACE = Space(
    kind="real",
    shape=(6, 2),
    name="future",
    rows=500,
    mean=(3.0, -1.0),
    scale=(2.0, 0.5),
    given={"past": PAST},
)


def built(config, space=SPACE):
    torch.manual_seed(0)
    model = config.build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def question(n=5, space=SPACE):
    return subjects.random_rows(space, n, make_generator(1))


def test_one_block_is_the_direct_forecast():
    direct, rolled = (
        built(DirectForecast.Config(rank=2)),
        built(RecursiveForecast.Config(rank=2, block=6)),
    )
    rolled.load_state_dict(direct.state_dict())
    batch = question()
    torch.testing.assert_close(rolled.log_prob(batch), direct.log_prob(batch))
    assert torch.equal(
        rolled.sample(5, batch.given, generator=make_generator(0)),
        direct.sample(5, batch.given, generator=make_generator(0)),
    )


def test_blocks_divide_the_horizon():
    assert [RecursiveForecast.Config(block=n).build(SPACE).steps for n in (1, 2, 4, 5, 9)] == [
        1,
        2,
        3,
        3,
        6,
    ]


@pytest.mark.parametrize("block", [1, 2, 3])
def test_the_density_is_the_product_of_blocks_given_true_pasts(block):
    model, batch = built(RecursiveForecast.Config(rank=2, block=block)), question()
    one = replace(SPACE, shape=(block, 2))
    step = built(DirectForecast.Config(rank=2), one)
    step.load_state_dict(model.state_dict())
    full, total = torch.cat([batch.given["past"].x, batch.x], 1), 0.0
    for start in range(0, 6, block):
        past = Batch(full[:, start : start + 8])
        total += step.log_prob(Batch(full[:, start + 8 : start + 8 + block], {"past": past}))
    torch.testing.assert_close(model.log_prob(batch), total)


def test_samples_are_fed_back():
    """The second step is that of a first step after the past with the first sample in it."""
    model = built(RecursiveForecast.Config(rank=0))
    past = question(1).given["past"].x.expand(3000, -1, -1)
    x = model.sample(3000, {"past": Batch(past)}, generator=make_generator(2))
    after = Batch(torch.cat([past, x], 1)[:, 1:9])
    one = built(DirectForecast.Config(rank=0), replace(SPACE, shape=(1, 2)))
    one.load_state_dict(model.state_dict())
    below = one.marginals({"past": after}).cumulative(x[:, 1])  # uniform if the model is right
    assert (below.mean(0) - 0.5).abs().max() < 5 * (1 / 12) ** 0.5 / 3000**0.5
    blind = one.marginals({"past": Batch(past)}).cumulative(x[:, 1])
    assert (blind.var(0) - 1 / 12).abs().max() > 3 * (below.var(0) - 1 / 12).abs().max()


def test_the_loss_is_that_of_all_blocks_in_the_mean():
    model, batch = built(RecursiveForecast.Config(rank=2, block=2, fit="likelihood")), question(2)
    many = Batch(
        batch.x.repeat(3000, 1, 1), {"past": Batch(batch.given["past"].x.repeat(3000, 1, 1))}
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        terms = model.loss(many)["nll"].reshape(3000, 2).detach()
    error = terms.std(0) / 3000**0.5
    assert ((terms.mean(0) + model.log_prob(batch)).abs() < 4 * error).all()


@pytest.mark.parametrize("net", ["recurrence", "convolution", "attention", "layers", "dlinear"])
def test_any_network_is_rolled_out(net):
    model, batch = (
        built(RecursiveForecast.Config(rank=1, block=3).override(f"net={net}")),
        question(3),
    )
    assert model.log_prob(batch).isfinite().all()
    assert model.sample(3, batch.given, generator=make_generator(0)).shape == (3, 6, 2)
    assert all(term.isfinite().all() for term in model.loss(batch).values())


def test_a_series_is_rolled_out(tmp_path):
    x = 4 * np.sin(2 * np.pi * np.arange(150) / 8)
    x += 0.2 * np.random.default_rng(0).normal(size=150)
    fit = run.fit(
        "recursive_forecast",
        x,
        "net=nlinear",
        "data.horizon=4",
        "data.lookback=16",
        "block=2",
        budget="5steps",
        out=tmp_path / "run",
    )
    rows = fit.split().whole()
    mean = (
        fit.model.sample(
            50 * len(rows),
            {"past": Batch(rows.given["past"].x.repeat(50, 1))},
            generator=make_generator(0),
        )
        .reshape(50, len(rows), 4)
        .mean(0)
    )
    assert (mean - rows.x).square().mean() < 0.05 * rows.x.var()
    assert len(fit.forecast(10, n=20)) == 10
