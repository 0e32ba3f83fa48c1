"""The continuous flow: known distributions, its kinds of likelihood, training, sampling."""

import math
from dataclasses import replace

import pytest
import small_data
import torch
from training import advance

import monge
from monge.core.batch import Batch
from monge.core.config import RunRef
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.evaluate.likelihood import HeldOutScorer
from monge.models.baseline.gaussian import Gaussian
from monge.models.flow._continuous import PAIRINGS
from monge.models.flow.cnf import CNF
from monge.nn.mlp import MLP
from monge.nn.unet import UNet
from monge.solve.ode import Solver
from monge.train.trainer import Trainer

TRAIN = TrainConfig(batch_size=128, lr=5e-3)
NET = MLP.Config(width=32, depth=2)
PLANE = Space(kind="real", shape=(2,), mean=(1.0, -2.0), scale=(2.0, 0.5), rows=1000)
IMAGE = Space(kind="levels", shape=(1, 4, 4), size=8, mean=(3.5,), scale=(2.0,), rows=1000)


def built(space=PLANE, shake=0.2, seed=0, **fields):
    torch.manual_seed(seed)
    model = CNF.Config(**{"net": NET, **fields}).build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(shake * torch.randn_like(parameter))
    return model.eval()


def rows(space=PLANE, n=6):
    x = torch.randn(n, *space.shape, dtype=torch.float64, generator=make_generator(0))
    x = space.statistic("mean") + space.statistic("scale") * x
    return x if space.kind == "real" else x.round().clamp(0, space.size - 1)


def test_it_begins_as_a_gaussian_in_the_units_of_the_data():
    model, x = built(shake=0.0), rows()
    distribution = torch.distributions.Normal(torch.tensor(PLANE.mean), torch.tensor(PLANE.scale))
    found = model.likelihood(x)
    assert found.kind == "exact"
    torch.testing.assert_close(found.value, distribution.log_prob(x).sum(1), rtol=1e-4, atol=1e-4)


def test_the_exact_score_converges_with_the_tolerance():
    model, x = built(), rows()
    best = model.likelihood(x, model.LikelihoodConfig(tolerance=1e-10)).value
    for tolerance in (1e-4, 1e-7):
        value = model.likelihood(x, model.LikelihoodConfig(tolerance=tolerance)).value
        assert (value - best).abs().max() < 100 * tolerance
    fixed = model.likelihood(x, model.LikelihoodConfig(solver="rk4", steps=64)).value
    assert (fixed - best).abs().max() < 1e-5


def test_an_estimate_covers_the_exact_score():
    model, x = built(solver="rk4", steps=8), rows(n=200)
    exact = model.likelihood(x, model.LikelihoodConfig(trace="exact")).value
    found = model.likelihood(
        x, model.LikelihoodConfig(trace="hutchinson", probes=32), make_generator(1)
    )
    assert found.kind == "estimate"
    away = (found.value - exact) / found.stderr
    assert away.abs().median() < 1.5
    assert abs(away.mean()) < 5 / 200**0.5 * away.std()
    alone = model.likelihood(x, model.LikelihoodConfig(trace="hutchinson", probes=1))
    assert alone.stderr is None


def test_many_entries_are_estimated_unless_set_otherwise():
    space = replace(IMAGE, kind="real", size=0, shape=(40,))
    model, x = built(space), rows(space, 3)
    assert model.likelihood(x).kind == "estimate"
    assert model.likelihood(x, model.LikelihoodConfig(trace="exact")).kind == "exact"


def test_levels_have_a_bound_with_either_trace():
    model, x = built(IMAGE, shake=0.1), rows(IMAGE)
    for trace in ("exact", "hutchinson"):
        found = model.likelihood(
            x, model.LikelihoodConfig(trace=trace, samples=3), make_generator(0)
        )
        assert found.kind == "bound"
        assert found.value.isfinite().all()


def test_a_code_comes_back():
    model, x = built(tolerance=1e-10), rows()
    torch.testing.assert_close(model.decode(model.encode(x)), x, rtol=1e-7, atol=1e-7)


