"""Diffusion on tables: names, counts, numbers with atoms and bounds, and empty cells."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._units import EmbeddedRowUnits
from monge.models.diffusion.ddpm import DDPM
from monge.models.diffusion.score_sde import ScoreSDE
from monge.models.diffusion.vdm import VDM

MODELS = (DDPM, VDM, ScoreSDE)
NAME, FLAG, COUNT, AMOUNT = range(4)


def statistics(x: Tensor) -> dict[str, tuple[float, ...]]:
    x = x[~x.isnan()].double()
    values = {"mean": x.mean(), "scale": x.std(), "low": x.min(), "high": x.max()}
    return {name: (float(value),) for name, value in values.items()}


def table(n: int = 1500, dependent: bool = False) -> tuple[Space, Batch]:
    """A name that may be empty, a flag, a count that may be empty, and an amount that is often 0
    and may be empty, which where `dependent` is so where the count is; the flag then follows
    the name."""
    g = torch.Generator().manual_seed(3)
    uniform = torch.rand(6, n, generator=g)
    name = (3 * uniform[0] ** 2).floor()  # 3 codes, the last of which is empty
    count = (7 * uniform[1] ** 3).floor()
    count[uniform[2] < 0.2] = torch.nan
    amount = torch.exp(0.8 * torch.randn(n, generator=g))
    amount[uniform[3] < 0.3] = 0.0
    amount[count.isnan() if dependent else uniform[4] < 0.25] = torch.nan
    flag = (name == 1 if dependent else uniform[5] < 0.3).float()
    columns = (
        Space(kind="label", size=3, optional=True, name="name", rows=n),
        Space(kind="binary", name="flag", rows=n, **statistics(flag)),
        Space(kind="counts", optional=True, lower=0.0, name="count", rows=n, **statistics(count)),
        Space(
            kind="real",
            optional=True,
            atoms=(0.0,),
            lower=0.0,
            name="amount",
            rows=n,
            **statistics(amount),
        ),
    )
    x = torch.stack([name, flag, count, amount], 1)
    space = Space(kind="columns", shape=(4,), columns=columns, name="row", rows=n)
    return space, Batch(x.double())


def build(model_class, space: Space, batch: Batch):
    torch.manual_seed(0)
    model = model_class.smallest_config(space).build(space).double()
    model.initialise_from_data(batch)
    return model.eval()


def independent(model, x: Tensor) -> Tensor:
    """log p(x) of the model of independent columns that a network of zeros stands for, (B,)."""
    rows = model.units.rows
    cells = rows.components_of(x)
    number = rows.numbers(x, cells)[0]
    here = cells[:, rows.reals] == rows.number_components
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(number)
    return rows.log_share[cells].sum(1) + torch.where(here, normal, 0.0).sum(1) + rows.detail(x)


def holes(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1] == 2, x[:, 1:].isnan()], 1)


@pytest.mark.parametrize("deviation", [0.05, 0.7])
def test_the_last_step_sums_to_one(deviation):
    space, batch = table()
    batch = batch[batch.x[:, AMOUNT] > 0]
    units = EmbeddedRowUnits(space).double()
    units.fit(batch.x)
    base = batch.x[:1]
    mean = units.to_units(base) + 0.3

    def probability(x: Tensor) -> Tensor:
        value = units.log_prob(units.to_units(x), mean, torch.tensor(deviation).double())
        return (value + units.detail(x)).exp()

    def with_values(column: int, values: Tensor) -> Tensor:
        x = base.repeat(len(values), 1)
        x[:, column] = values
        return probability(x)

    # Columns are independent given z_0, so that the sum over rows is a product over columns.
    amounts = torch.logspace(-6, 2, 20_001, dtype=torch.float64)
    empty = torch.tensor([torch.nan]).double()
    sums = [
        with_values(NAME, torch.arange(3).double()).sum(),
        with_values(FLAG, torch.arange(2).double()).sum(),
        with_values(COUNT, torch.cat([torch.arange(400).double(), empty])).sum(),
        with_values(AMOUNT, torch.cat([torch.zeros(1).double(), empty])).sum()
        + torch.trapezoid(with_values(AMOUNT, amounts), amounts),
    ]
    own = probability(base)
    everything = own * torch.stack([part / own for part in sums]).prod()
    assert everything.item() == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize("model_class", [DDPM, ScoreSDE])
def test_what_is_empty_is_decided_first_and_by_its_rate(model_class):
    """Whatever the network says: where only noise is left, cells are empty as often as in training
    rows, and where names are not yet resolved, whether a cell is empty is."""
    space, batch = table()
    config = replace(model_class.smallest_config(space), optional_first=True)
    torch.manual_seed(0)
    model = config.build(space).double().eval()
    model.initialise_from_data(batch)
    with torch.no_grad():
        for param in model.net.parameters():
            param.add_(0.5 * torch.randn_like(param))
    rows, n = model.units.rows, 500
    y, share = model.units.to_units(batch.x[:n]), rows.log_share.exp()
    noise = torch.randn(n, rows.width, generator=make_generator(0)).double()

    def probabilities(log_snr: float) -> Tensor:
        level = torch.full((n,), log_snr).double()
        conditions = model.condition_encoder.empty(n)
        with torch.no_grad():
            return model.predict_noised(y, noise, level, conditions).components

    far = (probabilities(-24.0) - share).abs().amax(0)
    optional = rows.in_optional
    assert float(far[optional].max()) < 0.02
    assert float(far[~optional].max()) > 0.2
    names = rows.column == NAME
    sure = probabilities(-1.0)[:, names][:, -1]
    truth = batch.x[:n, NAME] == 2
    assert float(((sure > 0.5) == truth).double().mean()) > 0.97


def test_drawn_rows_have_the_probabilities_and_the_numbers_of_the_estimate():
    space, batch = table()
    units = EmbeddedRowUnits(space, optional_first=True).double()
    units.fit(batch.x)
    n, rows = 20_000, units.rows
    logits = 0.5 * torch.randn(rows.components, generator=make_generator(1)).double()
    p = rows.softmax((logits + rows.log_share)[None]).expand(n, -1)
    number = int(rows.number_components[0])
    x0 = (p @ rows.points).index_fill(1, rows.number_axes, 0.4 * float(p[0, number]))
    y = units.draw(x0, p, torch.randn(n, rows.width, generator=make_generator(2)).double())
    cells = rows.nearest(y)
    found = torch.zeros(rows.components).double()
    found.index_add_(0, cells.flatten(), torch.ones(cells.numel()).double())
    error = (p[0] * (1 - p[0]) / n).sqrt()
    assert bool(((found / n - p[0]).abs() <= 5 * error).all())
    here = cells[:, AMOUNT] == number
    values = y[here][:, rows.number_axes[0]]
    torch.testing.assert_close(values, torch.full_like(values, 0.4), rtol=1e-4, atol=1e-4)
    assert not y[~here][:, rows.number_axes[0]].any()


@pytest.mark.parametrize("model_class", MODELS)
def test_a_network_of_zeros_is_the_model_of_independent_columns(model_class):
    space, batch = table()
    model = build(model_class, space, batch)
    rows = batch[:100]
    found = model.likelihood(
        rows, model.LikelihoodConfig().override("samples=200"), make_generator(0)
    )
    assert found.kind == "bound"
    error = found.value - independent(model, rows.x)
    chance = error.std() / len(error) ** 0.5
    assert chance < 0.1
    assert error.mean().abs() < 4 * chance


def test_the_probability_flow_agrees_with_the_bound():
    space, batch = table()
    model, rows = build(DDPM, space, batch), batch[:6]
    options = model.LikelihoodConfig().override("method=ode", "tolerance=1e-4", "trace=exact")
    found = model.likelihood(rows, options, make_generator(0)).value
    torch.testing.assert_close(found, independent(model, rows.x), atol=0.05, rtol=0)


def test_the_bound_of_dependent_columns_sums_to_at_most_one():
    """With random weights no row may take more than the others leave."""
    n = 400
    g = torch.Generator().manual_seed(0)
    x = torch.stack(
        [(3 * torch.rand(n, generator=g)).floor(), (3 * torch.rand(n, generator=g)).floor()], 1
    )
    x[x[:, 1] == 2, 1] = torch.nan
    columns = (
        Space(kind="label", size=3, optional=True, name="a", rows=n),
        Space(kind="counts", lower=0.0, upper=1.0, optional=True, name="b", rows=n),
    )
    space = Space(kind="columns", shape=(2,), columns=columns, rows=n)
    model = build(DDPM, space, Batch(x.double()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    rows = torch.tensor(list(itertools.product(range(3), [0.0, 1.0, torch.nan]))).double()
    found = model.likelihood(
        Batch(rows), model.LikelihoodConfig().override("samples=800"), make_generator(1)
    )
    assert 0.3 < found.value.exp().sum().item() < 1 + 5 * found.stderr.max().item()


@pytest.mark.parametrize("model_class", MODELS)
def test_samples_have_holes_atoms_and_bounds_at_the_right_rate(model_class):
    space, batch = table()
    model = build(model_class, space, batch)
    x = model.sample(800, generator=make_generator(0))
    error = 4 * 0.5 * (1 / 800) ** 0.5
    assert (holes(x).double().mean(0) - holes(batch.x).double().mean(0)).abs().max() < error
    assert ((x == 0).double().mean(0) - (batch.x == 0).double().mean(0)).abs().max() < error
    present = x[~x.isnan()]
    assert present.min() >= 0
    counts = x[:, COUNT][~x[:, COUNT].isnan()]
    assert torch.equal(counts, counts.round())
    for column in (COUNT, AMOUNT):
        ours, data = (t[:, column][~t[:, column].isnan()] for t in (x, batch.x))
        levels = torch.tensor([0.5, 0.75, 0.9]).double()
        below = [(ours <= value).double().mean().item() for value in data.quantile(levels)]
        wanted = [(data <= value).double().mean().item() for value in data.quantile(levels)]
        assert max(abs(a - b) for a, b in zip(below, wanted, strict=True)) < 0.08


def test_a_prediction_is_the_mean_given_the_own_noisy_cell():
    """By integrating over the numbers, of which those that are none are 0."""
    space, batch = table()
    model = build(DDPM, space, batch)
    rows = model.units.rows
    g = torch.Generator().manual_seed(1)
    z = torch.randn(5, rows.width, generator=g).double()
    for level in (-2.0, 1.0, 4.0):
        log_snr = torch.full((5,), level).double()
        alpha, sigma = log_snr.sigmoid().sqrt()[0], (-log_snr).sigmoid().sqrt()[0]
        found = model.predict_at(z, log_snr).x0
        axes = (rows.axis_column == AMOUNT).nonzero()[:, 0]  # the number, then the states
        points = rows.points[rows.column == AMOUNT][:, axes]
        share = rows.log_share[rows.column == AMOUNT].exp()
        y = torch.linspace(-9, 9, 4001, dtype=torch.float64)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(y).exp() * (y[1] - y[0])
        values = torch.cat([points[:1].expand(len(y), -1), points[1:]])
        values = torch.cat([torch.cat([y, torch.zeros(2)])[:, None], values[:, 1:]], 1)
        weight = torch.cat([share[0] * prior, share[1:]])
        apart = ((z[:, None, axes] - alpha * values) / sigma).square().sum(-1)
        posterior = (weight.log() - 0.5 * apart).softmax(1)
        torch.testing.assert_close(found[:, axes], posterior @ values, atol=1e-6, rtol=1e-6)


def fitted(space: Space, batch: Batch) -> DDPM:
    """A small model after a few hundred steps."""
    model = build(DDPM, space, batch).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(400):
        rows = (torch.arange(128) + 128 * step) % len(batch)
        optimiser.zero_grad()
        sum(term.mean() for term in model.loss(batch[rows]).values()).backward()
        optimiser.step()
    return model.eval()


def test_holes_keep_company_and_completion_reads_the_other_cells():
    space, batch = table(dependent=True)
    model = fitted(space, batch)
    x = model.sample(800, generator=make_generator(0))
    apart = x[:, COUNT].isnan() != x[:, AMOUNT].isnan()
    assert apart.double().mean() < 0.06  # 0.32 if they were independent
    rows = batch[:150]
    rows = rows[rows.x[:, NAME] < 2]
    observed = torch.ones_like(rows.x, dtype=torch.bool)
    observed[:, NAME] = False
    found = model.complete(replace(rows, observed=observed), generator=make_generator(1))
    right = (found[:, NAME] == rows.x[:, NAME]).double().mean()
    assert right > 0.9  # 0.71 by the most frequent name


@pytest.mark.parametrize("model_class", MODELS)
def test_completion_fills_unknown_cells_and_leaves_empty_ones(model_class):
    space, batch = table()
    model, rows = build(model_class, space, batch), batch[:80]
    observed = torch.rand(rows.x.shape, generator=make_generator(2)) < 0.5
    unknown = replace(rows, x=torch.where(observed, rows.x, torch.nan), observed=observed)
    if model_class is DDPM:  # what stands in unknown cells must not matter
        unknown = replace(unknown, x=torch.where(observed, rows.x, 99.0))
    x = model.complete(unknown, generator=make_generator(3))
    assert torch.equal(x[observed].nan_to_num(-1), rows.x[observed].nan_to_num(-1))
    assert (holes(x) & ~observed).sum() == 0
    assert (holes(rows.x) & observed).any(0)[[NAME, COUNT, AMOUNT]].all()


def test_what_is_learned_before_the_first_step_is_saved():
    space, batch = table()
    model = build(DDPM, space, batch)
    again = DDPM.smallest_config(space).build(space).double()
    again.load_state_dict(model.state_dict())
    again.eval()
    ours, theirs = (
        m.likelihood(batch[:20], generator=make_generator(0)).value for m in (model, again)
    )
    assert torch.equal(ours, theirs)
    assert torch.equal(
        model.sample(20, generator=make_generator(1)).nan_to_num(-1),
        again.sample(20, generator=make_generator(1)).nan_to_num(-1),
    )


def test_values_outside_the_support_are_refused():
    space, batch = table()
    model = build(DDPM, space, batch)
    for column, value in ((FLAG, torch.nan), (FLAG, 2.0), (NAME, 3.0)):
        x = batch.x[:3].clone()
        x[1, column] = value
        with pytest.raises(DataError, match=space.columns[column].name):
            model.likelihood(Batch(x))
    with pytest.raises(UsageError, match="columns"):
        model.score(batch[:3])
    with pytest.raises(UsageError, match="noise"):
        model.complete(batch[:3], model.SamplingConfig().override("noise=0.5"))
    edited = model.complete(batch[:3], model.SamplingConfig().override("edit=0.2"))
    assert edited.shape == (3, 4)


def test_very_many_names_have_points_of_few_dimensions():
    names = Space(kind="label", size=500, name="name", rows=500)
    units = EmbeddedRowUnits(
        Space(kind="columns", shape=(1,), columns=(names,), rows=500)
    ).double()
    codes = torch.arange(500)[:, None].double()
    units.fit(codes)
    y = units.to_units(codes)
    assert y.shape[1] == 64
    assert torch.equal(units.to_data(y), codes)
    apart = torch.pdist(y)
    assert apart.min() > 1
