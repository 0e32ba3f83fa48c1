"""Baselines against known results: sums, marginals, conditionals, closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import small_data
import torch
from counted import COUNTED, build, counted, fitted, hide, shares, world

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.baseline.chow_liu import ChowLiuTree
from monge.models.baseline.gaussian import Gaussian
from monge.models.baseline.independent import Independent
from monge.models.baseline.mixture import MixtureModel
from monge.prob.bins import bin_starts


@counted
@pytest.mark.parametrize("kind", ["binary", "levels", "label"])
@pytest.mark.parametrize("steps", [0, 3])
def test_finite_distributions_sum_to_one(config, kind, steps):
    space, batch = world(kind)
    model = fitted(config, space, hide(batch), steps)
    assert model.log_prob(small_data.states(space)).exp().sum().item() == pytest.approx(
        1, abs=1e-12
    )


@counted
@pytest.mark.parametrize("steps", [0, 3])
def test_counts_and_labels_sum_to_one(config, steps):
    cause = torch.rand(500, generator=make_generator(0), dtype=torch.float64)
    number = torch.where(cause < 0.4, 0.0, (200 * cause**3).floor())
    x = torch.stack([number, (3 * cause).floor()], 1)
    columns = (small_data.fitted(Space(kind="counts"), number), Space(kind="label", size=3))
    space = Space(kind="columns", shape=(2,), columns=columns, rows=500)
    model = fitted(config, space, hide(Batch(x)), steps)
    number = torch.arange(-20000.0, 20000.0, dtype=torch.float64)
    total = sum(
        model.log_prob(torch.stack([number, torch.full_like(number, code)], 1)).exp().sum()
        for code in range(3)
    )
    assert float(total) == pytest.approx(1, abs=1e-9)
    assert model.log_prob(torch.tensor([[0.5, 0.0], [3.0, 7.0]]).double()).eq(-math.inf).all()


@counted
@pytest.mark.parametrize("steps", [0, 3])
def test_reals_in_a_table_integrate_to_one(config, steps):
    """Each cell of a real is constant, so the sum over cells is the integral."""
    space, batch = world("columns")
    model = fitted(config, space, hide(batch), steps)
    codes = model.codes if isinstance(model, ChowLiuTree) else model.distributions.codes
    cell = torch.arange(-60000, 60000, dtype=torch.float64) + 0.5
    number = codes.runs.origin + codes.runs.unit * cell
    total = 0.0
    for flag in range(2):
        for name in range(3):
            both = torch.tensor([flag, name], dtype=torch.float64).expand(len(number), 2)
            log_p = model.log_prob(torch.cat([both, number[:, None]], 1))
            total += float((log_p.exp() * codes.runs.unit).sum())
    assert total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("steps", [0, 4])
def test_mixtures_of_normals_integrate_to_one(covariance, steps):
    space, batch = world("real")
    model = fitted(
        MixtureModel.Config(components=3, covariance=covariance), space, hide(batch), steps
    )
    mean, scale = space.statistic("mean").double(), space.statistic("scale").double()
    line = torch.linspace(-12, 12, 601, dtype=torch.float64)
    grid = mean + scale * torch.cartesian_prod(line, line)
    total = model.log_prob(grid).exp().sum() * (line[1] - line[0]) ** 2 * scale.prod()
    assert float(total) == pytest.approx(1, abs=1e-6)


@counted
@pytest.mark.parametrize("kind", ["binary", "levels"])
def test_samples_follow_the_distribution(config, kind):
    space, batch = world(kind)
    model, every = fitted(config, space, batch), small_data.states(space)
    p = model.log_prob(every).exp()
    found = shares(model.sample(20000, generator=make_generator(1)).flatten(1), every.flatten(1))
    assert (found - p).abs().sum() / 2 < 0.02 * len(every) ** 0.5 / 5


@counted
def test_samples_of_numbers_follow_the_distribution(config):
    """The mean of log p over own samples is the negative entropy, summed over all counts."""
    space, batch = world("counts")
    model = fitted(config, space, batch)
    line = torch.arange(-150.0, 150.0, dtype=torch.float64)
    log_p = model.log_prob(torch.cartesian_prod(line, line))
    own = model.log_prob(model.sample(20000, generator=make_generator(2)))
    error = own.std().item() / len(own) ** 0.5
    assert abs(own.mean().item() - (log_p.exp() * log_p).sum().item()) < 4 * error


@counted
@pytest.mark.parametrize("kind", ["binary", "levels"])
def test_hidden_entries_are_summed_out_and_sampled_exactly(config, kind):
    space, batch = world(kind)
    model, every = fitted(config, space, hide(batch)), small_data.states(space)
    x, seen = batch.x[3], torch.rand(space.shape, generator=make_generator(4)) > 0.5
    match = ((every == x) | ~seen).flatten(1).all(1)
    log_p = model.log_prob(every)[match]
    question = Batch(x.expand(20000, *space.shape), observed=seen.expand(20000, *space.shape))
    torch.testing.assert_close(model.log_prob(question[:1])[0], log_p.logsumexp(0))
    samples = model.complete(question, generator=make_generator(5))
    assert torch.equal(samples[:, seen], question.x[:, seen])
    found = shares(samples.flatten(1), every[match].flatten(1))
    assert found.sum().item() == pytest.approx(1)
    assert (found - log_p.softmax(0)).abs().sum() / 2 < 0.02


@counted
def test_what_is_hidden_may_hold_anything(config):
    space, batch = world("columns")
    batch = hide(batch)
    model = fitted(config, space, batch)
    spoilt = replace(batch, x=batch.x.where(batch.observed, math.nan))
    again = fitted(config, space, spoilt)
    assert torch.equal(model.log_prob(batch), again.log_prob(spoilt))
    assert again.complete(spoilt, generator=make_generator(0)).isfinite().all()


@counted
def test_padding_is_no_part_of_the_distribution(config):
    space, batch = world("binary")
    model = fitted(config, space, batch)
    length = torch.randint(0, 6, (len(batch),), generator=make_generator(0))
    inside = torch.arange(5) < length[:, None]
    padded = replace(batch, x=batch.x.where(inside, 7.0), length=length)
    torch.testing.assert_close(
        model.log_prob(padded), model.log_prob(replace(batch, observed=inside))
    )


@pytest.mark.parametrize(
    ("kind", "covariance"),
    [("binary", "full"), ("columns", "full"), ("real", "full"), ("real", "diagonal")],
)
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_em_never_rises(kind, covariance, share):
    space, batch = world(kind)
    torch.manual_seed(1)
    config = MixtureModel.Config(components=5, covariance=covariance)
    model, batch = build(config, space), hide(batch, share)
    values = [
        sum(term.mean().item() for term in model.fit_rows(batch).values()) for _ in range(25)
    ]
    falls = torch.tensor(values).double().diff()
    assert falls.max() <= 1e-12
    assert values[-1] < values[0] - 1e-3


def test_em_of_one_normal_never_rises():
    space, batch = world("real")
    model, batch = build(Gaussian.Config(), space), hide(batch, 0.4)
    values = [
        sum(term.mean().item() for term in model.fit_rows(batch).values()) for _ in range(30)
    ]
    assert torch.tensor(values).double().diff().max() <= 1e-12
    assert values[-2] - values[-1] < 1e-6


def test_components_without_rows_do_no_harm():
    space, _ = world("real")
    same = Batch(torch.ones(20, 2, dtype=torch.float64))
    for covariance in ("full", "diagonal"):
        config = MixtureModel.Config(components=6, covariance=covariance)
        model = fitted(config, space, same, 10)
        assert model.log_prob(same).isfinite().all()
        assert model.sample(50, generator=make_generator(0)).isfinite().all()


def test_a_constant_entry_has_a_density():
    space = Space(kind="real", shape=(2,))
    x = torch.stack(
        [torch.randn(50, generator=make_generator(0)).double(), torch.full((50,), 3.0)], 1
    )
    for config in (Gaussian.Config(), MixtureModel.Config(components=2), Independent.Config()):
        assert fitted(config, space, Batch(x)).log_prob(x).isfinite().all()


@pytest.mark.parametrize("owner", [Independent, Gaussian])
def test_each_label_has_its_own_distribution(owner):
    space, batch = small_data.conditioned(*world("real"))
    model = fitted(owner.Config(), space, batch, 1)
    label = batch.given["label"].x
    for code in range(3):
        mine = batch[label == code]
        swapped = replace(mine, given={"label": Batch(torch.full((len(mine),), (code + 1) % 3))})
        assert model.log_prob(mine).mean() > model.log_prob(swapped).mean() + 0.1
        samples = model.sample(
            4000, {"label": Batch(torch.tensor([code]))}, generator=make_generator(0)
        )
        torch.testing.assert_close(samples.mean(0), mine.x.mean(0), atol=0.05, rtol=0.05)


def test_independent_counts_frequencies():
    space, batch = world("binary")
    model = fitted(Independent.Config(pseudo=0.5), space, batch, 1)
    p = (batch.x.sum(0) + 0.5) / (len(batch) + 1)
    expected = (batch.x * p.log() + (1 - batch.x) * (1 - p).log()).sum(1)
    torch.testing.assert_close(model.log_prob(batch), expected)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("bins", [4, 9, 32])
def test_runs_share_the_values(real, bins):
    """A common count has a run to itself, and no other run holds much more than its share."""
    light = (torch.rand(3000, generator=make_generator(0)) * 1000).floor()
    cells = torch.cat([torch.full((7000,), 20.0), light]).sort().values.double()
    starts = bin_starts(cells, bins, real)
    assert len(starts) < bins
    assert (starts.diff() > 0).all()
    held = torch.searchsorted(starts, cells, right=True).bincount(minlength=len(starts) + 1)
    assert {20.0, 21.0} <= set(starts.tolist()) or bins == 4 or real
    assert held.sort().values[-2] < 4 * 3000 / bins + 20


def test_rounding_is_not_taken_for_density():
    """Reals on a grid: a histogram with a run for each value scores like one, not like atoms."""
    x = (10 * torch.randn(5000, 1, generator=make_generator(0))).round().double() / 10
    space = Space(kind="real", shape=(1,), rows=5000)
    model = fitted(Independent.Config(bins=200), space, Batch(x), 1)
    assert float(model.log_prob(x).mean()) == pytest.approx(-1.42, abs=0.05)


def test_long_ladders_of_levels_are_grouped():
    x = (255 * torch.rand(2000, 1, generator=make_generator(0)) ** 4).floor().double()
    space = Space(kind="levels", shape=(1,), size=256, rows=2000)
    every = torch.arange(256.0, dtype=torch.float64)[:, None]
    for config in COUNTED.values():
        model = fitted(config, space, Batch(x))
        assert float(model.log_prob(every).exp().sum()) == pytest.approx(1, abs=1e-12)
        samples = model.sample(2000, generator=make_generator(1))
        assert samples.min() >= 0
        assert samples.max() <= 255


CONFIGS = {**COUNTED, "gaussian": Gaussian.Config()}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_state_is_all_there_is(config):
    """Weights carried to a new model give the same distribution, and EM continues from them."""
    space, batch = world("columns")
    batch = hide(batch)
    model, other = fitted(config, space, batch, 2), build(config, space)
    other.load_state_dict(model.state_dict())
    for each in (model, other):
        each.fit_rows(batch)
    assert torch.equal(model.log_prob(batch), other.log_prob(batch))
    assert torch.equal(
        model.sample(20, generator=make_generator(0)),
        other.sample(20, generator=make_generator(0)),
    )


def test_float32_agrees_with_float64():
    for kind in ("columns", "counts", "real"):
        space, batch = small_data.make(kind)
        for config in CONFIGS.values():
            torch.manual_seed(0)
            model = config.build(space)
            model.fit_rows(batch)
            single = model.log_prob(batch)
            assert (
                single.dtype == model.sample(3, generator=make_generator(0)).dtype == torch.float32
            )
            double = model.double().log_prob(batch.double())
            torch.testing.assert_close(single.double(), double, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("owner", [Independent, ChowLiuTree, Gaussian, MixtureModel])
def test_defaults_are_built_and_too_many_labels_are_refused(owner):
    space, batch = small_data.make("columns")
    defaults = owner.defaults(space)
    model = defaults.config.build(space)
    assert defaults.train.max_steps >= 1
    assert model.fit_rows(batch)["nll"].isfinite().all()
    assert owner.unsupported_reason(space) is None
    label = Space(kind="label", size=50)
    many = replace(space, given={"a": label, "b": label})
    assert "2500" in owner.unsupported_reason(many)


def test_what_does_not_fit_is_refused():
    image = Space(kind="levels", shape=(1, 28, 28), size=256, rows=60000)
    assert "4096" in ChowLiuTree.unsupported_reason(image)
    with pytest.raises(DataError, match="4096"):
        ChowLiuTree.Config().build(image)
    assert "baseline.chow_liu" in Gaussian.unsupported_reason(Space(kind="label", size=3))
    assert "baseline.mixture" in Gaussian.unsupported_reason(Space(kind="real", shape=(3, 64, 64)))
    with pytest.raises(UsageError, match=r"components=20.*covariance=diagonal"):
        MixtureModel.Config().build(Space(kind="real", shape=(3, 64, 64)))


def test_conditions_must_be_known():
    space, batch = small_data.conditioned(*world("real"))
    model = fitted(Independent.Config(), space, batch, 1)
    with pytest.raises(DataError, match=r"'label'.*0 to 2"):
        model.sample(1, {"label": Batch(torch.tensor([3]))})
    unseen = Batch(torch.tensor([1]), observed=torch.tensor([False]))
    with pytest.raises(DataError, match="'label'"):
        model.sample(1, {"label": unseen})
