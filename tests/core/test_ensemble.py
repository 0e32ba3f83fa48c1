"""An ensemble is one model: its numbers are means of its members', and it trains as they would."""

import json
import math
from dataclasses import replace

import pytest
import small_data
import torch
from ensembles import classes, mixture, regression, trained
from training import assert_unbroken

import monge
from monge import registry
from monge.cli.main import attempt
from monge.core.abilities import (
    CanComplete,
    CanEncode,
    CanSample,
    CanStream,
    Finding,
    HasConditionals,
    HasLikelihood,
    HasMean,
    HasMode,
    Likelihood,
)
from monge.core.batch import Batch
from monge.core.config import Config
from monge.core.ensemble import (
    Ensemble,
    EnsembleComplete,
    as_ensemble,
    ensemble_class,
    mixture_bound,
    weakest_kind,
)
from monge.core.errors import DataError, UsageError
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import OptimiserConfig, TrainConfig
from monge.evaluate.likelihood import HeldOutScorer
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

MEMBERS = [
    ("made", "binary"),
    ("made", "real"),
    ("vae", "real"),
    ("wgan", "real"),
    ("chow_liu", "columns"),
    ("gaussian", "real"),
    ("deep_nade", "label"),
]


@pytest.mark.parametrize(("name", "kind"), MEMBERS)
def test_a_mixture_has_the_abilities_that_carry_over(name, kind):
    owner, (model, _) = registry.find(name), mixture(name, kind, steps=2)
    for ability in (CanSample, HasLikelihood, CanStream, HasMean, HasMode):
        assert isinstance(model, ability) == issubclass(owner, ability)
    assert not isinstance(model, CanEncode)
    assert (model.events, model.supports_missing) == (owner.events, owner.supports_missing)
    assert model.defaults(model.space).config.members == 5
    config = model.config
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    x = model.sample(50, generator=make_generator(3))
    assert x.shape == (50, *model.space.shape)
    assert torch.equal(x, model.sample(50, generator=make_generator(3)))
    assert not torch.equal(x, model.sample(50, generator=make_generator(4)))


@pytest.mark.parametrize(("name", "kind"), [m for m in MEMBERS if m[0] not in ("vae", "wgan")])
def test_an_exact_score_is_that_of_the_mean_density(name, kind):
    model, rows = mixture(name, kind, bag=True)
    batch = rows.batch(torch.arange(600, 620))
    with torch.no_grad():
        each = torch.stack([member.likelihood(batch).value for member in model.members])
        found = model.likelihood(batch)
    assert found.kind == "exact"
    torch.testing.assert_close(found.value.exp(), each.exp().mean(0))
    assert not torch.allclose(each[0], each[1])


def test_a_mixture_sums_to_one_and_samples_what_it_scores():
    model, _ = mixture("made", "binary", steps=60)
    states = small_data.states(model.space)
    p = model.likelihood(Batch(states)).value.exp()
    x = model.sample(20_000, generator=make_generator(0))
    frequency = (x[:, None] == states).all(2).double().mean(0)
    assert abs(p.sum().item() - 1) < 1e-10
    assert 0.5 * (frequency - p).abs().sum() < 0.02
    *_, last = model.stream(30, generator=make_generator(2))
    assert torch.equal(last, model.sample(30, generator=make_generator(2)))
    assert len(model.orders) == 3


def test_weights_that_share_the_noise_of_a_bound_lift_it_above_the_truth():
    """Two members of evidence 0 whose bounds are noisy: the plain mean exceeds 0."""
    noise = 2 * torch.randn(2, 2, 100_000, generator=make_generator(0), dtype=torch.float64)
    value, free = noise - 0.5  # E value = -0.5 <= 0 = log p
    plain = value.logsumexp(0) - math.log(2)
    assert plain.mean() > 0.05
    assert (mixture_bound(value, free) - math.log(2)).mean() < -0.4
    exact = torch.randn(3, 10, dtype=torch.float64)
    torch.testing.assert_close(mixture_bound(exact, exact), exact.logsumexp(0))


def test_a_mixture_of_bounds_is_a_bound_below_the_evidence():
    model, rows = mixture("vae", "real", steps=40)
    batch = rows.batch(torch.arange(600, 700))
    with torch.no_grad():
        one, many = (
            model.likelihood(batch, model.LikelihoodConfig(samples=k), make_generator(0))
            for k in (1, 64)
        )
        again = torch.cat(
            [
                model.likelihood(part, model.LikelihoodConfig(samples=64), make_generator(0)).value
                for part in batch.chunk(3)
            ]
        )
    assert one.kind == many.kind == "bound"
    assert (one.value.mean() - many.value.mean()).item() < 0.02
    torch.testing.assert_close(many.value, again)


