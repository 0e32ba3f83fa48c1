"""An ensemble is one law: its numbers are means of its members', and it trains as they would."""

import json
import math
from dataclasses import replace

import pytest
import torch
import worlds
from training import assert_unbroken

import monge
from monge import registry
from monge.cli.main import attempt
from monge.core.abilities import (
    CanComplete,
    CanEncode,
    CanSample,
    CanStream,
    HasLikelihood,
    HasMean,
    HasMode,
    Likelihood,
)
from monge.core.batch import Batch
from monge.core.config import Config
from monge.core.error import DataError, WordError
from monge.core.mixed import kind_of, under
from monge.core.mixture import Mixture, bootstrap, law_of
from monge.core.model import Model
from monge.core.noise import fresh
from monge.core.recipe import Mover, Recipe
from monge.core.space import Space
from monge.core.stack import Stack
from monge.evaluate.bagging import out_of_bag
from monge.evaluate.judge import Judge, chunks
from monge.train.budget import Budget
from monge.train.fit import fit
from monge.train.trainer import Trainer

MEMBERS = [("made", "binary"), ("made", "real"), ("vae", "real"), ("wgan", "real"),
           ("tree", "columns"), ("gaussian", "real"), ("deep_nade", "label")]


def regression(n=400):
    """A number given three others: its space and rows."""
    g = fresh(0)
    x = torch.randn(n, 3, generator=g)
    y = x[:, 0] * x[:, 1] + x[:, 2] + 0.1 * torch.randn(n, generator=g)
    inputs = worlds.fitted(Space(kind="real", shape=(3,), name="inputs"), x)
    space = replace(worlds.fitted(Space(kind="real", name="y"), y), given={"inputs": inputs})
    return space, Batch(y, {"inputs": Batch(x)})


def classes(n=400):
    """One of three names given two numbers."""
    space, rows = worlds.make("real", n)
    label = worlds.conditioned(space, rows)[1].given["label"].x
    return (Space(kind="label", size=3, name="y", rows=n, given={"inputs": space}),
            Batch(label, {"inputs": rows}))


def trained(config, space, batch, steps=30, recipe=None, double=True, seed=1):
    torch.manual_seed(0)
    model = config.build(space).double() if double else config.build(space)
    rows = worlds.Rows(batch.double() if double else batch)
    trainer = Trainer(model, rows, recipe or Recipe(batch=64, rate=3e-3, warmup=0), seed)
    for _ in range(steps):
        trainer.advance(1.0)
    return trainer


def mixture(name, kind, members=3, steps=15, **fields):
    owner = registry.find(name)
    space, batch = worlds.make(kind)
    config = Mixture.Config(member=owner.tiny(space), members=members, **fields)
    recipe = config.recipe(replace(owner.suit(space).recipe, batch=64, warmup=0))
    trainer = trained(config, space, batch[:600], steps, recipe)
    return trainer.model.eval(), worlds.Rows(batch.double())


@pytest.mark.parametrize(("name", "kind"), MEMBERS)
def test_a_mixture_has_the_abilities_that_carry_over(name, kind):
    owner, (model, _) = registry.find(name), mixture(name, kind, steps=2)
    for ability in (CanSample, HasLikelihood, CanStream, HasMean, HasMode):
        assert isinstance(model, ability) == issubclass(owner, ability)
    assert not isinstance(model, CanEncode)
    assert (model.events, model.missing) == (owner.events, owner.missing)
    assert model.suit(model.space).config.members == 5
    config = model.config
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    x = model.sample(50, generator=fresh(3))
    assert x.shape == (50, *model.space.shape)
    assert torch.equal(x, model.sample(50, generator=fresh(3)))
    assert not torch.equal(x, model.sample(50, generator=fresh(4)))


@pytest.mark.parametrize(("name", "kind"), [m for m in MEMBERS if m[0] not in ("vae", "wgan")])
def test_an_exact_score_is_the_mean_law(name, kind):
    model, rows = mixture(name, kind, bag=True)
    batch = rows.batch(torch.arange(600, 620))
    with torch.no_grad():
        each = torch.stack([member.likelihood(batch).value for member in model.members])
        found = model.likelihood(batch)
    assert found.kind == "exact"
    torch.testing.assert_close(found.value.exp(), each.exp().mean(0))
    assert not torch.allclose(each[0], each[1])


