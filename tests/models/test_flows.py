"""Flows: bounds below the probability, exact maps, robust numbers, and what they refuse."""

import math
from dataclasses import replace

import pytest
import small_data
import torch

from monge import registry
from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.nn.autoregressive.masked_mlp import MaskedMLP
from monge.prob.bijections.coupling import CheckerboardCoupling

VECTORS = ("coupling", "maf", "iaf")
FLOWS = (*VECTORS, "glow")
READERS = ("cflow", "attribute")


def build(name, space, **fields):
    torch.manual_seed(0)
    model = replace(registry.find(name).smallest_config(space), **fields).build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("fields", [{}, {"noise": "learned"}, {"margin": 0.0}], ids=str)
def test_the_bound_of_levels_rises_to_probabilities_that_sum_to_at_most_one(name, fields):
    space, batch = small_data.make("levels")
    model = build(name, space, **fields)
    model.initialise_from_data(batch.double())
    every = small_data.states(space)
    with torch.no_grad():
        one, many = (
            model.likelihood(every, model.LikelihoodConfig(samples=k)).value for k in (1, 20)
        )
    assert one.mean() < many.mean()
    assert many.exp().sum() < 1.02


@pytest.mark.parametrize("name", FLOWS)
def test_samples_of_levels_are_as_frequent_as_their_bound(name):
    """Many samples of the noise make the bound nearly the probability."""
    space, batch = small_data.make("levels")
    model = build(name, space)
    model.initialise_from_data(batch.double())
    code = 4 ** torch.arange(4)
    codes = (model.sample(5000, generator=make_generator(0)).flatten(1).long() * code).sum(1)
    share = torch.bincount(codes, minlength=256) / 5000
    common = share.argsort(descending=True)[:5]
    x = (common[:, None] // code % 4).reshape(5, 1, 2, 2).double()
    with torch.no_grad():
        bound = model.likelihood(x, model.LikelihoodConfig(samples=200)).value.exp()
    # The outermost levels also take what is sampled beyond them, hence at most a little more.
    assert (share[common] > 0.9 * bound - 4 * (bound / 5000).sqrt()).all()


@pytest.mark.parametrize("name", FLOWS)
def test_codes_decode_to_what_they_encode(name):
    for kind in ("real", "binary", "levels"):
        space, batch = small_data.make(kind)
        model, x = build(name, space), batch.double().x[:50]
        torch.testing.assert_close(model.decode(model.encode(x)), x, rtol=1e-6, atol=1e-6)


def test_whole_numbers_of_a_table_and_of_counts_come_back():
    for kind in ("counts", "columns"):
        space, batch = small_data.make(kind)
        for name in VECTORS:
            model, x = build(name, space), batch.double().x[:50]
            torch.testing.assert_close(model.decode(model.encode(x)), x, rtol=1e-6, atol=1e-6)


def given(name, space, x):
    """The space and rows, of themselves where a flow asks for a condition."""
    if name not in READERS:
        return space, Batch(x)
    return replace(space, given={"source": replace(space, name="source")}), Batch(
        x, {"source": Batch(x.clamp(min(space.low), max(space.high)))}
    )


@pytest.mark.parametrize("name", [*FLOWS, "cnf", *READERS])
def test_wild_rows_have_finite_scores_and_gradients_in_float32(name):
    space, batch = small_data.make("real")
    x = torch.cat([batch.x[:4], torch.tensor([[1e6, 0.0], [-1e6, 1e6], [5.0, -1e6]])])
    space, batch = given(name, space, x)
    model = build(name, space).float()
    value = model.likelihood(batch).value
    assert value.isfinite().all()
    assert (value[4:] < value[:4].min()).all()
    value.clamp_min(-1e3).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", [*FLOWS, "cnf", *READERS])
def test_a_constant_column_and_heavy_tails_train(name):
    g = make_generator(0)
    heavy = torch.randn(300, generator=g) / torch.rand(300, generator=g).clamp_min(1e-3)
    x = torch.stack([heavy, torch.full((300,), 3.0)], 1)
    space = small_data.fitted(Space(kind="real", shape=(2,), name="x"), x)
    space, batch = given(name, space, x)
    model = registry.find(name).smallest_config(space).build(space)
    model.initialise_from_data(batch)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(20):
        optimiser.zero_grad()
        loss = sum(term.mean() for term in model.loss(batch).values())
        loss.backward()
        optimiser.step()
        assert loss.isfinite()
    assert model.sample(50, batch[:50].given, generator=make_generator(1)).isfinite().all()


def test_maf_reads_events_and_iaf_reads_codes():
    """With one map each, what the first entry of the other side does to the last one here."""
    space = Space(kind="real", shape=(3,), rows=100)
    for name, reads in (("maf", "pull"), ("iaf", "push")):
        model = build(name, space, layers=1)
        z = torch.randn(1, 3).double().requires_grad_()
        moved = getattr(model, reads)(z)[0]
        (forward,) = torch.autograd.grad(moved[0, 0], z, retain_graph=True)
        assert torch.equal(forward[0, 1:], torch.zeros(2).double())
        assert type(model) is registry.find(name)


def test_a_cold_sample_is_the_code_zero():
    space, _ = small_data.make("real")
    for name in FLOWS:
        model = build(name, space)
        x = model.sample(3, options=model.SamplingConfig(temperature=0.0))
        torch.testing.assert_close(x, model.decode(torch.zeros(3, 2).double()))


def test_a_likelihood_has_its_kind():
    kinds = {"real": "exact", "levels": "bound", "binary": "bound"}
    for kind, expected in kinds.items():
        space, batch = small_data.make(kind)
        for name in FLOWS:
            found = build(name, space).likelihood(batch.double()[:3])
            assert found.kind == expected
            assert found.stderr is None
    model = build("coupling", space)
    assert model.likelihood(
        batch.double()[:3], model.LikelihoodConfig(samples=4)
    ).stderr.shape == (3,)


def test_one_number_is_refused_by_couplings_and_taken_by_maf():
    space = Space(kind="real", shape=(1,), rows=100)
    for name in ("coupling", "glow"):
        assert "maf" in registry.find(name).unsupported_reason(space)
    assert registry.find("maf").unsupported_reason(space) is None
    x = torch.randn(5, 1).double()
    assert build("maf", space).likelihood(x).value.shape == (5,)


def test_glow_names_the_sizes_that_work():
    owner = registry.find("glow")
    odd = Space(kind="levels", shape=(1, 7, 10), size=4, rows=100)
    assert owner.unsupported_reason(odd) is None
    even = replace(odd, shape=(1, 12, 20))
    assert owner.unsupported_reason(even) is None
    assert len(build("glow", even).map.parts[0].parts[0].levels) == 2
    with pytest.raises(UsageError, match=r"levels=3.*levels=2"):
        build("glow", even, levels=3)


@pytest.mark.parametrize(
    ("shape", "board"), [((1, 5, 7), 0), ((2, 6, 3), 0), ((1, 1, 5), 2), ((1, 8, 8), 3)]
)
def test_chess_boards_mix_images_of_any_size(shape, board):
    space = Space(kind="real", shape=shape, rows=100)
    model = build("glow", space, checkerboard=board)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    x = torch.randn(20, *shape, generator=make_generator(0)).double()
    model.initialise_from_data(Batch(x))
    z = torch.randn(2, space.dims, generator=make_generator(1)).double()
    y, there = model.push(z)
    again, back = model.pull(y)
    torch.testing.assert_close(again, z, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(there, -back)
    matrix = torch.autograd.functional.jacobian(lambda v: model.pull(v)[0][0], y[:1])[:, 0]
    torch.testing.assert_close(torch.linalg.slogdet(matrix)[1], back[0])
    boards = [each for each in model.modules() if isinstance(each, CheckerboardCoupling)]
    assert len(boards) >= (board or 4)
    for each in boards:
        image = torch.randn(1, each.net.first.in_channels, 4, 5).double()
        moved = each(image)[0] != image
        assert not bool((moved & ~each.moving(image)).any())


def test_glow_takes_colours_and_odd_numbers_of_channels():
    space = Space(kind="levels", shape=(3, 4, 8), size=5, rows=100)
    model = build("glow", space)
    x = torch.randint(0, 5, (6, 3, 4, 8)).double()
    z = model.encode(x)
    assert torch.equal(model.decode(z), x)
    y, there = model.push(z)
    again, back = model.pull(y)
    torch.testing.assert_close(again, z)
    torch.testing.assert_close(there, -back)


def test_foreign_levels_and_dropout_of_iaf_are_refused():
    space, _ = small_data.make("levels")
    with pytest.raises(DataError, match=r"0 to 3.*\b9\b"):
        build("coupling", space).likelihood(torch.full((1, 1, 2, 2), 9.0).double())
    with pytest.raises(UsageError, match=r"net\.dropout=0\.5"):
        build("iaf", space, net=MaskedMLP.Config(width=8, dropout=0.5))


def test_a_coupling_learns_what_a_gaussian_cannot():
    """Two arcs: one Gaussian is far from their distribution."""
    angle = math.pi * torch.rand(2000, generator=make_generator(0))
    x = torch.stack([angle.cos(), angle.sin()], 1)
    x = x + 0.1 * torch.randn(2000, 2, generator=make_generator(1))
    space = small_data.fitted(Space(kind="real", shape=(2,), name="x"), x)
    torch.manual_seed(0)
    model = registry.find("coupling").Config(layers=4).build(space)
    model.initialise_from_data(Batch(x))
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(120):
        optimiser.zero_grad()
        model.loss(Batch(x[step % 4 :: 4]))["nll"].mean().backward()
        optimiser.step()
    gaussian = torch.distributions.MultivariateNormal(x.mean(0), torch.cov(x.T))
    with torch.no_grad():
        assert model.log_prob(x).mean() > gaussian.log_prob(x).mean() + 0.5


def test_a_coupling_of_many_entries_begins_as_the_gaussian_of_their_coordinates(monkeypatch):
    """400 pixels that follow two hidden numbers: what was shown enough rows to know how they vary
    together scores new ones far higher, before the first step, than what was not."""
    torch.manual_seed(0)
    x = (16 * torch.sigmoid(torch.randn(1400, 2) @ torch.randn(2, 400))).floor()
    space, found = Space(kind="levels", shape=(400,), size=16, rows=1200), []
    coupling = registry.find("coupling")
    for begins in (coupling.min_init_rows, 0):
        monkeypatch.setattr(coupling, "min_init_rows", begins)
        model = coupling.defaults(space).config.build(space)
        model.initialise_from_data(Batch(x[:1200]))
        with torch.no_grad():
            found.append(float(model.likelihood(Batch(x[1200:])).value.mean()))
    assert found[0] > found[1] + 100