def test_the_weakest_kind_decides():
    kinds = [Likelihood(torch.zeros(1), kind) for kind in ("exact", "bound", "estimate")]
    assert [weakest_kind(kinds[:k]) for k in (1, 2, 3)] == ["exact", "bound", "estimate"]


def test_a_completion_weighs_members_by_what_is_seen():
    model, _ = mixture("made", "binary", steps=150)
    states = small_data.states(model.space)
    p = model.likelihood(Batch(states)).value.exp()
    rows = Batch(torch.ones(20_000, 5, dtype=torch.float64))
    seen = torch.arange(5) < 2
    x = model.complete(replace(rows, observed=seen.expand(20_000, 5)), generator=make_generator(0))
    assert (x[:, :2] == 1).all()
    agrees = (states[:, :2] == 1).all(1)
    due = torch.where(agrees, p, 0.0) / p[agrees].sum()
    frequency = (x[:, None] == states).all(2).double().mean(0)
    assert 0.5 * (frequency - due).abs().sum() < 0.02


def test_a_completion_of_image_models_refuses_other_patterns():
    model, rows = mixture("pixelcnn", "levels", steps=1)
    batch = rows.batch(torch.arange(3))
    seen = torch.tensor([False, True, True, True]).reshape(1, 1, 2, 2).expand(3, 1, 2, 2)
    with pytest.raises(DataError, match="come first"):
        model.complete(replace(batch, observed=seen))


def test_a_completion_of_references_takes_any_pattern():
    model, rows = mixture("gaussian", "real", bag=True, steps=1)
    batch = rows.batch(torch.arange(10))
    seen = torch.tensor([False, True]).expand(10, 2)
    x = model.complete(replace(batch, observed=seen), generator=make_generator(0))
    assert isinstance(model, CanComplete)
    assert torch.equal(x[:, 1], batch.x[:, 1])
    assert not torch.equal(x[:, 0], batch.x[:, 0])


def test_updates_are_the_members_own():
    model, _ = mixture("wgan", "real", members=2, steps=0)
    names = [update.name for update in model.updates()]
    assert names[:2] == ["member1/critic", "member1/generator"]
    assert len(names) == 2 * len(model.members[0].updates())
    train_config = TrainConfig(
        updates={"critic": OptimiserConfig(lr=0.5)}, freeze=("trunk",), lr_multipliers={"out": 0.1}
    )
    spread = model.config.train_config(train_config)
    assert spread.optimiser_config("member2/critic").lr == 0.5
    assert spread.freeze == ("members.0.trunk", "members.1.trunk")
    assert set(spread.lr_multipliers) == {"members.0.out", "members.1.out"}


def test_members_begin_apart_and_see_batches_of_their_own(monkeypatch):
    model, rows = mixture("made", "real", members=2, steps=0)
    first, second = (torch.cat([p.flatten() for p in m.parameters()]) for m in model.members)
    assert not torch.equal(first, second)
    seen = []
    for member in model.members:
        monkeypatch.setattr(
            member,
            "loss",
            lambda batch, right=member.loss: (seen.append(batch.row), right(batch))[1],
        )
    trainer = Trainer(model, rows, TrainConfig(batch_size=50))
    trainer.train_step(1.0)
    assert {len(rows) for rows in seen} == {50}
    assert set(seen[0].tolist()) != set(seen[1].tolist())


@pytest.mark.parametrize("world", [regression, classes])
def test_an_ensemble_predicts_the_mean_of_its_members(world):
    space, batch = world()
    config = Ensemble.Config(member=registry.find("predict.mlp").smallest_config(space), members=3)
    model = trained(config, space, batch).model.eval()
    given = batch.double().given
    each = torch.stack([member.mean(given) for member in model.members])
    torch.testing.assert_close(model.mean(given), each.mean(0))
    mode = model.mode(given)
    assert mode.shape == batch.x.shape
    if space.kind == "label":
        assert torch.equal(mode, model.mean(given).argmax(1))
    marginals = model.marginals(given)
    assert (marginals.quantile(0.05) < marginals.quantile(0.95)).all() or space.kind == "label"