def test_a_mixture_sums_to_one_and_draws_what_it_scores():
    model, _ = mixture("made", "binary", steps=60)
    states = worlds.states(model.space)
    p = model.likelihood(Batch(states)).value.exp()
    x = model.sample(20_000, generator=fresh(0))
    frequency = (x[:, None] == states).all(2).double().mean(0)
    assert abs(p.sum().item() - 1) < 1e-10
    assert 0.5 * (frequency - p).abs().sum() < 0.02
    *_, last = model.stream(30, generator=fresh(2))
    assert torch.equal(last, model.sample(30, generator=fresh(2)))
    assert len(model.orders) == 3


def test_weights_that_share_the_noise_of_a_bound_lift_it_above_the_truth():
    """Two members of evidence 0 whose bounds are noisy: the plain mean exceeds 0."""
    noise = 2 * torch.randn(2, 2, 100_000, generator=fresh(0), dtype=torch.float64)
    value, free = noise - 0.5  # E value = -0.5 <= 0 = log p
    plain = value.logsumexp(0) - math.log(2)
    assert plain.mean() > 0.05
    assert (under(value, free) - math.log(2)).mean() < -0.4
    exact = torch.randn(3, 10, dtype=torch.float64)
    torch.testing.assert_close(under(exact, exact), exact.logsumexp(0))


def test_a_mixture_of_bounds_is_a_bound_below_the_evidence():
    model, rows = mixture("vae", "real", steps=40)
    batch = rows.batch(torch.arange(600, 700))
    with torch.no_grad():
        one, many = (model.likelihood(batch, model.Scoring(samples=k), fresh(0)) for k in (1, 64))
        again = torch.cat([model.likelihood(part, model.Scoring(samples=64), fresh(0)).value
                           for part in batch.chunk(3)])
    assert one.kind == many.kind == "bound"
    assert (one.value.mean() - many.value.mean()).item() < 0.02
    torch.testing.assert_close(many.value, again)


def test_the_weakest_kind_decides():
    kinds = [Likelihood(torch.zeros(1), kind) for kind in ("exact", "bound", "estimate")]
    assert [kind_of(kinds[:k]) for k in (1, 2, 3)] == ["exact", "bound", "estimate"]


def test_a_completion_weighs_members_by_what_is_seen():
    model, _ = mixture("made", "binary", steps=150)
    states = worlds.states(model.space)
    p = model.likelihood(Batch(states)).value.exp()
    rows = Batch(torch.ones(20_000, 5, dtype=torch.float64))
    seen = torch.arange(5) < 2
    x = model.complete(replace(rows, observed=seen.expand(20_000, 5)), generator=fresh(0))
    assert (x[:, :2] == 1).all()
    agrees = (states[:, :2] == 1).all(1)
    due = torch.where(agrees, p, 0.0) / p[agrees].sum()
    frequency = (x[:, None] == states).all(2).double().mean(0)
    assert 0.5 * (frequency - due).abs().sum() < 0.02
    with pytest.raises(DataError, match="come first"):
        model.complete(replace(rows, observed=(~seen).expand(20_000, 5)))


def test_a_completion_of_references_takes_any_pattern():
    model, rows = mixture("gaussian", "real", bag=True, steps=1)
    batch = rows.batch(torch.arange(10))
    seen = torch.tensor([False, True]).expand(10, 2)
    x = model.complete(replace(batch, observed=seen), generator=fresh(0))
    assert isinstance(model, CanComplete)
    assert torch.equal(x[:, 1], batch.x[:, 1])
    assert not torch.equal(x[:, 0], batch.x[:, 0])


def test_turns_are_the_members_own():
    model, _ = mixture("wgan", "real", members=2, steps=0)
    names = [turn.name for turn in model.turns()]
    assert names[:2] == ["member1/critic", "member1/generator"]
    assert len(names) == 2 * len(model.members[0].turns())
    recipe = Recipe(turns={"critic": Mover(rate=0.5)}, freeze=("trunk",), rates={"out": 0.1})
    spread = model.config.recipe(recipe)
    assert spread.mover("member2/critic").rate == 0.5
    assert spread.freeze == ("members.0.trunk", "members.1.trunk")
    assert set(spread.rates) == {"members.0.out", "members.1.out"}


