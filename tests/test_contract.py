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
from training import advance, assert_unbroken

from monge import registry
from monge.admit import admit
from monge.core.abilities import (
    CanComplete,
    CanDecode,
    CanEncode,
    CanSample,
    CanStream,
    HasCritic,
    HasDiscriminator,
    HasLikelihood,
    HasMarginals,
    HasMean,
    HasMode,
)
from monge.core.batch import Batch
from monge.core.config import Config
from monge.core.error import DataError
from monge.core.noise import fresh
from monge.core.space import Space
from monge.evaluate.judge import Judge
from monge.train.budget import Budget
from monge.train.fit import examine, fit
from monge.train.trainer import Trainer

KINDS = ("real", "binary", "levels", "label", "counts", "columns")
STEPS, DRAWS, GAME = 60, 100, 250
"""Steps of a fit: samples take longer to show their worth than a likelihood, and a game of two
that begins with noise takes longest."""


@functools.cache
def world(kind: str, how: str) -> tuple[Space, Batch]:
    """A world of this kind, given one thing or nothing."""
    alone = worlds.make(kind)
    return worlds.conditioned(*alone, how) if how else alone


def takes(name: str, space: Space) -> bool:
    try:
        admit(name, registry.find(name), space)
    except DataError:
        return False
    return True


@functools.cache
def examined(name: str) -> list[tuple[str, str]]:
    """The kinds of event a model takes, each alone and with the first condition it takes."""
    found = []
    for kind in KINDS:
        if not registry.find(name).predicts and takes(name, world(kind, "")[0]):
            found.append((kind, ""))
        names = worlds.conditions(world(kind, "")[0])
        found += [(kind, how) for how in names if takes(name, world(kind, how)[0])][:1]
    return found


def subjects(*abilities: type) -> Iterator[tuple[str, str, str]]:
    """(model, kind, condition or none) for all that have these abilities."""
    needed = {ability.__name__ for ability in abilities}
    for entry in registry.entries():
        if needed <= set(entry.abilities):
            yield from ((entry.name, *pair) for pair in examined(entry.name))


def every(*abilities: type, given: bool | None = None, finite: bool = False, field: str = ""):
    """Run a check on every subject with these abilities, and with a field of this name in its
    `Sampling`; all checks of a subject run in one process, which fits it once."""
    cases = [pytest.param(name, kind, how, id="-".join(filter(None, (name, kind, how))))
             for name, kind, how in subjects(*abilities)
             if given in (None, bool(how)) and worlds.is_finite(world(kind, "")[0]) >= finite
             and (not field or field in registry.find(name).Sampling.__dataclass_fields__)]
    return pytest.mark.parametrize(("name", "kind", "given"), cases)


class Subject:
    """A tiny model of a world, fitted for a moment."""

    def __init__(self, name: str, kind: str, given: str) -> None:
        self.owner = registry.find(name)
        self.space, self.batch = world(kind, given)
        self.train, self.valid = worlds.Rows(self.batch[:600]), worlds.Rows(self.batch[600:])
        self.config = self.owner.tiny(self.space)
        recipe = self.owner.suit(self.space).recipe
        self.recipe = replace(recipe, batch=64, warmup=10, check=20, patience=0, average=0.9,
                              rate=max(recipe.rate, 3e-3))

    def build(self):
        torch.manual_seed(0)
        return self.config.build(self.space)

    def told(self, *codes: int) -> dict[str, Batch]:
        """What it is given, to say that it is one of three."""
        return worlds.told(self.space, torch.tensor(codes))

    def trainer(self) -> Trainer:
        return Trainer(self.build(), self.train, self.recipe, seed=1)


@functools.cache
def subject(name: str, kind: str, given: str) -> Subject:
    return Subject(name, kind, given)


@functools.cache
def trained(name: str, kind: str, given: str):
    """The subject's model after a short fit, in float64, ready to be asked; and its two scores."""
    case = subject(name, kind, given)
    train, valid = (worlds.Rows(rows.all.double()) for rows in (case.train, case.valid))
    trainer = Trainer(case.build().double(), train, case.recipe, seed=1)
    judge = Judge(trainer.model, valid)
    before = examine(trainer, judge)
    game = isinstance(trainer.model, (HasCritic, HasDiscriminator)) and not case.owner.predicts
    steps = STEPS if isinstance(trainer.model, HasLikelihood) else GAME if game else DRAWS
    for _ in fit(trainer, Budget(steps=steps)):
        pass
    after = examine(trainer, judge)
    trainer.average.put(trainer.average.weights)
    return trainer.model.eval(), before, after


