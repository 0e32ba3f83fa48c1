"""MADE sums to one, uses its conditions, and samples the same step by step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from entries import BINARY, COLUMNS, LEVELS, TABLE, conditions, states, with_given

from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.made import MADE

SHAPES = [
    {},
    {"width": 7, "depth": 1, "residual": False, "direct": False, "activation": "tanh"},
    {"orders": 2, "masks": 2, "order": "random"},
]


def made(space: Space, **settings: object) -> MADE:
    config = MADE.Config(**{"width": 24, "depth": 2, "components": 2, **settings})
    torch.manual_seed(0)
    model = config.build(space).double().eval()
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("space", [BINARY, LEVELS], ids=lambda s: s.kind)
def test_sums_to_one_over_every_state(space, shape):
    x = states(*[max(space.size, 2)] * space.dims).reshape(-1, *space.shape)
    log_p = made(space, **shape).log_prob(x)
    assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("steps", [0, 5])
def test_a_table_sums_and_integrates_to_one(steps):
    model = made(Space(kind="columns", shape=(4,), columns=COLUMNS[:4]), number_steps=steps)
    codes = states(2, 3, 4)  # (24, 3)
    numbers = 2 * torch.linspace(-10, 10, 20_001, dtype=torch.float64).sinh()
    x = torch.cat([codes.repeat_interleave(20_001, 0), numbers.repeat(24)[:, None]], 1)
    density = model.log_prob(x).exp().reshape(24, 20_001)
    assert torch.trapezoid(density, numbers).sum().item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_condition_has_its_own_distribution(shape):
    model, x = made(with_given(BINARY), **shape), states(*[2] * 6)
    one, other = (model.log_prob(Batch(x, conditions(1, label))) for label in (0, 1))
    assert one.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert other.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "space", [BINARY, LEVELS, TABLE, Space(kind="label", size=4)], ids=lambda s: s.kind
)
def test_cached_samples_equal_full_passes_and_the_end_of_a_stream(space, shape):
    model, given = made(with_given(space), **shape), conditions(30)
    quick = model.sample(30, given, generator=make_generator(1))
    slow = model.sample(30, given, MADE.SamplingConfig(cached=False), make_generator(1))
    *_, last = model.stream(30, given, generator=make_generator(1))
    assert quick.shape == (30, *space.shape)
    assert quick.dtype == (torch.int64 if space.kind == "label" else torch.float64)
    torch.testing.assert_close(quick, slow, rtol=0, atol=1e-10)
    assert torch.equal(quick, last)


def test_steps_beside_numbers_are_read_alike_by_samples_and_scores():
    model = made(TABLE, number_steps=5)
    quick = model.sample(30, generator=make_generator(1))
    slow = model.sample(30, None, MADE.SamplingConfig(cached=False), make_generator(1))
    torch.testing.assert_close(quick, slow, rtol=0, atol=1e-10)
    assert not torch.allclose(quick, made(TABLE).sample(30, generator=make_generator(1)))


def test_rows_in_pieces_are_the_same_rows(monkeypatch):
    model = made(TABLE, orders=2)
    whole = model.sample(30, generator=make_generator(1))
    monkeypatch.setattr("monge.models.autoregressive._base.ROWS_PER_PASS", 4)
    torch.testing.assert_close(model.sample(30, generator=make_generator(1)), whole)


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_what_it_scores(shape):
    model, n = made(BINARY, **shape), 8000
    log_p = model.log_prob(states(*[2] * 6))
    own = model.log_prob(model.sample(n, generator=make_generator(2)))
    negentropy = (log_p.exp() * log_p).sum()
    assert (own.mean() - negentropy).abs() < 4 * own.std() / math.sqrt(n)


def test_conditionals_are_blind_to_what_follows():
    model = made(TABLE, order="random", orders=2)
    x = model.sample(1, generator=make_generator(3))
    for member, places in enumerate(model.orders):
        before = model.parameters_of_conditionals(Batch(x), member)
        assert before.shape == (1, 5, 64)
        for entry in range(5):
            changed = x.clone()
            changed[:, entry] = 1 - changed[:, entry].clamp(0, 1)
            after = model.parameters_of_conditionals(Batch(changed), member)
            kept = places <= places[entry]
            assert torch.equal(before[:, kept], after[:, kept])


@pytest.mark.parametrize("masks", [1, 3])
def test_completion_keeps_what_is_seen_and_follows_the_conditional(masks):
    model, n = made(BINARY, masks=masks), 8000
    x = torch.tensor([[1.0, 0, 1, 0, 0, 0]], dtype=torch.float64).expand(n, 6)
    seen = torch.arange(6).expand(n, 6) < 3
    hidden = torch.where(seen, x, torch.nan)
    samples = model.complete(Batch(hidden, observed=seen), generator=make_generator(4))
    assert torch.equal(samples[:, :3], x[:, :3])
    ends = states(2, 2, 2)
    log_p = model.log_prob(torch.cat([x[:8, :3], ends], 1))
    due = (log_p - log_p.logsumexp(0)).exp()  # p(last three | first three)
    found = torch.bincount(
        (samples[:, 3:] @ torch.tensor([4.0, 2, 1]).double()).long(), minlength=8
    )
    distance = ((found - n * due).square() / (n * due)).sum()
    assert distance < 7 + 5 * math.sqrt(14)


def test_another_pattern_is_completed_by_particles():
    seen = torch.ones(2, 6, dtype=torch.bool)
    seen[1, 2] = False
    x = torch.zeros(2, 6, dtype=torch.float64)
    model = made(BINARY)
    done = model.complete(Batch(x, observed=seen), generator=make_generator(0))
    assert torch.equal(done[seen], x[seen])
    assert "128 particles" in model.completion


def test_missing_values_are_refused():
    seen = torch.ones(2, 6, dtype=torch.bool)
    seen[1, 2] = False
    with pytest.raises(DataError, match="made"):
        made(BINARY).likelihood(Batch(torch.zeros(2, 6).double(), observed=seen))


@pytest.mark.parametrize("space", [BINARY, LEVELS], ids=lambda s: s.kind)
def test_learns_a_copy_of_its_first_entry(space):
    torch.manual_seed(0)
    model = MADE.Config(width=32, depth=1, components=2).build(space)
    first = torch.randint(2, (256, 1)).float()
    x = first.expand(256, space.dims).reshape(256, *space.shape)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        model.loss(Batch(x))["nll"].mean().backward()
        optimiser.step()
    assert model.log_prob(x).mean().item() == pytest.approx(-math.log(2), abs=0.1)


def test_defaults_are_buildable_for_every_kind():
    for space in (BINARY, LEVELS, TABLE, with_given(TABLE), Space(kind="label", size=4)):
        for rows in (100, 100_000):
            space = replace(space, rows=rows)
            config = MADE.defaults(space).config
            assert MADE.Config.from_dict(config.to_dict()) == config
            given = conditions(1) if space.given else None
            assert config.build(space).sample(2, given).shape == (2, *space.shape)