def test_members_begin_apart_and_see_batches_of_their_own(monkeypatch):
    model, rows = mixture("made", "real", members=2, steps=0)
    first, second = (torch.cat([p.flatten() for p in m.parameters()]) for m in model.members)
    assert not torch.equal(first, second)
    seen = []
    for member in model.members:
        monkeypatch.setattr(member, "loss", lambda batch, right=member.loss: (
            seen.append(batch.row), right(batch))[1])
    trainer = Trainer(model, rows, Recipe(batch=50))
    trainer.advance(1.0)
    assert not set(seen[0].tolist()) & set(seen[1].tolist())


@pytest.fixture
def apart():
    """Members of predict.mlp that are trained one by one."""
    owner, right = registry.find("predict.mlp"), registry.find("predict.mlp").stackable
    yield lambda stacked: (setattr(owner, "stackable", stacked), law_of.cache_clear())
    owner.stackable = right
    law_of.cache_clear()


@pytest.mark.parametrize("world", [regression, classes])
@pytest.mark.parametrize("bag", [False, True])
def test_members_as_one_network_equal_members_one_by_one(apart, world, bag):
    space, batch = world()
    member = registry.find("predict.mlp").tiny(space)
    member = member.override("net.dropout=0")
    states = []
    for stacked in (True, False):
        apart(stacked)
        config = Mixture.Config(member=member, members=3, bag=bag)
        trainer = trained(config, space, batch, recipe=Recipe(batch=64, decay=0.1))
        assert len(trainer.turns) == (1 if stacked else 3)
        states.append(trainer.model.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-9, atol=1e-12)
    assert not torch.equal(states[0]["members.0.out.weight"], states[0]["members.1.out.weight"])


def test_what_cannot_be_shared_evenly_is_left_out():
    space, batch = regression()
    models = [registry.find("predict.mlp").tiny(space).build(space).eval() for _ in range(3)]
    (found,) = Stack(models)(batch[:32]).values()
    pieces = [next(iter(model.loss(batch[10 * k:10 * k + 10]).values()))
              for k, model in enumerate(models)]
    torch.testing.assert_close(found, torch.stack(pieces).sum(0))


def test_members_as_one_network_drop_out_apart():
    space, batch = regression()
    owner = registry.find("predict.mlp")
    member = owner.tiny(space).override("net.dropout=0.5")
    model = Mixture.Config(member=member, members=2).build(space).train()
    first, second = model.members
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        first.out.weight.normal_()
        second.out.weight.copy_(first.out.weight)
    (turn,) = model.turns()
    same = batch[torch.cat([torch.arange(64), torch.arange(64)])]
    (loss,) = turn.loss(same).values()
    loss.mean().backward()
    slopes = [m.out.weight.grad for m in model.members]
    assert not torch.allclose(*slopes)


@pytest.mark.parametrize("world", [regression, classes])
def test_an_ensemble_predicts_the_mean_of_its_members(world):
    space, batch = world()
    config = Mixture.Config(member=registry.find("predict.mlp").tiny(space), members=3)
    model = trained(config, space, batch).model.eval()
    given = batch.double().given
    each = torch.stack([member.mean(given) for member in model.members])
    torch.testing.assert_close(model.mean(given), each.mean(0))
    mode = model.mode(given)
    assert mode.shape == batch.x.shape
    if space.kind == "label":
        assert torch.equal(mode, model.mean(given).argmax(1))
    law = model.marginals(given)
    assert (law.quantile(0.05) < law.quantile(0.95)).all() or space.kind == "label"


def test_a_bootstrap_draws_with_replacement_and_knows_its_rows():
    every = torch.arange(1000)
    bag = bootstrap(7, every, 1000)
    assert torch.equal(bag, torch.cat([bootstrap(7, part, 1000) for part in every.split(300)]))
    assert 0.58 < bag.unique().numel() / 1000 < 0.68
    assert not torch.equal(bag, bootstrap(8, every, 1000))


@pytest.mark.parametrize(("name", "kind"), [("made", "real"), ("gaussian", "real")])
def test_bagged_members_see_their_bag_alone(name, kind, monkeypatch):
    model, rows = mixture(name, kind, members=2, steps=0, bag=True)
    seen = {}
    turns = [replace(turn, loss=lambda batch, turn=turn: (
        seen.setdefault(turn.name, []).append(batch.row), turn.loss(batch))[1])
        for turn in model.turns()]
    monkeypatch.setattr(model, "turns", lambda: turns)
    trainer = Trainer(model, rows, Recipe(batch=100))
    for _ in range(12):
        trainer.advance(1.0)
    out = model.left_out(torch.arange(1000))  # (K, n)
    for own, batches in zip(out, seen.values(), strict=True):
        assert own[torch.cat(batches)].sum() == 0
        assert 0.3 < own.double().mean() < 0.45


