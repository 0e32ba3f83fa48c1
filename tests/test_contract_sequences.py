"""The contract of variable-length rows, over every model that supports them."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import small_data
import torch
from training import advance

from monge import registry
from monge.core.abilities import CanComplete, CanSample, HasLikelihood
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.train.trainer import Trainer


def sequence_models(*abilities: type):
    """Run a check on every model that supports variable-length rows, on every kind of sequence."""
    needed = {ability.ability for ability in abilities}
    cases = [
        pytest.param(entry.name, kind, id=f"{entry.name}-{kind}-varying")
        for entry in registry.entries()
        if entry.supports_variable_length
        and not entry.is_predictor
        and needed <= set(entry.abilities)
        for kind in small_data.SEQUENCES
        if small_data.sequence(kind, 2)[0].kind in entry.events
    ]
    return pytest.mark.parametrize(("name", "kind"), cases)


@functools.cache
def trained(name: str, kind: str):
    """The smallest model of variable-length sequences after a few steps in float64; its rows."""
    space, batch = small_data.sequence(kind)
    rows, model_class = batch.double(), registry.find(name)
    torch.manual_seed(0)
    model = model_class.smallest_config(space).build(space).double()
    train_config = replace(model_class.defaults(space).train, batch_size=64, warmup=0, lr=3e-3)
    trainer = Trainer(model, small_data.Rows(rows[:400]), train_config, seed=1)
    advance(trainer, 20)
    return model.eval(), replace(rows[400:], row=torch.arange(200))


def goes_step_by_step(model) -> bool:
    """Whether it samples from the first step to the last, with a state that can be cached."""
    return "cached" in model.SamplingConfig.__dataclass_fields__


@sequence_models(HasLikelihood)
def test_padding_never_changes_a_number(name, kind):
    """Neither its values, nor its amount, nor the other rows of the batch matter."""
    model, rows = trained(name, kind)
    together = model.likelihood(rows).value
    assert together.isfinite().all()
    beyond = torch.arange(rows.x.shape[1]) >= rows.length[:, None]
    cleared = rows.x.clone()
    cleared[beyond] = 0
    torch.testing.assert_close(model.likelihood(replace(rows, x=cleared)).value, together)
    alone = [rows[i : i + 1] for i in range(8)]
    cut = [replace(row, x=row.x[:, : int(row.length)]) for row in alone]
    apart = torch.cat([model.likelihood(row).value for row in cut])
    torch.testing.assert_close(apart, together[:8], rtol=1e-9, atol=1e-9)
    torch.manual_seed(3)
    one = sum(term.mean() for term in model.loss(rows).values())
    torch.manual_seed(3)
    two = sum(term.mean() for term in model.loss(replace(rows, x=cleared)).values())
    torch.testing.assert_close(one, two)


@sequence_models(HasLikelihood)
def test_every_step_that_exists_counts(name, kind):
    model, rows = trained(name, kind)
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


@sequence_models(CanSample)
def test_sampled_sequences_have_the_requested_length(name, kind):
    model, _ = trained(name, kind)
    usual = int(model.typical) if model.space.end is None else model.space.shape[0]
    for options, steps in ((None, usual), (model.SamplingConfig(steps=7), 7)):
        x = model.sample(30, options=options, generator=make_generator(0))
        assert x.shape == (30, steps, *model.space.shape[1:])
        assert x.dtype == (torch.int64 if kind == "tokens" else torch.float64)
        assert torch.equal(x, model.sample(30, options=options, generator=make_generator(0)))
        if goes_step_by_step(model):
            slow = model.sample(
                30,
                options=replace(options or model.SamplingConfig(), cached=False),
                generator=make_generator(0),
            )
            torch.testing.assert_close(x, slow, rtol=1e-10, atol=1e-10)
        if model.space.size:
            assert set(x.flatten().tolist()) <= set(range(model.space.size))


@sequence_models(CanComplete)
def test_sequences_are_completed_from_their_beginning(name, kind):
    model, rows = trained(name, kind)
    observed = torch.arange(rows.x.shape[1]).expand(len(rows), -1) < 3
    x = model.complete(replace(rows, observed=observed), generator=make_generator(0))
    kept = observed | (torch.arange(rows.x.shape[1]) >= rows.length[:, None])
    assert torch.equal(x[kept], rows.x[kept])
    assert x.shape == rows.x.shape
    late = replace(rows, observed=~observed)
    if not goes_step_by_step(model):  # any pattern can be completed
        x = model.complete(late, generator=make_generator(0))
        assert torch.equal(x[~observed], rows.x[~observed])
        return
    with pytest.raises(DataError):
        model.complete(late)