def test_temperature_and_steps_of_samples():
    model = built()
    cold = model.sample(
        200, options=model.SamplingConfig(temperature=0.0), generator=make_generator(0)
    )
    assert (cold - cold[0]).abs().max() < 1e-9
    path = list(
        model.stream(
            5, options=model.SamplingConfig(solver="heun", steps=7), generator=make_generator(0)
        )
    )
    assert len(path) == 8
    assert not torch.equal(path[0], path[-1])


@pytest.mark.parametrize("coupling", ["independent", "optimal", "entropic"])
def test_matching_pairs_each_row_once_or_by_plan(coupling):
    model = built(coupling=coupling)
    x, z = torch.randn(2, 64, 2, dtype=torch.float64, generator=make_generator(3))
    if coupling != "independent":
        order = PAIRINGS[coupling](x, z)
        moved = (x - z[order]).square().sum(1).mean()
        assert moved < 0.6 * (x - z).square().sum(1).mean()
        if coupling == "optimal":
            assert sorted(order.tolist()) == list(range(64))
    assert model.loss(Batch(rows(n=64)))["matching"].isfinite()


def test_matching_is_the_distance_of_velocity_and_line():
    model = built(shake=0.3)
    y = rows(n=5)
    torch.manual_seed(3)
    found = model.loss(Batch(y))["matching"]
    torch.manual_seed(3)
    x = model.outer.inverse(y)[0]
    z = torch.randn_like(x)
    t = (torch.arange(5).to(x) + torch.rand((), dtype=x.dtype))[:, None] / 5
    here, square = (1 - t) * x + t * z, t**2 + (1 - t) ** 2  # that is r^2
    features = model.flow.velocity.time_features(t, None, 5)
    out = model.flow.velocity.net(torch.cat([here / square.sqrt(), features], 1))
    v = (2 * t - 1) / square * here + out / square.sqrt()
    torch.testing.assert_close(found, (v - (z - x)).square().mean())


@pytest.mark.parametrize("gradient", ["steps", "adjoint"])
def test_likelihood_training_has_the_gradient_of_the_score(gradient):
    model, x = built(objective="likelihood", gradient=gradient, tolerance=1e-9), rows()
    (loss,) = model.loss(Batch(x)).values()
    torch.testing.assert_close(-loss, model.likelihood(x).value)
    found = torch.autograd.grad(loss.mean(), list(model.parameters()))
    plain = built(objective="likelihood", tolerance=1e-9)
    right = torch.autograd.grad(-plain.likelihood(x).value.mean(), list(plain.parameters()))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("train", ["matching", "likelihood"])
def test_it_learns_a_correlation(train):
    """log p of a Gaussian of correlation 0.9 in the plane: -log(2 pi e) - log(1 - 0.81) / 2."""
    model = (
        built(
            Space(kind="real", shape=(2,), rows=1000),
            shake=0.0,
            objective=train,
            solver="rk4",
            steps=6,
        )
        .float()
        .train()
    )
    root = torch.tensor([[1.0, 0.0], [0.9, 0.19**0.5]])
    moving = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(250 if train == "matching" else 60):
        moving.zero_grad()
        sum(model.loss(Batch(torch.randn(256, 2) @ root.T)).values()).mean().backward()
        moving.step()
    score = (
        model.eval()
        .likelihood(torch.randn(2000, 2, generator=make_generator(5)) @ root.T)
        .value.mean()
    )
    best = -math.log(2 * math.pi * math.e) - math.log(0.19) / 2
    assert best - 0.15 < score.item() < best + 0.1