@pytest.mark.parametrize("name", [entry.name for entry in registry.entries()])
def test_takes_some_of_these_worlds(name):
    assert examined(name) or takes(name, worlds.sentences(4)[0])


@every()
def test_builds_and_is_described_by_its_config(name, kind, given):
    case = subject(name, kind, given)
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
    assert_unbroken(subject(name, kind, given).trainer, tmp_path)


@every()
def test_a_short_fit_improves_the_held_out_score(name, kind, given):
    _, before, after = trained(name, kind, given)
    assert math.isfinite(after.value)
    assert after.better_than(before)


@every(CanSample)
def test_samples_are_events(name, kind, given):
    model, *_ = trained(name, kind, given)
    case = subject(name, kind, given)
    conditions = case.valid.batch(torch.arange(100)).given
    x, again, other = (model.sample(100, conditions, generator=fresh(seed)) for seed in (0, 0, 1))
    assert x.shape == (100, *case.space.shape)
    assert x.dtype == (torch.int64 if kind == "label" else torch.float64)
    assert torch.equal(x, again)
    assert case.owner.unpaired or not torch.equal(x, other)  # sets nobody paired may have a map
    for part, column in zip(case.space.parts, x.reshape(100, -1).T, strict=True):
        if part.kind in ("binary", "levels", "label"):
            top = 2 if part.kind == "binary" else part.size
            assert set(column.tolist()) <= set(range(top))
        elif part.kind == "counts":
            assert torch.equal(column, column.round())
        assert column.isfinite().all()


