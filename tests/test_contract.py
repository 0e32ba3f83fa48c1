"""The contract, over every model of the registry and every kind of event and condition it takes.

A model file is examined by being there. Each check asks for an ability, never for a name.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import worlds

from monge import registry
from monge.core.abilities import (
    CanComplete,
    CanDecode,
    CanEncode,
    CanSample,
    CanStream,
    HasLikelihood,
)
from monge.core.batch import Batch
from monge.core.error import DataError
from monge.core.noise import fresh
from monge.evaluate.judge import Judge
from monge.train import checkpoint
from monge.train.budget import Budget
from monge.train.fit import examine, fit
from monge.train.trainer import Trainer

KINDS = ("real", "binary", "levels", "label", "counts", "columns")


def subjects(*abilities: type) -> Iterator[tuple[str, str, bool]]:
    """(model, kind, conditioned or not) for all that have these abilities."""
    needed = {ability.__name__ for ability in abilities}
    for entry in registry.entries():
        if needed <= set(entry.abilities):
            for kind in KINDS:
                if kind in entry.events:
                    yield entry.name, kind, False
                    if "label" in entry.givens:
                        yield entry.name, kind, True


def every(*abilities: type, given: bool | None = None):
    """Run a check on every subject with these abilities; all checks of a subject run in one
    process, which fits it once."""
    cases = []
    for name, kind, conditioned in subjects(*abilities):
        if given in (None, conditioned):
            title = f"{name}-{kind}{'-given' * conditioned}"
            cases.append(pytest.param(name, kind, conditioned, id=title,
                                      marks=pytest.mark.xdist_group(title)))
    return pytest.mark.parametrize(("name", "kind", "given"), cases)


class Subject:
    """A tiny model of a world, fitted for a moment."""

    def __init__(self, name: str, kind: str, given: bool) -> None:
        self.owner = registry.find(name)
        space, batch = worlds.make(kind)
        self.space, self.batch = worlds.conditioned(space, batch) if given else (space, batch)
        self.train, self.valid = worlds.Rows(self.batch[:600]), worlds.Rows(self.batch[600:])
        self.config = self.owner.tiny(self.space)
        recipe = self.owner.suit(self.space).recipe
        self.recipe = replace(recipe, batch=64, warmup=10, check=20, patience=0, average=0.9,
                              rate=max(recipe.rate, 3e-3))

    def build(self):
        torch.manual_seed(0)
        return self.config.build(self.space)

    def trainer(self) -> Trainer:
        return Trainer(self.build(), self.train, self.recipe, seed=1)


@functools.cache
def subject(name: str, kind: str, given: bool) -> Subject:
    return Subject(name, kind, given)


@functools.cache
def trained(name: str, kind: str, given: bool):
    """The subject's model after a short fit, in float64, ready to be asked; and its two scores. A
    game of two players takes longer to show its worth than a likelihood."""
    case = subject(name, kind, given)
    train, valid = (worlds.Rows(rows.all.double()) for rows in (case.train, case.valid))
    trainer = Trainer(case.build().double(), train, case.recipe, seed=1)
    judge = Judge(trainer.model, valid)
    before = examine(trainer, judge)
    steps = 60 if isinstance(trainer.model, HasLikelihood) else 250
    for _ in fit(trainer, Budget(steps=steps), judge):
        pass
    after = examine(trainer, judge)
    trainer.average.put(trainer.average.weights)
    return trainer.model.eval(), before, after


@every()
def test_builds_and_is_described_by_its_config(name, kind, given):
    case = subject(name, kind, given)
    assert case.owner.refuses(case.space) is None
    suit = case.owner.suit(case.space)
    for config in (case.config, suit.config, suit.recipe):
        assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@every()
def test_losses_are_finite_and_each_parameter_is_moved_by_one_turn(name, kind, given):
    case = subject(name, kind, given)
    trainer = case.trainer()
    trainer.begin()
    moved = [id(p) for turn in trainer.turns for p in turn.params]
    own = [id(p) for p in trainer.model.parameters() if p.requires_grad]
    assert sorted(moved) == sorted(own)
    for turn in trainer.turns:
        with torch.set_grad_enabled(bool(turn.params)):
            losses = turn.loss(case.train.batch(torch.arange(32)))
        assert losses
        for term in losses.values():
            assert term.isfinite().all()
            assert term.shape in ((), (32,))


@every()
def test_interrupted_and_resumed_equals_uninterrupted(name, kind, given, tmp_path: Path):
    """Bit for bit, through the file."""
    case = subject(name, kind, given)
    whole, first, second = case.trainer(), case.trainer(), case.trainer()
    for trainer, steps in ((whole, 6), (first, 3)):
        for _ in range(steps):
            trainer.advance(1.0)
    checkpoint.save(tmp_path / "last.safetensors", *first.state())
    second.restore(*checkpoint.load(tmp_path / "last.safetensors"))
    for _ in range(3):
        second.advance(1.0)
    there, here = whole.state()[0], second.state()[0]
    assert there.keys() == here.keys()
    for key, value in there.items():
        assert torch.equal(value, here[key]), key


@every()
def test_a_short_fit_improves_the_held_out_score(name, kind, given):
    _, before, after = trained(name, kind, given)
    assert math.isfinite(after.value)
    assert after.better_than(before)


@every(CanSample)
def test_samples_are_events(name, kind, given):
    model, *_ = trained(name, kind, given)
    case = subject(name, kind, given)
    conditions = case.valid.whole().given
    x = model.sample(400, conditions, generator=fresh(0))
    assert x.shape == (400, *case.space.shape)
    assert x.dtype == (torch.int64 if kind == "label" else torch.float64)
    assert torch.equal(x, model.sample(400, conditions, generator=fresh(0)))
    assert not torch.equal(x, model.sample(400, conditions, generator=fresh(1)))
    for part, column in zip(case.space.parts, x.reshape(400, -1).T, strict=True):
        if part.kind in ("binary", "levels", "label"):
            top = 2 if part.kind == "binary" else part.size
            assert set(column.tolist()) <= set(range(top))
        elif part.kind == "counts":
            assert torch.equal(column, column.round())
        assert column.isfinite().all()


@every(CanSample, given=True)
def test_samples_heed_what_is_given(name, kind, given):
    model, *_ = trained(name, kind, given)
    one, two = (Batch(torch.tensor([code])) for code in (0, 2))
    x, y = (model.sample(400, {"label": b}, generator=fresh(0)).double() for b in (one, two))
    assert not torch.equal(x, y)
    with pytest.raises(DataError, match="label"):
        model.sample(3)
    with pytest.raises(DataError, match="2 rows"):
        model.sample(3, {"label": Batch(torch.tensor([0, 1]))})


@every(HasLikelihood)
def test_a_score_does_not_depend_on_batching(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    rows = case.valid.whole().double()
    together = model.likelihood(rows, generator=fresh(3)).value
    apart = torch.cat([model.likelihood(part, generator=fresh(3)).value for part in rows.chunk(7)])
    assert together.shape == (len(rows),)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)


@every(HasLikelihood, CanSample)
def test_an_exact_law_sums_to_one_and_draws_what_it_scores(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    label = {"label": Batch(torch.tensor([1]))} if given else {}
    kinds = model.likelihood(case.valid.whole().double()).kind
    if kinds != "exact":
        pytest.skip(f"its likelihood is a {kinds}")
    if not worlds.is_finite(case.space):
        pytest.skip("its states cannot be listed; verify integrates instead")
    every = worlds.states(case.space)
    given_all = {k: Batch(b.x.expand(len(every))) for k, b in label.items()}
    log_p = model.likelihood(Batch(every, given_all)).value
    assert abs(log_p.exp().sum().item() - 1) < 1e-10
    entropy = -(log_p.exp() * log_p).sum().item()
    x = model.sample(4000, label, generator=fresh(5))
    own = model.likelihood(Batch(x, {k: Batch(b.x.expand(4000)) for k, b in label.items()})).value
    assert abs(own.mean().item() + entropy) < 5 * own.std().item() / 4000**0.5


@every(HasLikelihood)
def test_a_bound_tightens(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    rows = case.valid.whole().double()
    one, many = (model.likelihood(rows, model.Scoring().override(f"samples={k}"), fresh(0))
                 if "samples" in model.Scoring.__dataclass_fields__ else model.likelihood(rows)
                 for k in (1, 64))
    assert one.kind in ("exact", "bound", "estimate")
    if one.kind != "bound":
        pytest.skip("its likelihood is no bound")
    gain = many.value - one.value
    assert gain.mean().item() > -3 * gain.std().item() / len(gain) ** 0.5


@every(HasLikelihood)
def test_what_is_missing_is_marginalised_or_refused(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    rows = case.valid.batch(torch.arange(8)).double()
    hidden = torch.ones(8, *case.space.shape, dtype=torch.bool)
    hidden.view(8, -1)[:, 0] = False
    question = replace(rows, observed=hidden)
    if not case.owner.missing:
        with pytest.raises(DataError, match="missing"):
            model.likelihood(question)
        return
    answer = model.likelihood(question)
    found, first = answer.value, case.space.parts[0]
    assert found.isfinite().all()
    if answer.kind != "exact" or first.kind not in ("binary", "levels", "label"):
        return
    top = 2 if first.kind == "binary" else first.size
    each = []
    for code in range(top):
        filled = rows.x.clone().reshape(8, -1)
        filled[:, 0] = code
        each.append(model.likelihood(replace(rows, x=filled.reshape(rows.x.shape))).value)
    torch.testing.assert_close(found, torch.logsumexp(torch.stack(each), 0))


@every(CanDecode)
def test_codes_have_the_shape_of_the_latent(name, kind, given):
    model, *_ = trained(name, kind, given)
    case = subject(name, kind, given)
    rows = case.valid.batch(torch.arange(8)).double()
    z = torch.zeros(8, *model.latent.shape, dtype=torch.float64)
    if isinstance(model, CanEncode):
        z = model.encode(rows)
        assert z.shape == (8, *model.latent.shape)
    assert model.decode(z, rows.given).shape == rows.x.shape


@every(CanComplete)
def test_completing_keeps_what_is_seen(name, kind, given):
    model, *_ = trained(name, kind, given)
    case = subject(name, kind, given)
    rows = case.valid.batch(torch.arange(50)).double()
    seen = torch.zeros(50, case.space.dims, dtype=torch.bool)
    seen[:, : case.space.dims // 2] = True
    seen = seen.reshape(50, *case.space.shape)
    question = replace(rows, observed=seen)
    x = model.complete(question, generator=fresh(0))
    assert x.shape == rows.x.shape
    assert torch.equal(x[seen], rows.x.to(x.dtype)[seen])
    assert torch.equal(x, model.complete(question, generator=fresh(0)))


@every(CanStream)
def test_the_last_of_a_stream_is_the_sample(name, kind, given):
    model, *_ = trained(name, kind, given)
    conditions = {"label": Batch(torch.tensor([1]))} if given else {}
    *_, last = model.stream(5, conditions, generator=fresh(2))
    assert torch.equal(last, model.sample(5, conditions, generator=fresh(2)))


@every(CanSample)
def test_cached_sampling_equals_uncached(name, kind, given):
    model, *_ = trained(name, kind, given)
    if "cached" not in model.Sampling.__dataclass_fields__:
        pytest.skip("has no cache")
    conditions = {"label": Batch(torch.tensor([1]))} if given else {}
    quick, slow = (model.sample(40, conditions, model.Sampling(cached=cached), fresh(2))
                   for cached in (True, False))
    torch.testing.assert_close(quick, slow, rtol=1e-10, atol=1e-10)
