"""No output sees its own entry or a later one, and stepping equals the whole pass."""

from __future__ import annotations

import itertools

import pytest
import torch

from monge.core.rng import keyed_uniform, make_generator
from monge.nn.autoregressive.masked_mlp import MaskedMLP, stairs

DIMS = 6
INPUTS = torch.tensor([0, 0, 1, 2, 3, 3, 3, 4, 5])  # several features an entry
OUTPUTS = torch.tensor([0, 1, 1, 2, 3, 3, 4, 4, 4, 5])  # several parameters an entry
ORDERS = keyed_uniform(torch.arange(2), (DIMS,), 3).argsort(1)

SHAPES = [
    {"width": 20, "depth": 3},
    {"width": 3, "depth": 1, "activation": "tanh"},
    {"width": 20, "depth": 2, "residual": False, "direct": False, "activation": "gelu"},
]


def network(shape: dict, context: int = 0, masks: int = 3) -> MaskedMLP:
    torch.manual_seed(0)
    net = MaskedMLP.Config(**shape).build(INPUTS, OUTPUTS, ORDERS, context, masks).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return net


@pytest.mark.parametrize("shape", SHAPES)
def test_jacobian_is_strictly_lower_triangular_in_each_order(shape):
    net = network(shape, context=2)
    x = torch.randn(len(INPUTS), dtype=torch.float64)
    c = torch.randn(1, 2, dtype=torch.float64)
    for member in range(net.members):
        place = ORDERS[member // 3]
        jacobian = torch.autograd.functional.jacobian(
            lambda x, k=member: net(x[None], c, k)[0], x
        )  # (P, F)
        earlier = place[OUTPUTS][:, None] > place[INPUTS]
        assert (jacobian[~earlier] == 0).all()


def test_every_output_sees_every_earlier_entry_and_all_conditions():
    net = network({"width": 40, "depth": 2, "activation": "tanh"}, context=2)
    x = torch.randn(1, len(INPUTS), dtype=torch.float64, requires_grad=True)
    c = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    place = ORDERS[1]
    for p, out in enumerate(net(x, c, 3)[0]):
        to_x, to_c = torch.autograd.grad(out, (x, c), retain_graph=True)
        assert torch.equal(to_x[0] != 0, place[OUTPUTS[p]] > place[INPUTS])
        assert (to_c != 0).all()


def test_product_of_masks_is_strictly_lower_triangular():
    net = network({"width": 20, "depth": 3}, masks=1)
    for member, place in enumerate(ORDERS):
        paths = torch.eye(len(INPUTS), dtype=torch.float64)
        for layer in net.maps():
            paths = layer.mask(member) @ paths
        assert torch.equal(paths > 0, place[OUTPUTS][:, None] > place[INPUTS])


@pytest.mark.parametrize(
    ("shape", "context", "block"), list(itertools.product(SHAPES, [0, 2], [1, 4, 16]))
)
def test_steps_equal_the_whole_pass(shape, context, block, monkeypatch):
    monkeypatch.setattr("monge.nn.autoregressive.incremental.MAX_BLOCK_PLACES", block)
    net, n = network(shape, context), 7
    x = torch.randn(n, len(INPUTS), dtype=torch.float64, generator=make_generator(0))
    c = torch.randn(n, context, dtype=torch.float64, generator=make_generator(1))
    for member in range(net.members):
        whole = net(x, c, member)
        order = ORDERS[member // 3].argsort()
        for cached in (True, False):
            steps = net.stepper(member, cached)(c)
            for place, entry in enumerate(order):
                own = steps.parameters(place)
                torch.testing.assert_close(own, whole[:, entry == OUTPUTS], atol=1e-12, rtol=0)
                steps.feed(place, x[:, entry == INPUTS])


@pytest.mark.parametrize(
    ("shape", "context", "lanes"), list(itertools.product(SHAPES, [0, 2], [1, 4]))
)
def test_staircases_are_the_masks_forward_and_back(shape, context, lanes, monkeypatch):
    monkeypatch.setattr("monge.nn.autoregressive.masked_mlp.STAIR_OUTPUTS", 3)
    monkeypatch.setattr("monge.nn.autoregressive.masked_mlp.SIMD_INPUTS", lanes)
    natural = torch.arange(DIMS)[None]
    torch.manual_seed(0)
    net = MaskedMLP.Config(**shape).build(INPUTS, OUTPUTS, natural, context, 2).double()
    assert all(layer.stairs[0] for layer in (*net.maps()[int(shape["width"] < 6) : -1], net.out))
    c = torch.randn(5, context, dtype=torch.float64)
    for member in range(2):
        x = torch.randn(5, len(INPUTS), dtype=torch.float64, requires_grad=True)
        weights = torch.randn(5, len(OUTPUTS), dtype=torch.float64)
        found = []
        for plain in (False, True):
            out = net(x, c, member, plain)
            slopes = torch.autograd.grad((out * weights).sum(), (x, *net.parameters()))
            found.append((out, *slopes))
        for quick, slow in zip(*found, strict=True):
            torch.testing.assert_close(quick, slow, rtol=0, atol=1e-12)
        with torch.no_grad():  # what is only read lies otherwise
            torch.testing.assert_close(net(x, c, member), found[0][0], rtol=0, atol=1e-12)


def test_a_staircase_leaves_out_what_no_output_reads():
    degrees = torch.arange(1, 385)
    assert stairs(degrees, degrees) == [
        (0, 128, 0, 128),
        (128, 256, 128, 256),
        (256, 384, 256, 384),
    ]
    assert stairs(degrees[:255], degrees[:129] + 100) == [(0, 64, 0, 176), (64, 129, 176, 240)]
    assert stairs(degrees.flip(0), degrees) == stairs(degrees, degrees.flip(0)) == []
    assert stairs(degrees, degrees[:127]) == []


def test_masks_that_are_not_cached_are_the_same(monkeypatch):
    kept = network(SHAPES[0])
    monkeypatch.setattr("monge.nn.autoregressive.masked_mlp.MAX_STORED_MASK_ENTRIES", 0)
    made = network(SHAPES[0])
    x = torch.randn(3, len(INPUTS), dtype=torch.float64)
    assert made.out.masks is None
    assert torch.equal(kept(x, None, 4), made(x, None, 4))


def test_a_single_entry_depends_on_conditions_alone():
    one = torch.zeros(1, dtype=torch.long)
    net = MaskedMLP.Config(width=8, depth=2, activation="tanh").build(one, one, one[None], 2)
    c = torch.randn(1, 2, requires_grad=True)
    x = torch.randn(1, 1, requires_grad=True)
    to_x, to_c = torch.autograd.grad(net(x, c).sum(), (x, c))
    assert (to_x == 0).all()
    assert (to_c != 0).all()
