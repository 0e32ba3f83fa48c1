"""Flows on tables: names, counts, atoms, bounds and empty cells."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from monge import registry
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.flow._tables import TableUnits
from monge.nn.autoregressive.masked_mlp import MaskedMLP

FLOWS = ("coupling", "maf", "iaf", "cnf")
NAN = torch.nan


def column(values, **fields):
    seen = values[~values.isnan()]
    return Space(
        rows=len(values),
        mean=(float(seen.mean()),),
        scale=(float(seen.std()),),
        low=(float(seen.min()),),
        high=(float(seen.max()),),
        **fields,
    )


def row_space(*columns):
    rows = columns[0].rows
    return Space(kind="columns", shape=(len(columns),), columns=columns, rows=rows)


def mixed_table(n=2000):
    """A flag, a name, a number with zeros, a count, a positive number and one that may be empty,
    with a common cause, which also empties cells."""
    g = make_generator(0)

    def noise():
        return torch.rand(n, generator=g)

    cause = noise()
    flag = (noise() < cause).float()
    name = (3 * (0.7 * cause + 0.3 * noise())).floor().clamp(max=2)
    name = torch.where(noise() < 0.3 * cause, 3.0, name)
    number = torch.where(noise() < 0.3, 0.0, 10 * cause * noise())
    number = torch.where(noise() < 0.5 * cause, NAN, number)
    count = (5 * cause + 3 * noise()).floor()
    count = torch.where(noise() < 0.5 * cause, NAN, count)
    positive = (2 * cause + torch.randn(n, generator=g)).exp()
    free = torch.where(noise() < 0.3 * cause, NAN, torch.randn(n, generator=g) - 3 * cause)
    space = row_space(
        column(flag, kind="binary", size=2, name="flag"),
        Space(kind="label", size=4, optional=True, rows=n, name="name"),
        column(number, kind="real", optional=True, atoms=(0.0,), lower=0.0, name="number"),
        column(count, kind="counts", optional=True, lower=0.0, name="count"),
        column(positive, kind="real", lower=0.0, name="positive"),
        column(free, kind="real", optional=True, name="free"),
    )
    return space, Batch(torch.stack([flag, name, number, count, positive, free], 1))


def discrete_table(n=500):
    """A flag, a name that may be empty and a count of 0 to 2 that may be empty, and all rows."""
    g = make_generator(0)
    cause = torch.rand(n, generator=g)
    flag = (torch.rand(n, generator=g) < cause).float()
    name = (3 * (0.6 * cause + 0.4 * torch.rand(n, generator=g))).floor().clamp(max=2)
    count = (4 * (0.6 * cause + 0.4 * torch.rand(n, generator=g))).floor().clamp(max=3)
    count = torch.where(count == 3, NAN, count)
    space = row_space(
        column(flag, kind="binary", size=2, name="flag"),
        Space(kind="label", size=3, optional=True, rows=n, name="name"),
        column(count, kind="counts", optional=True, lower=0.0, upper=2.0, name="count"),
    )
    every = itertools.product((0.0, 1.0), (0.0, 1.0, 2.0), (0.0, 1.0, 2.0, NAN))
    return space, Batch(torch.stack([flag, name, count], 1)), torch.tensor(list(every)).double()


def shaken(parameters, scale):
    g = make_generator(1)
    with torch.no_grad():
        for parameter in parameters:
            noise = torch.randn(parameter.shape, generator=g, dtype=parameter.dtype)
            parameter.add_(scale * noise)


def build(name, space, batch, scale=0.1, **fields):
    """A flow with random weights, in float64."""
    torch.manual_seed(0)
    config = replace(registry.find(name).smallest_config(space), **fields)
    model = config.build(space).double().eval()
    model.initialise_from_data(batch.double())
    shaken(model.parameters(), scale)
    return model


def layer(space, batch, scale=0.5, optional_first=False):
    """The first layer alone, as the distribution that N(0, I) above it gives."""
    torch.manual_seed(0)
    net = MaskedMLP.Config(width=16, depth=1)
    units = TableUnits(space.columns, net, optional_first=optional_first).double()
    units.fit(batch.x.double())
    shaken(units.parameters(), scale)

    def log_p(x, u):
        y, log_slopes = units.cells.place(x, u)
        w, log_det = units.inverse(y)
        normal = -0.5 * w.square() - 0.5 * math.log(2 * math.pi)
        return normal.sum(1) + log_det + log_slopes.sum(1)

    return units, log_p


@pytest.mark.parametrize("optional_first", [False, True])
def test_the_first_layer_sums_to_one_whatever_the_noise(optional_first):
    space, batch, every = discrete_table()
    _, log_p = layer(space, batch, optional_first=optional_first)
    with torch.no_grad():
        for u in (0.01, 0.5, 0.99):
            total = log_p(every, torch.full_like(every, u)).exp().sum()
            assert total.item() == pytest.approx(1.0, abs=1e-9)


def test_rates_of_empty_cells_depend_on_no_column_that_is_never_empty():
    """Names, then counts that may be empty, then the flag, which never is."""
    space, batch, every = discrete_table()
    units, log_p = layer(space, batch, optional_first=True)
    y, _ = units.cells.place(every, torch.full_like(every, 0.5))
    with torch.no_grad():
        _, _, log_cells = units.reweight(y, None)
        p = log_p(every, torch.full_like(every, 0.5)).exp()
    name, count = log_cells[:, 1, :3].exp(), log_cells[:, 2].exp()
    torch.testing.assert_close(name, name[:1].expand_as(name))
    for flag in (0, 1):
        torch.testing.assert_close(count[every[:, 0] == flag], count[every[:, 0] == 0])
    assert not torch.allclose(count[every[:, 1] == 0][0], count[every[:, 1] == 1][0])
    x = units.cells.decode(units(torch.randn(20000, 3, generator=make_generator(2)).double())[0])
    empty = x[:, 2].isnan()
    due = p[every[:, 2].isnan()].sum()  # what is scored is what is drawn
    assert abs(empty.double().mean() - due) < 4 * (due * (1 - due) / len(x)).sqrt()
    for code in range(3):
        due = p[every[:, 1] == code].sum()
        torch.testing.assert_close(due, name[0, code])
        share = (x[:, 1] == code).double().mean()
        assert abs(share - due) < 4 * (due * (1 - due) / len(x)).sqrt()


def test_the_first_layer_starts_at_the_training_frequencies():
    space, batch, every = discrete_table()
    _, log_p = layer(space, batch, 0.0)
    expected = torch.zeros(len(every)).double()
    for i in range(3):
        seen = torch.where(batch.x[:, i].isnan(), -1, batch.x[:, i])
        codes = torch.where(every[:, i].isnan(), -1, every[:, i])
        found = torch.stack([(seen == code).sum() + 0.5 for code in codes]).double()
        expected += (found / (len(seen) + 0.5 * len(codes.unique()))).log()
    with torch.no_grad():
        value = log_p(every, torch.rand(every.shape, generator=make_generator(0)).double())
    torch.testing.assert_close(value, expected)


def test_the_first_layer_integrates_to_one_over_mixed_numbers():
    space, batch = mixed_table()
    space = row_space(*space.columns[1:3])
    _, log_p = layer(space, Batch(batch.x[:, 1:3]))
    numbers = torch.linspace(-12, 12, 40_001).double().sigmoid() * 200
    with torch.no_grad():
        total = 0.0
        for code in range(4):

            def density(x, code=code):
                rows = torch.stack([torch.full_like(x, code), x], 1)
                return log_p(rows, torch.full_like(rows, 0.3)).exp()

            total += density(torch.tensor([0.0, NAN]).double()).sum().item()
            total += torch.trapezoid(density(numbers), numbers).item()
    assert total == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("name", FLOWS)
def test_the_bound_of_a_discrete_table_reaches_probabilities_that_sum_to_one(name):
    space, batch, every = discrete_table()
    model = build(name, space, batch, 0.03)
    with torch.no_grad():
        found = model.likelihood(every, model.LikelihoodConfig(samples=60))
    assert found.kind == "bound"
    assert found.value.exp().sum().item() == pytest.approx(1.0, abs=0.03)


def test_learned_noise_stays_below_the_probability():
    space, batch, every = discrete_table()
    model = build("coupling", space, batch, noise="learned")
    with torch.no_grad():
        found = model.likelihood(every, model.LikelihoodConfig(samples=60)).value
    assert 0.8 < found.exp().sum() < 1.03


@pytest.mark.parametrize("name", ["maf", "coupling"])
def test_bounded_numbers_alone_have_an_exact_density_that_integrates_to_one(name):
    space, batch = mixed_table()
    space, batch = row_space(space.columns[4]), Batch(batch.x[:, 4:5])
    if name == "coupling":
        assert registry.find(name).unsupported_reason(space)
        return
    model = build(name, space, batch)
    numbers = torch.linspace(-16, 16, 200_001).double().sigmoid() * 1000
    with torch.no_grad():
        found = model.likelihood(numbers[:, None])
    assert found.kind == "exact"
    total = torch.trapezoid(found.value.exp(), numbers).item()
    assert total == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("name", FLOWS)
def test_rows_come_back_from_their_codes(name):
    space, batch = mixed_table()
    model, x = build(name, space, batch, 0.03), batch.x[:100].double()
    if name == "cnf":
        model.config = replace(model.config, solver="dopri5", tolerance=1e-9)
    with torch.no_grad():
        again = model.decode(model.encode(x))
    torch.testing.assert_close(again, x, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", ["coupling", "maf", "iaf"])
def test_the_log_determinant_of_a_table_is_that_of_the_jacobian(name):
    space, batch = mixed_table()
    model = build(name, space, batch)
    z = torch.randn(1, 6, generator=make_generator(0)).double()
    with torch.no_grad():
        y, there = model.push(z)
        again, back = model.pull(y)
    torch.testing.assert_close(again, z, rtol=0, atol=1e-7)
    torch.testing.assert_close(there, -back, rtol=0, atol=1e-7)
    matrix = torch.autograd.functional.jacobian(lambda v: model.pull(v)[0][0], y)[:, 0]
    torch.testing.assert_close(torch.linalg.slogdet(matrix)[1], back[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", FLOWS)
def test_a_short_fit_samples_empty_cells_atoms_and_bounds_as_they_are(name):
    space, batch = mixed_table()
    torch.manual_seed(0)
    model = registry.find(name).smallest_config(space).build(space)
    model.initialise_from_data(batch)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    before = model.likelihood(batch).value.mean().item()
    for step in range(60):
        optimiser.zero_grad()
        rows = batch[step % 4 :: 4]
        sum(term.mean() for term in model.loss(rows).values()).backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        assert model.likelihood(batch).value.mean().item() > before + 0.4
    x = model.sample(4000, generator=make_generator(0))
    real, made = space.empty(batch.x), space.empty(x)
    assert ((made.double().mean(0) - real.double().mean(0)).abs() < 0.025).all()
    for i, j in ((1, 2), (1, 3), (2, 3), (2, 5)):
        both = (real[:, i] & real[:, j]).double().mean()
        assert abs((made[:, i] & made[:, j]).double().mean() - both) < 0.03
    assert abs((x[:, 2] == 0).double().mean() - (batch.x[:, 2] == 0).double().mean()) < 0.03
    assert (x[:, 4] > 0).all()
    counts, numbers = x[:, 3][~x[:, 3].isnan()], x[:, 2][~x[:, 2].isnan()]
    assert torch.equal(counts, counts.round())
    assert counts.min() >= 0
    assert numbers.min() >= 0
    assert set(x[:, 1].unique().tolist()) == {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("name", ["coupling", pytest.param("cnf", marks=pytest.mark.slow)])
def test_completion_follows_the_conditional_given_that_the_cell_is_not_empty(name):
    """It is the one of those samples whose count is empty, as the known one is, and whose name is
    not, as the hidden one."""
    space, batch, _ = discrete_table()
    model, n = build(name, space, batch, 0.2), 1500
    with torch.no_grad():
        samples = model.sample(20_000, generator=make_generator(1))
    named, empty = samples[:, 1] < 2, samples[:, 2].isnan()

    def shares(rows):
        return torch.bincount((2 * rows[:, 0] + rows[:, 1]).long(), minlength=4) / len(rows)

    rows = torch.tensor([0.0, 0.0, NAN]).double().expand(n, 3)
    observed = torch.tensor([False, False, True]).expand(n, 3)
    options = model.SamplingConfig(moves=12)
    found = model.complete(Batch(rows, observed=observed), options, make_generator(0))
    assert found[:, 2].isnan().all()
    assert (found[:, 1] < 2).all()
    error, wanted = 4 * 0.5 / n**0.5, shares(samples[named & empty])
    assert (shares(found) - wanted).abs().max() < error
    several = Batch(rows[:30], observed=observed[:30])
    found = model.complete_several(several, 50, options, make_generator(2)).flatten(0, 1)
    assert (shares(found) - wanted).abs().max() < error
    assert (shares(samples[named]) - wanted).abs().max() > error  # the empty count matters


def test_that_a_hidden_cell_is_not_empty_is_evidence():
    """Where the flag is 1, names are rather empty, so that a name which is not makes it rare."""
    space, batch, _ = discrete_table()
    model, n = build("coupling", space, batch, 0.0, optional_first=False), 1500
    with torch.no_grad():
        model.table.net.direct.weight[model.table.places[1, 2], 1] += 3
        samples = model.sample(20_000, generator=make_generator(1))
    rows = torch.tensor([0.0, 0.0, 1.0]).double().expand(n, 3)
    observed = torch.tensor([False, False, True]).expand(n, 3)
    options = model.SamplingConfig(moves=3)
    found = model.complete(Batch(rows, observed=observed), options, make_generator(0))
    same = samples[samples[:, 2] == 1]
    wanted, other = same[same[:, 1] < 2][:, 0].mean(), same[:, 0].mean()
    assert abs(found[:, 0].mean() - wanted) < 0.05
    assert abs(other - wanted) > 0.2


@pytest.mark.parametrize("name", FLOWS)
def test_completion_changes_no_known_cell_and_leaves_none_empty(name):
    space, batch = mixed_table(64)
    model = build(name, space, batch)
    empty = space.empty(batch.x)
    observed = (torch.rand(batch.x.shape, generator=make_generator(0)) < 0.5) | empty
    x = torch.where(observed, batch.x, NAN).double()  # what is hidden is not read
    options = model.SamplingConfig(moves=2)
    found = model.complete(Batch(x, observed=observed), options, make_generator(0))
    torch.testing.assert_close(found[observed], x[observed], rtol=0, atol=0, equal_nan=True)
    assert not space.empty(found)[~observed].any()
    assert found[~observed].isfinite().all()


@pytest.mark.parametrize("name", FLOWS)
def test_what_was_laid_over_the_data_is_saved(name):
    space, batch = mixed_table()
    model, fresh = build(name, space, batch), None
    fresh = replace(model.config).build(space).double().eval()
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        one, other = (each.likelihood(batch[:50].double()).value for each in (model, fresh))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", FLOWS)
def test_rows_far_from_the_data_have_finite_likelihoods_and_gradients(name):
    space, batch = mixed_table()
    model = build(name, space, batch).float()
    wild = torch.tensor([[1.0, 2.0, 1e6, 5e3, 1e7, 1e6], [0.0, 3.0, 1e-9, NAN, 1e-9, NAN]])
    value = model.likelihood(torch.cat([batch.x[:4], wild])).value
    assert value.isfinite().all()
    assert (value[4] < value[:4].min()).all()
    value.clamp_min(-1e3).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_numbers_far_from_the_data_keep_their_place():
    space, batch = mixed_table()
    units, _ = layer(space, batch)
    x = torch.tensor([[1.0, 2.0, 2e3, 40.0, 1e4, 9.0], [0.0, 0.0, 1e4, 9.0, 2.0, 400.0]])
    y, log_slopes = units.cells.place(x.double(), torch.full((2, 6), 0.5))
    torch.testing.assert_close(units.cells.decode(y)[:, 2:], x[:, 2:].double(), rtol=1e-4, atol=0)
    assert log_slopes.isfinite().all()


def test_a_code_that_no_column_has_is_refused():
    space, batch = mixed_table()
    model = build("coupling", space, batch)
    x = batch.x[:3].double().clone()
    x[1, 1] = 4
    with pytest.raises(DataError, match="name"):
        model.likelihood(x)


@pytest.mark.parametrize("name", ["coupling", "maf", "cnf", "cflow", "attribute"])
def test_tables_depend_on_conditions_that_may_be_empty(name):
    space, batch = mixed_table(600)
    given = replace(row_space(*space.columns[:3]), name="source")
    space = replace(row_space(*space.columns[2:]), given={"source": given})
    source = batch.x[:, :3].double()
    batch = Batch(batch.x[:, 2:], {"source": Batch(batch.x[:, :3])})
    model = build(name, space, batch)
    with torch.no_grad():
        value = model.likelihood(batch.double()).value
        flipped = replace(batch.double(), given={"source": Batch(source.flip(0))})
        other = model.likelihood(flipped).value
    assert value.isfinite().all()
    assert not torch.allclose(value, other)
    assert sum(term.mean() for term in model.loss(batch.double()).values()).isfinite()
    x = model.sample(600, batch.double().given, generator=make_generator(0))
    assert x[:, 0].isnan().any()
    observed = torch.rand(x.shape, generator=make_generator(1)) < 0.5
    hidden = replace(batch.double()[:20], observed=(observed | space.empty(batch.x))[:20])
    found = model.complete(hidden, model.SamplingConfig(moves=2), make_generator(0))
    assert not space.empty(found)[~hidden.observed].any()