@pytest.mark.parametrize(("name", "kind"), [("made", "real"), ("wgan", "real")])
def test_interrupted_and_resumed_equals_uninterrupted(name, kind, tmp_path):
    owner, (space, batch) = registry.find(name), small_data.make(kind)
    config = Ensemble.Config(member=owner.smallest_config(space), members=2, bag=True)
    train_config = config.train_config(owner.defaults(space).train)
    assert_unbroken(lambda: trained(config, space, batch, 0, train_config, False), tmp_path)


def test_patience_watches_the_mixture():
    model, rows = mixture("made", "real", members=2, steps=0)
    trainer = Trainer(model, rows, TrainConfig(batch_size=64, eval_every=10, patience=2, lr=3e-2))
    *_, last = fit(trainer, Budget(steps=400), HeldOutScorer(model, rows))
    assert trainer.best is not None
    assert last.stopped in ("patience", "budget")


def test_a_run_keeps_its_ensemble(tmp_path, capsys):
    run = monge.fit(
        "made",
        "moons",
        "data.rows=300",
        "width=8",
        "depth=1",
        budget="20steps",
        ensemble=2,
        bag=True,
        out=tmp_path / "run",
    )
    assert run.metadata["config"]["members"] == 2
    loaded = monge.load(run.folder)
    assert isinstance(loaded.model, Ensemble)
    assert loaded.title == "2 x autoregressive.made on moons"
    assert loaded.sample(5).shape == run.sample(5).shape
    assert loaded.log_likelihood().kind == "exact"
    assert "out_of_bag_log_likelihood" in loaded.evaluate()
    assert attempt(["fit", "--resume", str(run.folder), "--budget", "30steps", "-q"]) == 0
    assert monge.load(run.folder).result["step"] == 30
    assert isinstance(Config.from_dict(run.metadata["config"]), Ensemble.Config)


def test_a_mixture_config_is_taken_as_it_is(tmp_path):
    made = registry.find("made")
    config = Ensemble.Config(member=made.Config(width=8, depth=1), members=2)
    run = monge.fit(config, "moons", budget="3steps", out=tmp_path / "run")
    assert run.config == config
    assert issubclass(type(run.model), Model)


def test_a_majority_vote_counts_members_and_breaks_ties_by_the_mean(monkeypatch):
    space, batch = classes()
    member = registry.find("predict.mlp").smallest_config(space)
    model = Ensemble.Config(member=member, members=4).build(space).eval()
    rows = batch[:3]
    modes = [[0, 1, 2], [0, 1, 1], [1, 1, 1], [2, 0, 2]]
    for each, found in zip(model.members, modes, strict=True):
        monkeypatch.setattr(each, "mode", lambda *a, found=found: torch.tensor(found).float())
    vote = model.majority(rows.given)
    assert vote[:2].tolist() == [0, 1]
    chosen = model.marginals(rows.given).probabilities[0][2]
    assert vote[2] == (1 if chosen[1] >= chosen[2] else 2)


def test_a_majority_of_bits_has_two_values(monkeypatch):
    space = Space(kind="binary", given={"x": Space(kind="real", shape=(2,))})
    member = registry.find("predict.mlp").smallest_config(space)
    model = Ensemble.Config(member=member, members=3).build(space).eval()
    for each, found in zip(model.members, [[1, 0], [1, 1], [0, 0]], strict=True):
        monkeypatch.setattr(each, "mode", lambda *a, found=found: torch.tensor(found).float())
    asked = []
    right = model.likelihood
    monkeypatch.setattr(
        model, "likelihood", lambda batch, options: asked.append(batch.x) or right(batch, options)
    )
    assert model.majority({"x": Batch(torch.zeros(2, 2))}).tolist() == [1, 0]
    assert torch.stack(asked).tolist() == [[0, 0], [1, 1]]


def test_the_mode_of_labels_need_not_be_that_of_a_member(monkeypatch):
    space, batch = classes()
    member = registry.find("predict.mlp").smallest_config(space)
    model = Ensemble.Config(member=member, members=2).build(space).eval()
    for each, found in zip(model.members, (0.0, 2.0), strict=True):
        monkeypatch.setattr(each, "mode", lambda *a, found=found: torch.full((4,), found))
    log_p = torch.tensor([0.3, 0.4, 0.3] + [0.0] * (space.size - 3)).log()
    monkeypatch.setattr(
        model, "likelihood", lambda batch, options: Likelihood(log_p[batch.x.long()], "exact")
    )
    assert model.mode(batch[:4].given).tolist() == [1, 1, 1, 1]


