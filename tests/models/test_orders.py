"""Orders of entries: as they stand, to and fro, shuffled or given; each sums to one."""

from __future__ import annotations

import pytest
import torch
from small_data import states

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive._orders import Orders
from monge.models.autoregressive.deep_nade import DeepNADE
from monge.models.autoregressive.fvsbn import FVSBN
from monge.models.autoregressive.made import MADE
from monge.models.autoregressive.nade import NADE

IMAGE = Space(kind="binary", shape=(1, 2, 3), mean=(0.4,))
VECTOR = Space(kind="binary", shape=(6,), mean=(0.4,))
OWNERS = [MADE, NADE, FVSBN, DeepNADE]


def sampling_order(space: Space, **settings) -> list[int]:
    """The entries in the order they are sampled."""
    return Orders(**settings).places(space)[0].argsort().tolist()


def test_natural_and_snake():
    assert sampling_order(IMAGE) == [0, 1, 2, 3, 4, 5]
    assert sampling_order(IMAGE, order="snake") == [0, 1, 2, 5, 4, 3]
    assert sampling_order(VECTOR, order="snake") == [0, 1, 2, 3, 4, 5]
    colours = Space(kind="real", shape=(2, 3, 2))
    assert sampling_order(colours, order="snake") == [0, 1, 3, 2, 4, 5, 6, 7, 9, 8, 10, 11]
    assert sampling_order(Space(kind="real"), order="snake") == [0]


def test_random_and_given():
    assert sorted(sampling_order(VECTOR, order="random")) == [0, 1, 2, 3, 4, 5]
    assert sampling_order(VECTOR, order="random") != [0, 1, 2, 3, 4, 5]
    assert sampling_order(VECTOR, order="given", sequence=(4, 0, 5, 1, 3, 2)) == [4, 0, 5, 1, 3, 2]
    first, second = Orders(order="snake", orders=2).places(IMAGE)
    assert first.tolist() == [0, 1, 2, 5, 4, 3]
    assert torch.equal(second, Orders(orders=2).places(IMAGE)[1])


@pytest.mark.parametrize(
    ("sequence", "entries"),
    [
        ((), "0, 1, 2, 3, 4"),
        ((0, 1, 2, 3, 4), "5"),
        ((0, 1, 2, 3, 4, 4), "5.*4"),
        ((0, 1, 2, 3, 4, 9), "5.*9"),
        ((5, 4, 3, 2, 1, 0, -1), "-1"),
    ],
)
def test_a_sequence_that_is_no_permutation_is_refused(sequence, entries):
    with pytest.raises(UsageError, match=rf"0 to 5\b.*{entries}\b"):
        Orders(order="given", sequence=sequence).places(VECTOR)


def test_a_sequence_without_its_order_is_refused():
    with pytest.raises(UsageError, match=r"order=given.*order=natural"):
        Orders(sequence=(1, 0)).places(Space(kind="real", shape=(2,)))


def test_overrides_give_a_sequence():
    config = MADE.Config().override("order=given", "sequence=2,0,1,5,4,3")
    assert config.sequence == (2, 0, 1, 5, 4, 3)
    assert MADE.Config.from_dict(config.to_dict()) == config
    assert config.build(IMAGE).orders[0].argsort().tolist() == [2, 0, 1, 5, 4, 3]


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(
    "settings",
    [{"order": "snake"}, {"order": "given", "sequence": (4, 0, 5, 1, 3, 2)}],
    ids=["snake", "given"],
)
def test_a_model_in_its_order(owner, settings):
    torch.manual_seed(0)
    tiny = owner.smallest_config(IMAGE).to_dict()
    tiny.update(orders=1, **settings)
    model = owner.Config.from_dict(tiny).build(IMAGE).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    x = states(IMAGE)
    assert model.log_prob(x).exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    (order,) = model.orders
    assert order.argsort().tolist() == sampling_order(IMAGE, **settings)
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


def test_what_a_snake_samples_first_is_what_it_completes_from():
    model = MADE.Config(width=8, depth=1, order="snake").build(IMAGE).eval()
    seen = torch.tensor([[[[True, True, True], [False, False, True]]]])
    x = torch.ones(1, 1, 2, 3)
    assert model.complete(Batch(x, observed=seen), generator=make_generator(0))[seen].eq(1).all()
    assert model.effective is None
    model.complete(Batch(x, observed=seen.flip(-1)), generator=make_generator(0))
    assert model.effective is not None
