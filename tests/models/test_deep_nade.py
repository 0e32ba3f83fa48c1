"""Deep NADE learns all orders without bias, is exact for those it names, completes any pattern."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from entries import BINARY, TABLE, conditions, with_given
from entries import LEVELS as IMAGE
from small_data import states

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.deep_nade import DeepNADE
from monge.nn.autoregressive.any_order import ConvSubsetNet, DenseSubsetNet, ObservedRows
from monge.verify.autoregressive_nets import x54_orderless_objective_is_unbiased
from monge.verify.subjects import random_rows

FOUR = Space(kind="binary", shape=(4,), mean=(0.4,))
COLOURS = Space(kind="binary", shape=(2, 1, 3), mean=(0.3, 0.6))
DENSE, CONV = DenseSubsetNet.Config(width=12), ConvSubsetNet.Config(width=4, depth=2)
NETS = [
    (BINARY, DENSE),
    (BINARY, DenseSubsetNet.Config(width=9, depth=1, activation="tanh")),
    (IMAGE, DenseSubsetNet.Config(width=8, depth=3, residual=False)),
    (TABLE, DENSE),
    (IMAGE, CONV),
    (COLOURS, CONV),
]
IDS = ["binary", "shallow", "plain", "table", "conv", "conv-colours"]


def nade(
    space: Space,
    net: DenseSubsetNet.Config | ConvSubsetNet.Config = DENSE,
    orders: int = 3,
    order: str = "random",
) -> DeepNADE:
    config = DeepNADE.Config(net=net, orders=orders, order=order, components=2)
    torch.manual_seed(0)
    model = config.build(space).double().eval()
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.requires_grad_(False)


def parameters(model: DeepNADE, batch: Batch, seen: torch.Tensor) -> torch.Tensor:
    """Straight from the network, (B, P)."""
    features = model.features(replace(batch, observed=seen.reshape(batch.x.shape)))
    return model.net(ObservedRows(features, seen, model.context(batch)))


def chi_squared(found: torch.Tensor, due: torch.Tensor) -> float:
    """How far counts are from what is due, in standard deviations of that distance."""
    n, cells = found.sum(), len(due)
    distance = ((found - n * due).square() / (n * due)).sum().item()
    return (distance - (cells - 1)) / math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize(("space", "net"), [(FOUR, DENSE), (IMAGE, CONV)], ids=["dense", "conv"])
def test_the_objective_is_unbiased_over_all_orders_and_places(space, net):
    model, batch = nade(space, net), random_rows(space, 5, make_generator(1))
    every = torch.tensor(list(itertools.permutations(range(4))))  # (24, 4): place of each entry
    samples = [
        model.orderless(batch, (order < place).expand(5, 4))
        for order in every
        for place in range(4)
    ]
    model.places = every
    due = torch.stack([model.conditionals(batch, k).sum(1) for k in range(24)]).mean(0)
    torch.testing.assert_close(torch.stack(samples).mean(0), due, rtol=0, atol=1e-12)


def test_x54_holds_and_fails_with_another_weight(monkeypatch):
    model, batch = nade(FOUR), random_rows(FOUR, 5, make_generator(1))
    assert x54_orderless_objective_is_unbiased(model, batch).passed
    monkeypatch.setattr(
        DeepNADE,
        "orderless",
        lambda self, rows, seen: self.predictions(rows, seen).masked_fill(seen, 0).sum(1),
    )
    assert not x54_orderless_objective_is_unbiased(model, batch).passed


def test_subsets_have_every_size_and_every_entry_alike():
    torch.manual_seed(0)
    model, n = nade(FOUR), 40_000
    seen = model.random_subsets(n)
    found = torch.bincount(seen.long() @ torch.tensor([8, 4, 2, 1]), minlength=16)
    due = torch.tensor([1 / 4 / math.comb(4, code.bit_count()) for code in range(15)])
    assert found[15] == 0
    assert chi_squared(found[:15], due) < 5


def test_the_loss_is_the_mean_over_orders():
    torch.manual_seed(0)
    model, n = nade(FOUR), 40_000
    one = random_rows(FOUR, 1, make_generator(1))
    model.places = torch.tensor(list(itertools.permutations(range(4))))
    found = model.loss(Batch(one.x.expand(n, 4)))["nll"]
    due = -torch.stack([model.conditionals(one, k).sum() for k in range(24)]).mean()
    assert abs(found.mean() - due) < 5 * found.std() / math.sqrt(n)


@pytest.mark.parametrize(("space", "net"), NETS, ids=IDS)
def test_steps_equal_whole_passes(space, net):
    model, batch = (
        nade(with_given(space), net),
        random_rows(with_given(space), 4, make_generator(2)),
    )
    for member, places in enumerate(model.orders):
        found = model.outputs(batch, member)
        for entry, place in enumerate(places.tolist()):
            own = model.head.slices[entry]
            due = parameters(model, batch, (places < place).expand(4, -1))[:, own]
            torch.testing.assert_close(found[:, own], due, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("space", "net"), [NETS[0], NETS[2], *NETS[4:]])
@pytest.mark.parametrize("orders", [1, 3])
def test_sums_to_one_over_every_state(space, net, orders):
    log_p = nade(space, net, orders).log_prob(states(space))
    assert log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("net", [DENSE, CONV], ids=["dense", "conv"])
def test_each_condition_has_its_own_distribution(net):
    model, x = nade(with_given(IMAGE), net), states(IMAGE)
    one, other = (model.log_prob(Batch(x, conditions(1, label))) for label in (0, 1))
    assert one.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert other.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(("space", "net"), [NETS[0], NETS[4]], ids=["dense", "conv"])
def test_samples_follow_the_distribution(space, net):
    model, x = nade(space, net), states(space)
    samples = model.sample(20_000, generator=make_generator(1)).flatten(1)
    codes = (samples[:, None] == x.flatten(1)).all(2).long().argmax(1)
    assert chi_squared(torch.bincount(codes, minlength=len(x)), model.log_prob(x).exp()) < 5


@pytest.mark.parametrize(
    ("space", "net"), [*NETS, (Space(kind="label", size=4), DENSE)], ids=[*IDS, "label"]
)
def test_cached_samples_equal_full_passes_and_the_end_of_a_stream(space, net):
    model, given = nade(with_given(space), net), conditions(30)
    quick = model.sample(30, given, generator=make_generator(1))
    slow = model.sample(30, given, DeepNADE.SamplingConfig(cached=False), make_generator(1))
    *_, last = model.stream(30, given, generator=make_generator(1))
    assert quick.shape == (30, *space.shape)
    torch.testing.assert_close(quick, slow, rtol=0, atol=1e-10)
    assert torch.equal(quick, last)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("space", "net"), NETS, ids=IDS)
def test_one_hidden_entry_follows_the_network_given_all_others(space, net, cached):
    model, n = nade(with_given(space), net), 50
    whole = replace(random_rows(with_given(space), n, make_generator(3)), given=conditions(n))
    for entry in range(space.dims):
        seen = (torch.arange(space.dims) != entry).expand(n, -1)
        shown = torch.where(seen, whole.x.flatten(1), torch.nan).reshape(whole.x.shape)
        question = replace(whole, x=shown, observed=seen.reshape(shown.shape))
        found = model.complete(
            question, model.SamplingConfig(cached=cached), make_generator(4)
        ).flatten(1)
        noise = model.head.noise(n, make_generator(4))[:, entry]
        own = parameters(model, whole, seen)[:, model.head.slices[entry]]
        due = model.head.sample_entry(entry, own, noise)
        assert torch.equal(found[seen], whole.x.flatten(1)[seen])
        torch.testing.assert_close(found[:, entry], due, rtol=0, atol=1e-10)


def test_any_pattern_is_completed_along_orders_that_begin_with_it():
    model, n = nade(FOUR), 20_000
    x = torch.tensor([[0.0, 1, 1, 0]], dtype=torch.float64)
    seen = torch.tensor([[False, True, False, True]])
    samples = model.complete(
        Batch(x.expand(n, 4), observed=seen.expand(n, 4)), generator=make_generator(5)
    )
    assert torch.equal(samples[:, [1, 3]], x[:, [1, 3]].expand(n, 2))
    fills = x.repeat(4, 1)
    fills[:, [0, 2]] = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]).double()
    each = []
    for places in list(model.places):
        model.places = torch.where(seen, places, places + 4).argsort().argsort()  # seen first
        each.append(model.log_prob(fills))
    log_p = torch.stack(each).logsumexp(0)
    found = torch.bincount((samples[:, [0, 2]] @ torch.tensor([2.0, 1]).double()).long())
    assert chi_squared(found, (log_p - log_p.logsumexp(0)).exp()) < 5


def test_rows_with_patterns_of_their_own_are_completed_as_if_alone():
    model, n = nade(TABLE, orders=1), 12
    rows = random_rows(TABLE, n, make_generator(6))
    seen = torch.rand(n, 5, generator=make_generator(7)) < 0.5
    seen[0], seen[1] = True, False
    quick, slow = (
        model.complete(
            replace(rows, observed=seen), model.SamplingConfig(cached=cached), make_generator(8)
        )
        for cached in (True, False)
    )
    torch.testing.assert_close(quick, slow, rtol=0, atol=1e-10)
    assert torch.equal(quick[seen], rows.x[seen])
    assert not torch.equal(quick[~seen], rows.x[~seen])
    free = model.sample(n, generator=make_generator(8))
    torch.testing.assert_close(quick[1], free[1])


def test_some_conditionals_estimate_the_whole():
    model, batch, n = nade(BINARY, orders=1), random_rows(BINARY, 1, make_generator(9)), 20_000
    many = Batch(batch.x.expand(n, 6), row=torch.arange(n))
    exact = model.likelihood(batch)
    found = model.likelihood(many, DeepNADE.LikelihoodConfig(passes=3), make_generator(0))
    assert (exact.kind, found.kind) == ("exact", "estimate")
    error = found.value.std() / math.sqrt(n)
    assert abs(found.value.mean() - exact.value) < 5 * error
    # Sampled without replacement, the mean of squared errors is the variance exactly.
    assert found.stderr.square().mean().item() == pytest.approx(found.value.var().item(), rel=0.05)


def test_with_several_orders_some_conditionals_bound_the_likelihood_from_below():
    model, batch, n = nade(BINARY, orders=3), random_rows(BINARY, 1, make_generator(9)), 20_000
    many = Batch(batch.x.expand(n, 6), row=torch.arange(n))
    found = model.likelihood(many, DeepNADE.LikelihoodConfig(passes=5), make_generator(0))
    along = torch.stack([model.conditionals(batch, k).sum() for k in range(3)])
    assert found.kind == "bound"
    assert abs(found.value.mean() - along.mean()) < 5 * found.value.std() / math.sqrt(n)
    assert along.mean() < model.log_prob(batch)[0]


def test_an_estimate_depends_on_the_row_alone_and_all_passes_are_exact():
    model, batch = nade(BINARY, orders=1), random_rows(BINARY, 10, make_generator(9))
    batch = replace(batch, row=torch.arange(10))
    options = DeepNADE.LikelihoodConfig(passes=2)
    whole = model.likelihood(batch, options, make_generator(1))
    parts = [model.likelihood(part, options, make_generator(1)) for part in batch.chunk(3)]
    torch.testing.assert_close(whole.value, torch.cat([part.value for part in parts]))
    assert not torch.equal(whole.value, model.likelihood(batch, options, make_generator(2)).value)
    assert model.likelihood(batch, DeepNADE.LikelihoodConfig(passes=1)).stderr is None
    assert model.likelihood(batch, DeepNADE.LikelihoodConfig(passes=6)).kind == "exact"


def test_what_is_dear_is_estimated_unless_asked_for():
    small, large = (Space(kind="binary", shape=(1, side, side)) for side in (4, 28))
    kinds = {
        (space.shape[1], net): nade(space, net, orders=1).affordable(0) >= space.dims
        for space in (small, large)
        for net in (DenseSubsetNet.Config(), ConvSubsetNet.Config())
    }
    assert kinds == {
        (4, DenseSubsetNet.Config()): True,
        (4, ConvSubsetNet.Config()): True,
        (28, DenseSubsetNet.Config()): True,
        (28, ConvSubsetNet.Config()): False,
    }


@pytest.mark.parametrize("options", [None, DeepNADE.LikelihoodConfig(passes=2)])
def test_missing_values_are_refused(options):
    seen = torch.ones(2, 6, dtype=torch.bool)
    seen[1, 2] = False
    question = Batch(torch.zeros(2, 6).double(), observed=seen)
    with pytest.raises(DataError, match="deep_nade"):
        nade(BINARY).likelihood(question, options)
    with pytest.raises(DataError, match="deep_nade"):
        nade(BINARY).loss(question)


def test_convolutions_need_images():
    with pytest.raises(UsageError, match=r"net=conv.*net=dense"):
        nade(BINARY, CONV)


def test_the_network_is_chosen_by_overrides_and_survives_json():
    config = DeepNADE.Config().override("net=conv", "net.width=8", "orders=2")
    assert config.net == ConvSubsetNet.Config(width=8)
    assert DeepNADE.Config.from_dict(config.to_dict()) == config
    with pytest.raises(UsageError, match=r"net=dens\b.*dense"):
        DeepNADE.Config().override("net=dens")


@pytest.mark.parametrize(("space", "net"), [(BINARY, DENSE), (IMAGE, CONV)], ids=["dense", "conv"])
def test_learns_a_copy_of_any_entry(space, net):
    torch.manual_seed(0)
    model = DeepNADE.Config(net=replace(net, width=16), components=2).build(space)
    first = torch.randint(2, (64, 1)).float()
    x = first.expand(64, space.dims).reshape(64, *space.shape)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(250):
        optimiser.zero_grad()
        model.loss(Batch(x))["nll"].mean().backward()
        optimiser.step()
    with torch.no_grad():
        assert model.log_prob(x).mean().item() == pytest.approx(-math.log(2), abs=0.15)


def test_defaults_are_buildable_for_every_kind():
    large = Space(kind="binary", shape=(1, 28, 28))
    for space in (BINARY, IMAGE, TABLE, with_given(TABLE), Space(kind="label", size=4), large):
        for rows in (0, 100, 100_000):
            space = replace(space, rows=rows)
            config = DeepNADE.defaults(space).config
            assert DeepNADE.Config.from_dict(config.to_dict()) == config
            given = conditions(1) if space.given else None
            assert config.build(space).sample(2, given).shape == (2, *space.shape)
