"""A table for every conditional: frequencies, groups of labels, runs of numbers, sizes refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from entries import BINARY, states

from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.count_table import CountTable
from monge.verify import subjects


def test_a_table_is_the_frequencies_of_what_begins_so():
    x = torch.tensor([[0.0, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 1]])
    space = Space(kind="binary", shape=(3,), rows=4)
    model = CountTable.Config(pseudo=1e-6).build(space)
    assert model.log_prob(x).tolist() == pytest.approx([3 * math.log(0.5)] * 4)
    model.count(Batch(x))
    assert model.log_prob(x).exp().tolist() == pytest.approx([0.5, 0.5, 0.25, 0.25], abs=1e-4)
    assert model.log_prob(torch.ones(1, 3) * 0).exp().item() < 1e-5


def test_a_prefix_never_seen_follows_the_entry_that_predicts_best():
    generator = make_generator(3)
    x = torch.randint(2, (400, 6), generator=generator).double()
    x[:, 5] = torch.where(torch.rand(400, generator=generator) < 0.9, x[:, 1], 1 - x[:, 1])
    x = x[~((x[:, 0] == 1) & (x[:, 2] == 1) & (x[:, 3] == 1))]  # never seen together
    model = CountTable.Config().build(Space(kind="binary", shape=(6,), rows=len(x))).double()
    model.count(Batch(x))
    unseen = torch.tensor([[1.0, cause, 1, 1, 0, 1] for cause in (0, 1)]).double()
    chance = model.conditionals(Batch(unseen))[:, 5].exp()
    assert chance.tolist() == pytest.approx([0.1, 0.9], abs=0.05)


def test_a_table_for_each_combination_of_labels():
    space = replace(
        BINARY,
        shape=(2,),
        given={"a": Space(kind="label", size=2), "b": Space(kind="label", size=3)},
    )
    rows = subjects.random_rows(space, 600, make_generator(5))
    model, x = CountTable.Config().build(space).double(), states(2, 2)
    model.count(rows)
    assert model.parameter_count == 6 * 3
    for a, b in itertools.product(range(2), range(3)):
        given = {"a": Batch(torch.full((4,), a)), "b": Batch(torch.full((4,), b))}
        log_p = model.log_prob(Batch(x, given))
        assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
        own = rows.x[(rows.given["a"].x == a) & (rows.given["b"].x == b)]
        assert log_p[0].exp().item() == pytest.approx(
            (own.sum(1) == 0).double().mean().item(), abs=0.05
        )
    with pytest.raises(DataError, match=r"'b'.*0 to 2"):
        model.sample(2, {"a": Batch(torch.zeros(2).long()), "b": Batch(torch.tensor([0, 3]))})


def test_numbers_of_a_table_fall_into_runs():
    space = Space(kind="real", shape=(2,), scale=(1.0, 1.0), rows=500)
    x = torch.randn(500, 1, generator=make_generator(6), dtype=torch.float64)
    x = torch.cat(
        [x, x + 0.1 * torch.randn(500, 1, generator=make_generator(8), dtype=torch.float64)], 1
    )
    model = CountTable.defaults(space).config.build(space).double()
    model.count(Batch(x))
    samples = model.sample(4000, generator=make_generator(1))
    assert torch.corrcoef(samples.clamp(-4, 4).T)[0, 1] > 0.8
    assert model.log_prob(x).mean() > model.log_prob(x * torch.tensor([1, -1])).mean() + 0.5


@pytest.mark.parametrize(
    ("space", "count"),
    [
        (Space(kind="binary", shape=(1, 28, 28)), "2^784"),
        (Space(kind="levels", size=256, shape=(3, 64, 64)), "2^24576"),
        (replace(BINARY, shape=(22,)), "4194303"),
    ],
    ids=["image", "colour", "vector"],
)
def test_a_table_that_is_too_large_is_refused_with_its_size(space, count):
    sentence = CountTable.unsupported_reason(space)
    assert count in sentence
    assert "autoregressive.fvsbn" in sentence
    with pytest.raises(DataError, match=r"autoregressive\.fvsbn"):
        CountTable.Config().build(space)
    assert CountTable.unsupported_reason(replace(BINARY, shape=(21,))) is None