def test_images_by_a_unet():
    net = UNet.Config(width=8, multipliers=(1, 2), blocks=1, attention=0)
    model = built(IMAGE, shake=0.05, image_net="unet", unet=net, solver="rk4", steps=2)
    assert not model.flow.velocity.has_analytic_trace
    x = rows(IMAGE)
    assert model.loss(Batch(x))["matching"].isfinite()
    exact = model.likelihood(x, model.LikelihoodConfig(trace="exact")).value
    found = model.likelihood(x, model.LikelihoodConfig(trace="hutchinson", probes=64)).value
    assert (found - exact).abs().max() < 1.0
    assert model.sample(3, generator=make_generator(0)).shape == (3, 1, 4, 4)


def test_far_rows_and_float32_are_finite():
    model = built().float()
    x = torch.tensor([[1e6, -1e6], [0.0, 0.0], [1e3, 5.0]])
    assert model.likelihood(x).value.isfinite().all()


def test_what_is_refused():
    space, _ = small_data.conditioned(*small_data.make("real"))
    with pytest.raises(UsageError, match="coupling=optimal"):
        CNF.Config(coupling="optimal").build(space)
    with pytest.raises(UsageError, match="objective=likelihood"):
        CNF.Config(noise="learned").build(IMAGE)
    with pytest.raises(UsageError, match="tolerance=1e-12"):
        built().float().likelihood(rows().float(), CNF.LikelihoodConfig(tolerance=1e-12))
    hidden = Batch(rows(), observed=torch.tensor([[True, False]]).expand(6, 2))
    with pytest.raises(DataError, match="cnf"):
        built().likelihood(hidden)


def test_overrides_reach_every_choice():
    config = CNF.Config().override(
        "objective=likelihood",
        "gradient=adjoint",
        "solver=rk4",
        "steps=4",
        "net.width=8",
        "waves=2",
    )
    assert (config.objective, config.solver, config.steps, config.net.width) == (
        "likelihood",
        "rk4",
        4,
        8,
    )
    options = CNF.LikelihoodConfig().override(
        "solver=heun", "tolerance=1e-3", "trace=hutchinson", "steps=9"
    )
    assert (options.solver, options.steps, options.tolerance) == ("heun", 9, 1e-3)


@pytest.mark.parametrize(("side", "patch"), [(8, 1), (28, 2), (30, 1)])
def test_large_images_are_read_four_pixels_at_a_time_where_sides_allow_it(side, patch):
    space = Space(kind="levels", shape=(1, side, side), size=256, rows=60_000)
    config = CNF.defaults(space).config
    assert (config.image_net, config.unet.patch) == ("unet", patch)
    x = torch.zeros(1, side * side)
    assert config.build(space).flow.velocity(x, torch.zeros(1, 1), None).shape == x.shape


def test_squashed_levels_are_standardised_before_the_first_step_and_no_step_moves_that():
    space, batch = small_data.make("levels")
    model = built(space)
    model.initialise_from_data(batch.double())
    w = model.outer.inverse(
        model.dequantise(batch.double(), torch.rand(len(batch), space.dims))[0]
    )[0]
    torch.testing.assert_close(w.mean(0), torch.zeros(space.dims).double(), rtol=0, atol=0.2)
    torch.testing.assert_close(w.std(0), torch.ones(space.dims).double(), rtol=0, atol=0.2)
    assert not list(model.outer.parameters())
    fresh_one = built(space, seed=1)
    fresh_one.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh_one.outer(w)[0], model.outer(w)[0], rtol=0, atol=0)


def test_an_expensive_likelihood_is_evaluated_on_fewer_rows():
    """Of flows of many entries a solver asks the network again and again for each row."""

    class Split:
        def __len__(self):
            return 6000

        def batch(self, index):
            return Batch(torch.zeros(len(index), 1, 28, 28))

    large = Space(kind="levels", shape=(1, 28, 28), size=256, rows=60_000)
    evaluated = sum(map(len, HeldOutScorer(built(large, shake=0.0), Split()).batches))
    assert evaluated == 2**22 // (784 * 16)
    assert built(PLANE).evals_per_score == 1