def test_out_of_bag_scores_use_only_members_that_have_not_seen_the_row():
    model, rows = mixture("gaussian", "real", members=3, steps=1, bag=True)
    train = worlds.Rows(rows.all[:600])
    batch = train.whole()
    found, out = model.out_of_bag(batch).value, model.left_out(batch.row)
    each = torch.stack([member.likelihood(batch).value for member in model.members])
    for row in range(40):
        mine = each[out[:, row], row].exp()
        assert found[row].isnan() if not len(mine) else \
            found[row].exp().item() == pytest.approx(mine.mean().item())
    assert found.isnan().double().mean().item() == pytest.approx(0.632**3, abs=0.08)
    (score,) = out_of_bag(model, chunks(train)).values()
    assert score.value == pytest.approx(found[~found.isnan()].mean().item())
    assert out_of_bag(mixture("gaussian", "real", steps=1)[0], chunks(train)) == {}


def test_out_of_bag_error_is_higher_than_the_error_on_rows_that_were_seen():
    space, batch = regression(200)
    config = Mixture.Config(member=registry.find("predict.mlp").tiny(space), members=4, bag=True)
    recipe = Recipe(batch=200, rate=2e-2, warmup=0)
    model = trained(config, space, batch, 150, recipe).model.eval()
    rows = worlds.Rows(batch.double())
    measured = out_of_bag(model, chunks(rows))
    own = (model.mean(rows.all.given) - rows.all.x).square().mean().sqrt().item()
    assert set(measured) == {"out_of_bag_log_likelihood", "out_of_bag_rmse"}
    assert measured["out_of_bag_rmse"].value > own


@pytest.mark.parametrize(("name", "kind"), [("made", "real"), ("wgan", "real")])
def test_interrupted_and_resumed_equals_uninterrupted(name, kind, tmp_path):
    owner, (space, batch) = registry.find(name), worlds.make(kind)
    config = Mixture.Config(member=owner.tiny(space), members=2, bag=True)
    recipe = config.recipe(owner.suit(space).recipe)
    assert_unbroken(lambda: trained(config, space, batch, 0, recipe, False), tmp_path)


def test_patience_watches_the_mixture():
    model, rows = mixture("made", "real", members=2, steps=0)
    trainer = Trainer(model, rows, Recipe(batch=64, check=10, patience=2, rate=3e-2))
    *_, last = fit(trainer, Budget(steps=400), Judge(model, rows))
    assert trainer.best is not None
    assert last.stopped in ("patience", "budget")


def test_a_run_keeps_its_ensemble(tmp_path, capsys):
    run = monge.fit("made", "moons", "width=8", "depth=1", budget="20steps", ensemble=2, bag=True,
                    out=tmp_path / "run")
    assert run.about["config"]["members"] == 2
    loaded = monge.load(run.folder)
    assert isinstance(loaded.model, Mixture)
    assert loaded.title == "2 x autoregressive.made on moons"
    assert loaded.sample(5).shape == run.sample(5).shape
    assert loaded.score().kind == "exact"
    assert "out_of_bag_log_likelihood" in loaded.evaluate()
    assert attempt(["fit", "--resume", str(run.folder), "--budget", "30steps", "-q"]) == 0
    assert monge.load(run.folder).result["step"] == 30
    assert isinstance(Config.from_dict(run.about["config"]), Mixture.Config)


def test_a_mixture_config_is_taken_as_it_is(tmp_path):
    made = registry.find("made")
    config = Mixture.Config(member=made.Config(width=8, depth=1), members=2)
    run = monge.fit(config, "moons", budget="3steps", out=tmp_path / "run")
    assert run.config == config
    assert issubclass(type(run.model), Model)


def test_bags_without_an_ensemble_are_refused(capsys):
    with pytest.raises(WordError, match="--ensemble 5"):
        monge.fit("made", "moons", bag=True)
    assert attempt(["fit", "made", "moons", "--bag"]) == 2
    assert attempt(["fit", "--resume", "x", "--ensemble", "2"]) == 2
    with pytest.raises(WordError, match="at least 1"):
        Mixture.Config(member=registry.find("made").Config(), members=0)
