"""Which modules are gathered on their own, and the parts of weights, in one process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from monge.train.distributed import Workers
from monge.train.sharding import (
    ShardedModel,
    choose_units,
    pick_units,
    prefixes,
    size_of_largest,
)


def tree(**children) -> nn.Module:
    """A module of nested modules without weights."""
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child if isinstance(child, nn.Module) else tree(**child))
    return module


def test_units_are_modules_of_a_share_of_the_weights_that_have_no_larger_part():
    model = tree(large={"a": {}, "b": {"c": {}}}, middle={"d": {}}, small={}, least={})
    counts = {
        "": 3200,
        "large": 1600,
        "large.a": 200,  # one in 16: not divided further
        "large.b": 201,
        "large.b.c": 17,
        "middle": 200,
        "middle.d": 199,
        "small": 16,  # one in 200: a unit of its own
        "least": 15,
    }
    every = [name for name in counts if name]
    found = pick_units(model, counts, every)
    assert found == ["large.a", "large.b.c", "large.b", "large", "middle", "small"]
    unfit = [name for name in every if name not in ("large", "middle", "large.b.c")]
    assert pick_units(model, counts, unfit) == ["large.a", "large.b", "middle.d", "small"]
    assert pick_units(model, counts, []) == []


def test_a_module_with_two_names_is_one_unit():
    shared = nn.Linear(2, 2)
    model = tree(a={"x": shared}, b={"x": shared})
    counts = {"": 100, "a": 50, "a.x": 50, "b": 50, "b.x": 50}
    assert pick_units(model, counts, ["a.x", "b.x"]) == ["a.x"]


def test_the_largest_unit_counts_a_weight_once_where_it_is_innermost():
    params = {
        name: nn.Parameter(torch.zeros(size))
        for name, size in {"a.w": 5, "a.b.w": 9, "ab.w": 7, "rest": 2, "c.w": 6}.items()
    }
    assert size_of_largest(["a.b", "a"], params) == 15  # of ab, rest and c, which are in none
    assert size_of_largest(["a.b", "a", "ab", "c"], params) == 9
    assert size_of_largest(["a"], params) == 15
    assert size_of_largest([], params) == 29


def test_the_modules_around_a_parameter():
    assert prefixes("a.b.c.weight") == ["a", "a.b", "a.b.c"]
    assert prefixes("weight") == []


class Toy(nn.Module):
    """Two maps, a loss of which is given."""

    def __init__(self, loss) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.own = loss
        self.register_buffer("calls", torch.zeros(()))

    def losses(self):
        x = torch.ones(2, 3)
        self.calls += 1
        return [{"a": self.own(self, x)}]


class Twice(nn.Module):
    """Returns what is no tensor, or a view."""

    def __init__(self, form) -> None:
        super().__init__()
        self.inner, self.form = nn.Linear(3, 3), form

    def forward(self, x):
        return self.form(self.inner(x))


def units_of(loss, second: nn.Module | None = None) -> set[str]:
    model = Toy(loss)
    if second is not None:
        model.second = second
    found = choose_units(model, model.losses)
    assert model.calls == 0  # what the losses change is as before
    assert all(param.grad is None for param in model.parameters())
    assert all(not module._forward_hooks for module in model.modules())
    return set(found)


def changed_in_place(model, x):
    found = model.second(model.first(x))
    found += 1
    return found.sum(1)


def derivative(model, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.second(model.first(x)).sum(), x, create_graph=True)
    return slope.square().sum(1)


def penalty(model, x):
    return model.second(model.first(x)).sum(1) + model.first.weight.square().sum()


BOTH, NESTED = {"first", "second"}, {"second", "second.inner"}


@pytest.mark.parametrize(
    ("loss", "second", "expected"),
    [
        (lambda m, x: m.second(m.first(x)).sum(1), None, BOTH),
        (lambda m, x: m.second(x).sum(1), None, {"second"}),  # the other is never called
        (penalty, None, {"second"}),
        (lambda m, x: torch.vmap(m.first)(x).sum(1) + m.second(x).sum(1), None, {"second"}),
        (derivative, None, set()),
        (lambda m, x: m.second(x)[0].sum(1), Twice(lambda y: (y, None)), NESTED),
        (lambda m, x: m.second(x)[0].sum(1), Twice(lambda y: (y, 3)), {"second.inner"}),
        (lambda m, x: m.second(x)().sum(1), Twice(lambda y: lambda: y), {"second.inner"}),
        (changed_in_place, Twice(lambda y: y.view(3, 2).view(2, 3)), {"first", "second.inner"}),
        (lambda m, x: m.second(x).sum(1), Twice(lambda y: y.view(2, 3)), NESTED),
        (changed_in_place, Twice(lambda y: y * 2), BOTH | NESTED),
    ],
)
def test_a_unit_is_called_and_its_weights_are_used_only_while_it_is(loss, second, expected):
    assert units_of(loss, second) == expected


def test_tied_weights_are_in_one_unit_or_in_none():
    model = Toy(lambda m, x: m.second(m.first(x)).sum(1))
    model.second.weight = model.first.weight
    assert choose_units(model, model.losses) == []
    inside = Toy(lambda m, x: m.second(m.first(x)).sum(1))
    inside.second = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    inside.second[1].weight = inside.second[0].weight
    assert choose_units(inside, inside.losses) == ["first", "second"]


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Workers()
    dist.destroy_process_group()


def toy_model() -> Toy:
    torch.manual_seed(0)
    model = Toy(lambda m, x: m.second(m.first(x)).sum(1) * m.scale)
    model.scale = nn.Parameter(torch.tensor(2.0))
    model.second.weight.requires_grad_(False)
    return model


def test_whole_weights_are_there_while_they_are_gathered(alone):
    model, plain = toy_model(), toy_model()
    before = {name: param.clone() for name, param in plain.named_parameters()}
    sharded = ShardedModel(model, alone, model.losses)
    assert all(param.is_meta for param in model.parameters())
    assert sharded.is_cut("first.weight")
    assert not sharded.is_cut("scale")
    assert not sharded.is_cut("calls")
    assert [name for name, part in sharded.local.items() if not part.requires_grad] == [
        "second.weight"
    ]
    instead = {"first.bias": torch.full((3,), 7.0)}
    copied = sharded.snapshot(instead)
    with sharded.gathered(copied):
        for name, param in model.named_parameters():
            assert param.requires_grad == (name != "second.weight")
            torch.testing.assert_close(param.detach(), instead.get(name, before[name]))
    assert all(param.is_meta for param in model.parameters())
    with sharded.changed_as_a_whole(), torch.no_grad():
        model.first.weight.add_(1)
        model.calls = torch.tensor(4.0)
    assert sharded.live.calls == 4
    torch.testing.assert_close(sharded.local["first.weight"].detach(), before["first.weight"] + 1)
    torch.testing.assert_close(copied["first.weight"].to_local().detach(), before["first.weight"])
    assert sharded.is_true_everywhere(True)
    assert not sharded.is_true_everywhere(False)


def test_gradients_of_the_parts_are_those_of_the_model(alone):
    model, plain = toy_model(), toy_model()
    sharded = ShardedModel(model, alone, model.losses)
    (losses,) = sharded.compute(sharded.live.losses)
    sharded.backward(losses["a"].mean())
    (due,) = plain.losses()
    due["a"].mean().backward()
    params = list(sharded.live.parameters())
    sharded.take_gradients(params)
    grads = {name: param.grad for name, param in plain.named_parameters()}
    for name, part in sharded.local.items():
        if grads[name] is None:
            assert part.grad is None
        else:
            torch.testing.assert_close(part.grad, grads[name])
    norm = sum(grad.double().square().sum() for grad in grads.values() if grad is not None).sqrt()
    torch.testing.assert_close(sharded.norm(params), norm)
    assert sharded.uncut(params) == [sharded.live.scale]
    sharded.drop_gradients()
    assert all(part.grad is None for part in sharded.local.values())


@pytest.mark.parametrize(("rows", "cuts"), [(5, [2, 2, 1]), (6, [2, 2, 2]), (1, [1, 0, 0])])
def test_parts_are_those_of_torch(rows, cuts, alone):
    model = nn.Module()
    model.weight = nn.Parameter(torch.arange(2.0 * rows).reshape(rows, 2))
    sharded = ShardedModel(model, alone, lambda: [{"a": model.weight.sum(1)}])
    whole = torch.arange(2.0 * rows).reshape(rows, 2)
    parts = []
    for rank in range(3):
        sharded.workers = SimpleNamespace(rank=rank, size=3)
        parts.append(sharded.part("weight", whole))
    assert torch.equal(torch.cat(parts), whole)
    assert [len(part) for part in parts] == cuts
    parts[0].zero_()
    assert whole.any()  # a part is a copy
    other = torch.zeros(4)
    assert sharded.part("weight", other) is other
    assert sharded.part("none", other) is other
    assert sharded.joined("weight", other) is other
    assert torch.equal(sharded.joined("weight", whole).to_local(), whole)