def test_an_ensemble_has_the_losses_conditionals_and_findings_of_its_members():
    model, rows = mixture("made", "real", members=2, steps=0)
    batch = rows.whole()[:6]
    losses = model.loss(batch)
    first = model.each[0].conditionals(batch)
    torch.testing.assert_close(model.conditionals(batch), first)
    for k, member in enumerate(model.each):
        for name, term in member.loss(batch).items():
            torch.testing.assert_close(losses[f"member{k + 1}/{name}"], term)
        for own in range(len(member.orders)):
            place = k * len(member.orders) + own
            assert torch.equal(model.orders[place], member.orders[own])
            torch.testing.assert_close(
                model.conditionals(batch, place), member.conditionals(batch, own)
            )
            torch.testing.assert_close(
                model.parameters_of_conditionals(batch, place),
                member.parameters_of_conditionals(batch, own),
            )
    assert len(losses) == 2 * len(model.each[0].loss(batch))
    assert model.each[0].completion in model.completion
    small = type(model).smallest_config(model.space)
    assert (small.members, small.member) == (2, model.each[0].smallest_config(model.space))
    wrong = Space(kind="tokens", shape=(3,), size=4)
    owner = type(model.each[0])
    assert type(model).unsupported_reason(wrong) == owner.unsupported_reason(wrong)
    image = registry.find("predict.mlp")
    alone = Space(kind="label", size=3)
    assert ensemble_class(image).unsupported_reason(alone) == image.unsupported_reason(alone)
    assert as_ensemble(small, TrainConfig(), 0, False) == (small, TrainConfig())
    with pytest.raises(UsageError, match="ensemble"):
        as_ensemble(small, TrainConfig(), 0, True)


def test_findings_are_counted_over_members(monkeypatch):
    space, _ = small_data.make("real")
    config = Ensemble.Config(member=registry.find("vae").smallest_config(space), members=3)
    model = config.build(space)
    both, one = Finding("a", "first", "x"), Finding("b", "second", "y")
    for member, found in zip(model.each, ([both], [both, one], []), strict=True):
        monkeypatch.setattr(member, "diagnose", lambda batch, found=found: found)
    found = {finding.name: finding.sentence for finding in model.diagnose(None)}
    assert set(found) == {"a", "b"}
    assert "2 of 3" in found["a"]
    assert "1 of 3" in found["b"]


def test_the_mean_of_a_name_is_its_most_probable_code():
    columns = (Space(kind="real", name="a"), Space(kind="label", size=3, name="b"))
    given = {"x": Space(kind="real", shape=(2,))}
    space = Space(kind="columns", shape=(2,), columns=columns, given=given)
    member = registry.find("predict.mlp").smallest_config(space)
    model = Ensemble.Config(member=member, members=3).build(space).double().eval()
    for parameter in model.parameters():
        parameter.data.normal_(generator=make_generator(parameter.numel()))
    rows = {"x": Batch(torch.randn(20, 2, generator=make_generator(1)).double())}
    mean, each = model.mean(rows), torch.stack([one.mean(rows) for one in model.each])
    torch.testing.assert_close(mean[:, 0], each[:, :, 0].mean(0))
    codes = model.marginals(rows).probabilities[1].argmax(1)
    assert torch.equal(mean[:, 1], codes.double())


def test_the_likelihood_of_the_first_entries_is_that_of_their_conditionals():
    model, rows = mixture("made", "real", members=1, steps=0)
    member, batch = model.each[0], rows.whole()[:5]
    (order,) = member.orders
    seen = (order < 1).expand(5, -1)  # the first entry in the order of the model
    found = HasConditionals.observed_log_prob(member, replace(batch, observed=seen))
    torch.testing.assert_close(found, member.conditionals(batch)[seen])
    whole = HasConditionals.observed_log_prob(member, batch)
    torch.testing.assert_close(whole, member.conditionals(batch).sum(1))
    with pytest.raises(DataError, match="order"):
        HasConditionals.observed_log_prob(member, replace(batch, observed=~seen))


def test_completion_needs_members_that_complete_and_weigh_what_is_known():
    """By conditionals, or by a likelihood of rows with missing values."""

    class Weighed(HasLikelihood):
        supports_missing = True

    class Whole(HasLikelihood):
        supports_missing = False

    for kinds, applies in {
        (CanSample, CanComplete, HasConditionals): True,
        (CanSample, CanComplete, Weighed): True,
        (CanSample, CanComplete, Whole): False,
        (CanSample, CanComplete): False,
        (CanSample, HasConditionals): False,
        (CanComplete, HasConditionals): False,
        (CanSample, Weighed): False,
    }.items():
        assert EnsembleComplete.applies_to(type("Member", kinds, {})) is applies