def test_a_start_gives_its_weights_and_its_units():
    start, space = built(IMAGE, margin=0.0), IMAGE
    start.initialise_from_data(Batch(rows(space, 40)))
    model = CNF.Config(net=NET, margin=0.0, start=RunRef("there")).build(space, {"start": start})
    model = model.double().eval()
    assert not model.parts
    model.initialise_from_data(Batch(rows(space, 10)))
    x = rows(space)
    found, expected = (each.likelihood(x, generator=make_generator(0)) for each in (model, start))
    torch.testing.assert_close(found.value, expected.value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["real", "columns"])
def test_reflow_matches_samples_of_its_start_with_their_noise(kind):
    space, batch = small_data.conditioned(*small_data.make(kind), "label")
    config = replace(CNF.smallest_config(space), solver="rk4", steps=8)
    start = config.build(space).double().requires_grad_(False)
    torch.manual_seed(0)
    for parameter in start.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    config = replace(config, coupling="reflow", start=RunRef("there"))
    model = config.build(space, {"start": start}).double()
    given = batch[:20].double().given
    x, z, context = model.reflow_pairs(model.context(given, 20), 20)
    torch.testing.assert_close(x, start.transport(z, context, (1.0, 0.0)))
    assert len(z.unique(dim=0)) == 3  # 20 rows at 8 times each
    moved = {id(p) for update in model.updates() for p in update.params}
    assert moved == {id(p) for p in model.flow.parameters()}
    loss = model.loss(batch[:20].double())
    assert set(loss) == {"matching"}
    assert loss["matching"].isfinite()


def test_reflow_straightens_paths():
    """After a reflow, one step of Euler's method ends nearer to where the flow of the start
    does."""
    torch.manual_seed(0)
    space = Space(kind="real", shape=(2,), rows=1000)
    start = CNF.Config(net=NET, solver="rk4", steps=8).build(space)
    centres = torch.tensor([[-1.0, -0.5], [1.0, 0.8]])
    data = centres[torch.randint(2, (512,))] + 0.1 * torch.randn(512, 2)
    advance(Trainer(start, small_data.Rows(Batch(data)), TRAIN), 100)
    config = CNF.Config(net=NET, coupling="reflow", start=RunRef("there"))
    model = config.build(space, {"start": start.requires_grad_(False)})
    advance(Trainer(model, small_data.Rows(Batch(data)), TRAIN), 100)
    z, away = torch.randn(200, 2), []
    wanted = start.transport(z, None, (1.0, 0.0))
    for each in (start, model):
        *_, found = each.flow.path(z, None, (1.0, 0.0), Solver("euler", steps=1))
        away.append((found - wanted).detach().square().mean())
    assert away[1] < 0.5 * away[0]


def test_starts_that_do_not_fit_are_refused():
    other = Space(kind="real", shape=(3,), rows=10)
    reflow = CNF.Config(net=NET, coupling="reflow")
    with pytest.raises(UsageError, match="start"):
        reflow.build(PLANE)
    refused = [
        (Gaussian.Config().build(PLANE), "gaussian"),
        (CNF.Config(net=NET).build(other), "3"),
        (CNF.Config(net=replace(NET, width=8)).build(PLANE), "networks"),
    ]
    for start, word in refused:
        with pytest.raises(UsageError, match=word):
            replace(reflow, start=RunRef("there")).build(PLANE, {"start": start})


def test_a_run_is_reflowed_with_its_own_settings(tmp_path):
    data = torch.randn(60, 2).numpy()
    first = monge.fit(
        "cnf", data, "net.width=8", "net.depth=1", budget="2steps", out=tmp_path / "a"
    )
    run = monge.fit(
        "cnf",
        data,
        f"start={first.folder}",
        "coupling=reflow",
        budget="2steps",
        out=tmp_path / "b",
    )
    assert run.model.config.net.width == 8
    again = monge.fit("cnf", data, f"start={run.folder}", budget="2steps", out=tmp_path / "c")
    assert again.model.config.coupling == "reflow"
    one = ("solver=euler", "steps=1")
    assert torch.equal(
        monge.load(again.folder).sample_tensor(3, {}, *one), again.sample_tensor(3, {}, *one)
    )
