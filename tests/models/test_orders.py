"""Orders of entries: as they stand, to and fro, shuffled or given; the law holds in each."""

from __future__ import annotations

import pytest
import torch
from small_data import states

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive._orders import Orders
from monge.models.autoregressive.deep_nade import DeepNADE
from monge.models.autoregressive.fvsbn import FVSBN
from monge.models.autoregressive.made import MADE
from monge.models.autoregressive.nade import NADE

PICTURE = Space(kind="binary", shape=(1, 2, 3), mean=(0.4,))
VECTOR = Space(kind="binary", shape=(6,), mean=(0.4,))
OWNERS = [MADE, NADE, FVSBN, DeepNADE]


def drawn(space: Space, **words) -> list[int]:
    """The entries in the order they are drawn."""
    return Orders(**words).places(space)[0].argsort().tolist()


def test_natural_and_snake():
    assert drawn(PICTURE) == [0, 1, 2, 3, 4, 5]
    assert drawn(PICTURE, order="snake") == [0, 1, 2, 5, 4, 3]
    assert drawn(VECTOR, order="snake") == [0, 1, 2, 3, 4, 5]
    colours = Space(kind="real", shape=(2, 3, 2))
    assert drawn(colours, order="snake") == [0, 1, 3, 2, 4, 5, 6, 7, 9, 8, 10, 11]
    assert drawn(Space(kind="real"), order="snake") == [0]


def test_random_and_given():
    assert sorted(drawn(VECTOR, order="random")) == [0, 1, 2, 3, 4, 5]
    assert drawn(VECTOR, order="random") != [0, 1, 2, 3, 4, 5]
    assert drawn(VECTOR, order="given", sequence=(4, 0, 5, 1, 3, 2)) == [4, 0, 5, 1, 3, 2]
    first, second = Orders(order="snake", orders=2).places(PICTURE)
    assert first.tolist() == [0, 1, 2, 5, 4, 3]
    assert torch.equal(second, Orders(orders=2).places(PICTURE)[1])


@pytest.mark.parametrize(
    ("sequence", "problem"),
    [
        ((), "0, 1, 2, 3, 4, ... are missing;"),
        ((0, 1, 2, 3, 4), "5 is missing;"),
        ((0, 1, 2, 3, 4, 4), "5 is missing and 4 is repeated;"),
        ((0, 1, 2, 3, 4, 9), "5 is missing and 9 is out of range;"),
        ((5, 4, 3, 2, 1, 0, -1), "-1 is out of range;"),
    ],
)
def test_a_sequence_that_is_no_permutation_is_refused_in_a_sentence(sequence, problem):
    with pytest.raises(UsageError, match=problem.replace(".", r"\.")):
        Orders(order="given", sequence=sequence).places(VECTOR)


def test_a_sequence_without_its_order_is_refused():
    with pytest.raises(UsageError, match="order=natural"):
        Orders(sequence=(1, 0)).places(Space(kind="real", shape=(2,)))


def test_words_give_a_sequence():
    config = MADE.Config().override("order=given", "sequence=2,0,1,5,4,3")
    assert config.sequence == (2, 0, 1, 5, 4, 3)
    assert MADE.Config.from_dict(config.to_dict()) == config
    assert config.build(PICTURE).orders[0].argsort().tolist() == [2, 0, 1, 5, 4, 3]


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(
    "words",
    [{"order": "snake"}, {"order": "given", "sequence": (4, 0, 5, 1, 3, 2)}],
    ids=["snake", "given"],
)
def test_a_law_in_its_order(owner, words):
    torch.manual_seed(0)
    tiny = owner.smallest_config(PICTURE).to_dict()
    tiny.update(orders=1, **words)
    model = owner.Config.from_dict(tiny).build(PICTURE).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    x = states(PICTURE)
    assert model.log_prob(x).exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    (order,) = model.orders
    assert order.argsort().tolist() == drawn(PICTURE, **words)
    before = model.conditionals(Batch(x))
    for entry in range(6):
        moved = x.flatten(1).clone()
        moved[:, entry] = 1 - moved[:, entry]
        after = model.conditionals(Batch(moved.reshape(x.shape)))
        assert torch.equal(before[:, order < order[entry]], after[:, order < order[entry]])
    quick, slow = (
        model.sample(30, None, owner.SamplingConfig(cached=cached), make_generator(1))
        for cached in (True, False)
    )
    torch.testing.assert_close(quick, slow)


def test_what_a_snake_draws_first_is_what_it_completes_from():
    model = MADE.Config(width=8, depth=1, order="snake").build(PICTURE).eval()
    seen = torch.tensor([[[[True, True, True], [False, False, True]]]])
    x = torch.ones(1, 1, 2, 3)
    assert model.complete(Batch(x, observed=seen), generator=make_generator(0))[seen].eq(1).all()
    with pytest.raises(DataError, match="shows entry 3 and hides entry 4"):
        model.complete(Batch(x, observed=seen.flip(-1)))
