"""Features are standardised, belong to their entries, and vanish where nothing was seen."""

from __future__ import annotations

import pytest
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.space import Space
from monge.nn.inputs.features import Conditions, Features
from monge.nn.inputs.sequence import EntryEmbedding, one_step
from monge.nn.mlp import MLP

TABLE = Space(
    kind="columns",
    shape=(4,),
    columns=(
        Space(kind="real", mean=(3.0,), scale=(2.0,)),
        Space(kind="label", size=3),
        Space(kind="binary"),
        Space(kind="levels", size=5, mean=(2.0,), scale=(2.0,)),
    ),
)


def test_columns_become_features_of_their_own():
    features = Features(TABLE)
    x = torch.tensor([[5.0, 2.0, 1.0, 4.0], [3.0, 0.0, 0.0, 2.0]])
    due = torch.tensor([[1.0, 0, 0, 1, 1, 1], [0, 1, 0, 0, -1, 0]])
    assert features.owner.tolist() == [0, 1, 1, 1, 2, 3]
    assert torch.equal(features(Batch(x)), due)
    for i in range(4):
        assert torch.equal(features.entry(i, x[:, i]), due[:, features.owner == i])


def test_what_was_not_seen_is_zero_even_where_it_is_nan():
    features = Features(TABLE)
    x = torch.tensor([[float("nan"), 2.0, 1.0, 4.0]])
    seen = torch.tensor([[False, False, True, True]])
    assert torch.equal(features(Batch(x, observed=seen)), torch.tensor([[0.0, 0, 0, 0, 1, 1]]))


def test_held_numbers_stop_at_the_ends_of_the_training_range():
    column = Space(kind="real", mean=(1.0,), scale=(2.0,), low=(-1.0,), high=(5.0,))
    space = Space(kind="columns", shape=(2,), columns=(column, Space(kind="label", size=2)))
    features = Features(space, held=True)
    x = torch.tensor([[99.0, 1.0], [-99.0, 0.0], [3.0, 1.0]])
    due = torch.tensor([[2.0, 0, 1], [-1, 1, 0], [1, 0, 1]])
    assert torch.equal(features(Batch(x)), due)
    assert torch.equal(features.entry(0, x[:, 0]), due[:, :1])


def test_steps_rise_one_after_the_other_over_the_range_of_a_number():
    age = Space(kind="counts", mean=(40.0,), scale=(20.0,), low=(10.0,), high=(70.0,))
    wide = Space(kind="real", mean=(0.0,), scale=(1.0,), low=(-99.0,), high=(99.0,), atoms=(0.0,))
    empty = Space(kind="real", optional=True, mean=(0.0,), scale=(1.0,), low=(0.0,), high=(1.0,))
    same = Space(kind="real", mean=(3.0,), scale=(1.0,), low=(3.0,), high=(3.0,))
    columns = (age, Space(kind="label", size=2), wide, empty, same)
    features = Features(Space(kind="columns", shape=(5,), columns=columns), steps=3)
    assert features.owner.tolist() == [0] * 4 + [1] * 2 + [2] * 5 + [3] * 5 + [4]
    x = torch.tensor([[40.0, 1.0, 0.0, torch.nan, 3.0], [20.0, 0.0, 2.5, 0.5, 3.0]])
    found = features(Batch(x))
    step = torch.tensor(2.0).tanh()  # one step away
    due = torch.tensor([0.0, step, 0.0, -step])
    torch.testing.assert_close(found[0, :4], due)
    torch.testing.assert_close(found[1, 1:4], torch.tensor([0.0, -2.0, -4.0]).tanh())
    assert found[0, 12:16].tolist() == [1.0, 0.0, 0.0, 0.0]  # an empty cell is the mean
    assert found[:, 7].tolist() == [1.0, 0.0]  # the atom
    torch.testing.assert_close(found[1, 8:11], torch.tensor([5.0, 3.0, 1.0]).tanh())
    for i in range(5):
        assert torch.equal(features.entry(i, x[:, i]), found[:, features.owner == i])


def test_images_are_standardised_by_channel():
    space = Space(kind="real", shape=(2, 1, 2), mean=(1.0, 2.0), scale=(1.0, 4.0))
    x = torch.tensor([[[[2.0, 1.0]], [[6.0, 2.0]]]])
    assert torch.equal(Features(space)(Batch(x)), torch.tensor([[1.0, 0, 1, 0]]))


def test_conditions_stand_side_by_side_and_may_be_none():
    space = Space(kind="real", given={"a.b": Space(kind="label", size=3), "r": Space(kind="real")})
    given = {"a.b": Batch(torch.tensor([2, 0])), "r": Batch(torch.tensor([0.5, -0.5]))}
    conditions = Conditions(space)
    due = torch.tensor([[0.0, 0, 1, 0.5], [1, 0, 0, -0.5]])
    assert conditions.width == 4
    assert torch.equal(conditions(given, 2), due)
    assert Conditions(Space(kind="real"))({}, 5).shape == (5, 0)


def test_features_follow_the_precision_of_the_model():
    assert Features(TABLE).double()(Batch(torch.zeros(1, 4))).dtype == torch.float64


def test_tokens_have_no_features():
    with pytest.raises(DataError, match="tokens of 9"):
        Features(Space(kind="tokens", shape=(4,), size=9))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_perceptron_shapes(depth):
    net = MLP.Config(width=8, depth=depth, residual=True).build(5, 2)
    assert net(torch.zeros(3, 4, 5)).shape == (3, 4, 2)
    assert len(net.linears) == depth + 1


def test_a_step_has_the_range_of_all_steps():
    places = Space(
        kind="real",
        shape=(3,),
        mean=(0.0, 1.0, 2.0),
        scale=(1.0, 1.0, 1.0),
        low=(-1.0, -2.0, 0.0),
        high=(4.0, 1.0, 5.0),
    )
    step = one_step(places)
    assert (step.shape, step.low, step.high) == ((1,), (-2.0,), (5.0,))
    assert Features(step)(Batch(torch.tensor([[1.0]]))).shape == (1, 1)


@pytest.mark.parametrize(
    ("kind", "mean", "scale"),
    [
        ("levels", (1.0,), (2.0,)),
        ("levels", (1.0, 3.0, 0.5), (2.0,)),
        ("levels", (1.0,), (2.0, 1.0, 4.0)),
        ("binary", (0.2, 0.5, 0.9), (0.4, 0.5, 0.3)),
        ("real", (1.0, 3.0, 0.5), (2.0, 1.0, 4.0)),
        ("tokens", (0.0,), (1.0,)),
    ],
)
@torch.no_grad()
def test_one_place_is_read_as_all_are(kind, mean, scale):
    torch.manual_seed(0)
    size = 5 if kind in ("levels", "tokens") else 0
    entries = EntryEmbedding(Space(kind=kind, shape=(3,), size=size, mean=mean, scale=scale), 4)
    x = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    whole, read = entries(x, torch.arange(3)), entries.reader()
    for place in range(3):
        torch.testing.assert_close(read(x[:, place], place), whole[:, place])