@every(CanSample, given=True)
def test_samples_heed_what_is_given(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    x, y = (model.sample(100, case.told(code), generator=fresh(0)).double() for code in (0, 2))
    assert not torch.equal(x, y)
    with pytest.raises(DataError, match=next(iter(case.space.given))):
        model.sample(3)
    with pytest.raises(DataError, match="2 rows"):
        model.sample(3, case.told(0, 1))


@every(HasLikelihood)
def test_a_score_does_not_depend_on_batching(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    rows = case.valid.batch(torch.arange(40)).double()
    together = model.likelihood(rows, generator=fresh(3)).value
    apart = torch.cat([model.likelihood(part, generator=fresh(3)).value for part in rows.chunk(3)])
    assert together.shape == (len(rows),)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)


@every(HasLikelihood, CanSample, finite=True)
def test_an_exact_law_sums_to_one_and_draws_what_it_scores(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    label = case.told(1)
    kinds = model.likelihood(case.valid.batch(torch.arange(2)).double()).kind
    if kinds != "exact":
        pytest.skip(f"its likelihood is a {kinds}")
    every = worlds.states(case.space)
    log_p = model.likelihood(Batch(every, case.told(*[1] * len(every)))).value
    assert abs(log_p.exp().sum().item() - 1) < 1e-10
    entropy = -(log_p.exp() * log_p).sum().item()
    x = model.sample(4000, label, generator=fresh(5))
    own = model.likelihood(Batch(x, case.told(*[1] * 4000))).value
    assert abs(own.mean().item() + entropy) < 5 * own.std().item() / 4000**0.5


@every(HasLikelihood)
def test_a_bound_tightens(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    rows = case.valid.batch(torch.arange(200)).double()
    kinds = model.likelihood(rows[:2]).kind
    assert kinds in ("exact", "bound", "estimate")
    if kinds != "bound":
        pytest.skip("its likelihood is no bound")
    one, many = (model.likelihood(rows, model.Scoring().override(f"samples={k}"), fresh(0))
                 for k in (1, 16))
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


@every(HasMean, CanSample, given=True)
def test_the_mean_is_that_of_samples(name, kind, given):
    model, *_ = trained(name, kind, given)
    case = subject(name, kind, given)
    label = case.told(1)
    x, mean = model.sample(4000, label, generator=fresh(4)), model.mean(label)[0]
    if kind == "label":
        assert abs(mean.sum().item() - 1) < 1e-12
        x = torch.nn.functional.one_hot(x, case.space.size).double()
    for part, draws, value in zip(case.space.parts, x.reshape(4000, -1).T, mean.flatten(),
                                  strict=False):
        if kind == "label" or part.kind != "label":
            error = draws.std() / len(draws) ** 0.5
            assert abs(draws.mean() - value) < 5 * error + 1e-9, part


@every(HasMode, HasLikelihood, given=True)
def test_no_value_is_more_probable_than_the_mode(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    rows = case.valid.batch(torch.arange(20)).double()
    mode = model.mode(rows.given)
    assert mode.shape == rows.x.shape
    assert mode.dtype == rows.x.dtype
    best = model.likelihood(Batch(mode, rows.given)).value
    assert (best >= model.likelihood(rows).value - 1e-9).all()
    if worlds.is_finite(case.space):
        for x in worlds.states(case.space):
            other = Batch(x.expand(20, *x.shape), rows.given)
            assert (best >= model.likelihood(other).value - 1e-9).all()


@every(HasMarginals, HasLikelihood, CanSample, given=True)
def test_marginals_are_those_of_the_law(name, kind, given):
    (model, *_), case = trained(name, kind, given), subject(name, kind, given)
    label = case.told(1)
    law, x = model.marginals(label), model.sample(4000, label, generator=fresh(6))
    x = x.reshape(4000, -1).double()
    for level in (0.1, 0.5, 0.9):
        t = law.quantile(level)  # (1, D)
        below = law.cumulative(t)[0]
        share = (x <= t + 1e-9).double().mean(0)
        assert (below >= level - 1e-6).all()
        assert (share - below).abs().max() < 5 * 0.5 / 4000**0.5
    for part, probabilities, draws in zip(case.space.parts, law.probabilities, x.T, strict=True):
        if part.kind in ("real", "counts"):
            assert probabilities.shape[-1] == 0
            continue
        assert abs(probabilities.sum().item() - 1) < 1e-9
        seen = torch.bincount(draws.long(), minlength=probabilities.shape[-1]) / len(draws)
        assert (seen - probabilities[0]).abs().max() < 5 * 0.5 / 4000**0.5


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


def briefly(model) -> Config:
    """How to draw what is hidden: by few moves, where a chain draws it."""
    how = model.Sampling()
    return how.override("moves=3", "leaps=2") if "moves" in how.__dataclass_fields__ else how


@every(CanComplete)
def test_completing_keeps_what_is_seen(name, kind, given):
    model, *_ = trained(name, kind, given)
    case = subject(name, kind, given)
    rows = case.valid.batch(torch.arange(20)).double()
    seen = torch.zeros(20, case.space.dims, dtype=torch.bool)
    seen[:, : case.space.dims // 2] = True
    seen = seen.reshape(20, *case.space.shape)
    question, how = replace(rows, observed=seen), briefly(model)
    x = model.complete(question, how, fresh(0))
    assert x.shape == rows.x.shape
    assert torch.equal(x[seen], rows.x.to(x.dtype)[seen])
    assert torch.equal(x, model.complete(question, how, fresh(0)))


@every(CanStream)
def test_the_last_of_a_stream_is_the_sample(name, kind, given):
    model, *_ = trained(name, kind, given)
    conditions = subject(name, kind, given).told(1)
    *_, last = model.stream(5, conditions, generator=fresh(2))
    assert torch.equal(last, model.sample(5, conditions, generator=fresh(2)))


@every(CanSample, field="cached")
def test_cached_sampling_equals_uncached(name, kind, given):
    model, *_ = trained(name, kind, given)
    conditions = subject(name, kind, given).told(1)
    quick, slow = (model.sample(40, conditions, model.Sampling(cached=cached), fresh(2))
                   for cached in (True, False))
    torch.testing.assert_close(quick, slow, rtol=1e-10, atol=1e-10)


def chains(*abilities: type):
    """Run a check on every model that takes rows of unequal length, on every kind of sequence."""
    needed = {ability.__name__ for ability in abilities}
    cases = [pytest.param(entry.name, kind, id=f"{entry.name}-{kind}-varying")
             for entry in registry.entries()
             if entry.lengths and not entry.predicts and needed <= set(entry.abilities)
             for kind in worlds.SEQUENCES if worlds.sequence(kind, 2)[0].kind in entry.events]
    return pytest.mark.parametrize(("name", "kind"), cases)


@functools.cache
def varying(name: str, kind: str):
    """A tiny model of sequences whose length varies, after a few steps, in float64; its rows."""
    space, batch = worlds.sequence(kind)
    rows, owner = batch.double(), registry.find(name)
    torch.manual_seed(0)
    model = owner.tiny(space).build(space).double()
    recipe = replace(owner.suit(space).recipe, batch=64, warmup=0, rate=3e-3)
    trainer = Trainer(model, worlds.Rows(rows[:400]), recipe, seed=1)
    advance(trainer, 20)
    return model.eval(), replace(rows[400:], row=torch.arange(200))


@chains(HasLikelihood)
def test_padding_never_changes_a_number(name, kind):
    """Neither what it holds, nor how much of it there is, nor the rows beside."""
    model, rows = varying(name, kind)
    together = model.likelihood(rows).value
    assert together.isfinite().all()
    beyond = torch.arange(rows.x.shape[1]) >= rows.length[:, None]
    cleared = rows.x.clone()
    cleared[beyond] = 0
    torch.testing.assert_close(model.likelihood(replace(rows, x=cleared)).value, together)
    alone = [rows[i:i + 1] for i in range(8)]
    cut = [replace(row, x=row.x[:, : int(row.length)]) for row in alone]
    apart = torch.cat([model.likelihood(row).value for row in cut])
    torch.testing.assert_close(apart, together[:8], rtol=1e-9, atol=1e-9)
    torch.manual_seed(3)
    one = sum(term.mean() for term in model.loss(rows).values())
    torch.manual_seed(3)
    two = sum(term.mean() for term in model.loss(replace(rows, x=cleared)).values())
    torch.testing.assert_close(one, two)


@chains(HasLikelihood)
def test_every_step_that_exists_counts(name, kind):
    model, rows = varying(name, kind)
    row = rows[rows.length > 5][:16]
    if (end := model.space.end) is not None:
        row = row[~(row.x[:, :5] == end).any(1)]
    assert len(row)
    shorter = replace(row, length=row.length - 1)
    changed = row.x.clone()
    changed[torch.arange(len(row)), row.length - 1] = 1
    whole, less = (model.likelihood(each).value for each in (row, shorter))
    other = model.likelihood(replace(row, x=changed)).value
    assert bool(((whole != less) | (whole != other)).any())
    same = model.likelihood(replace(shorter, x=changed)).value
    torch.testing.assert_close(same, less)


@chains(CanSample)
def test_sequences_are_drawn_as_long_as_asked(name, kind):
    model, _ = varying(name, kind)
    usual = int(model.typical) if model.space.end is None else model.space.shape[0]
    for how, steps in ((None, usual), (model.Sampling(steps=7), 7)):
        x = model.sample(30, how=how, generator=fresh(0))
        assert x.shape == (30, steps, *model.space.shape[1:])
        assert x.dtype == (torch.int64 if kind == "tokens" else torch.float64)
        assert torch.equal(x, model.sample(30, how=how, generator=fresh(0)))
        slow = model.sample(30, how=replace(how or model.Sampling(), cached=False),
                            generator=fresh(0))
        torch.testing.assert_close(x, slow, rtol=1e-10, atol=1e-10)
        if model.space.size:
            assert set(x.flatten().tolist()) <= set(range(model.space.size))


@chains(CanComplete)
def test_sequences_are_completed_from_their_beginning(name, kind):
    model, rows = varying(name, kind)
    observed = torch.arange(rows.x.shape[1]).expand(len(rows), -1) < 3
    x = model.complete(replace(rows, observed=observed), generator=fresh(0))
    kept = observed | (torch.arange(rows.x.shape[1]) >= rows.length[:, None])
    assert torch.equal(x[kept], rows.x[kept])
    assert x.shape == rows.x.shape
    with pytest.raises(DataError, match="come first"):
        model.complete(replace(rows, observed=~observed))
