"""Closed-form models of tables with empty cells, atoms and bounds."""

from __future__ import annotations

import pytest
import torch
from counted import fitted
from mixed_table import (
    COUNT,
    DISCRETE,
    FLAG,
    NAME,
    REALS,
    SHARE,
    WEIGHT,
    completion_error,
    discrete_rows,
    questions,
    real_rows,
    table,
    total,
)

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.models.autoregressive.count_table import CountTable
from monge.models.baseline.chow_liu import ChowLiuTree
from monge.models.baseline.gaussian import Gaussian
from monge.models.baseline.independent import Independent
from monge.models.baseline.mixture import MixtureModel

TABLES = {
    "independent": Independent.Config(bins=8),
    "chow_liu": ChowLiuTree.Config(bins=8),
    "mixture": MixtureModel.Config(components=3, bins=8),
    "count_table": CountTable.Config(bins=8),
}
tables = pytest.mark.parametrize("config", TABLES.values(), ids=TABLES)
GAUSSIANS = {
    "gaussian": Gaussian.Config(),
    "full": MixtureModel.Config(components=2),
    "diagonal": MixtureModel.Config(components=2, covariance="diagonal"),
}


@tables
@pytest.mark.parametrize("steps", [0, 2])
def test_discrete_tables_sum_to_one(config, steps):
    model = fitted(config, DISCRETE, Batch(discrete_rows()), steps)
    assert total(model, DISCRETE) == pytest.approx(1, abs=1e-9)


@tables
@pytest.mark.parametrize("steps", [0, 2])
def test_histograms_of_bounded_numbers_integrate_to_one(config, steps):
    space = table(SHARE, FLAG)
    x = torch.stack([real_rows()[:, 0], discrete_rows()[:, 1]], 1)
    model = fitted(config, space, Batch(x), steps)
    assert total(model, space) == pytest.approx(1, abs=1e-6)  # atoms are stored in float32


@pytest.mark.parametrize("config", GAUSSIANS.values(), ids=GAUSSIANS)
def test_gaussians_integrate_to_one(config):
    model = fitted(config, REALS, Batch(real_rows()), 20)
    assert total(model, REALS, 700) == pytest.approx(1, abs=1e-4)


def test_a_gaussian_of_whole_numbers_is_a_bound():
    model = fitted(Gaussian.Config(), DISCRETE, Batch(discrete_rows()), 5)
    assert 0.5 < total(model, DISCRETE) <= 1


@tables
def test_completions_follow_the_conditional_given_present(config):
    model = fitted(config, DISCRETE, Batch(discrete_rows()), 5)
    for row, hidden in questions():
        assert completion_error(model, DISCRETE, row, hidden, 4000) < 5


@pytest.mark.parametrize("config", GAUSSIANS.values(), ids=GAUSSIANS)
def test_the_share_of_atoms_in_completions(config):
    """The state of a hidden cell follows that of the others, and the atom keeps its value."""
    model = fitted(config, REALS, Batch(real_rows()), 20)
    n = 20_000
    for known in (torch.nan, 0.0, 0.6):
        x = torch.tensor([known, torch.nan], dtype=torch.float64).expand(n, 2)
        seen = torch.tensor([True, False]).expand(n, 2)
        done = model.complete(Batch(x, observed=seen), generator=make_generator(0))[:, 1]
        assert not bool(done.isnan().any())
        grid = torch.linspace(-40, 40, 20_001, dtype=torch.float64)
        every = torch.cat([grid, torch.tensor([7.0], dtype=torch.float64)])
        log_p = model.log_prob(torch.stack([torch.full_like(every, known), every], 1))
        weight = log_p.exp() * torch.where(torch.arange(len(every)) < len(grid), 80 / 20_000, 1)
        due = weight / weight.sum()
        assert (done == 7.0).double().mean().item() == pytest.approx(float(due[-1]), abs=0.015)
        mean = float((due * every).sum())
        assert done.mean().item() == pytest.approx(mean, abs=4 * done.std().item() / n**0.5)


@pytest.mark.parametrize(
    "config", [*TABLES.values(), *GAUSSIANS.values()], ids=[*TABLES, *GAUSSIANS]
)
def test_samples_have_the_empty_cells_atoms_and_bounds_of_the_rows(config):
    rows = real_rows(4000)
    model = fitted(config, REALS, Batch(rows), 30)
    x = model.sample(8000, generator=make_generator(0))
    share = x[:, 0][~x[:, 0].isnan()]
    assert bool(((share >= 0) & (share <= 1)).all())
    assert x.isnan().double().mean(0).tolist() == pytest.approx(
        rows.isnan().double().mean(0).tolist(), abs=0.02
    )
    for column, atom in enumerate((0.0, 7.0)):
        due = (rows[:, column] == atom).double().mean().item()
        assert (x[:, column] == atom).double().mean().item() == pytest.approx(due, abs=0.02)
    if not isinstance(model, Independent):
        both = x.isnan().all(1).double().mean().item()
        assert both == pytest.approx(rows.isnan().all(1).double().mean().item(), abs=0.03)


def test_whole_samples_of_a_gaussian_stay_within_bounds():
    space = table(NAME, FLAG, COUNT, WEIGHT)
    x = torch.cat([discrete_rows(), real_rows()[:, 1:]], 1)
    model = fitted(Gaussian.Config(), space, Batch(x), 5)
    done = model.sample(4000, generator=make_generator(0))[:, 2]
    done = done[~done.isnan()]
    assert bool(((done >= 0) & (done <= 4) & (done == done.floor())).all())


@tables
def test_unknown_cells_may_be_empty(config):
    """A likelihood sums over all values of an unknown cell, the empty one included."""
    if isinstance(config, CountTable.Config):
        pytest.skip("count_table refuses unknown cells")
    model = fitted(config, DISCRETE, Batch(discrete_rows()), 3)
    counts = torch.tensor([0.0, 1, 2, 3, 4, torch.nan], dtype=torch.float64)
    whole = torch.stack([torch.ones(6).double(), torch.zeros(6).double(), counts], 1)
    seen = torch.tensor([[True, True, False]])
    unknown = model.log_prob(Batch(whole[:1], observed=seen))
    assert unknown.item() == pytest.approx(model.log_prob(whole).logsumexp(0).item(), abs=1e-9)
