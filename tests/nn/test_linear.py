"""Linear maps by oneDNN equal torch's own, with all their derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from monge.nn import fast_step
from monge.nn.layers import linear as maps
from monge.nn.layers.linear import Linear, linear

ROWS, INPUTS, OUTPUTS = 192, 192, 128


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    """oneDNN multiplies, whatever is faster on this machine; calls are counted."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    calls, product = [], maps.product
    monkeypatch.setattr(maps, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(maps, "product", lambda *each: calls.append(1) or product(*each))
    return calls


def tensors(bias=True, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    shapes = [(ROWS, INPUTS), (OUTPUTS, INPUTS)] + [(OUTPUTS,)] * bias
    return [torch.randn(s, generator=g).to(dtype).requires_grad_() for s in shapes]


def close(found, wanted):
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other.to(own.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_first_and_second_derivatives_equal_those_of_torch(by_onednn, bias):
    found = []
    for function, dtype in ((linear, torch.float32), (F.linear, torch.float64)):
        leaves = tensors(bias, dtype)
        y = function(*leaves)
        slopes = torch.autograd.grad((y / INPUTS).square().sum(), leaves, create_graph=True)
        total = sum(slope.square().sum() for slope in slopes)
        found.append([y, *slopes, *torch.autograd.grad(total, leaves)])
    close(*found)
    assert len(by_onednn) >= 7  # a pass, two derivatives, and those of all three


def test_only_derivatives_that_are_wanted_are_computed(by_onednn):
    x, weight, bias = tensors()
    linear(x.detach(), weight, bias).sum().backward()
    assert len(by_onednn) == 2
    close([weight.grad], [x.detach().sum(0).expand(OUTPUTS, -1)])


@torch.no_grad()
def test_inputs_of_any_number_of_axes_and_any_layout(by_onednn):
    x, weight, bias = tensors()
    for rows in (x, x.view(4, -1, INPUTS), x.view(2, 2, -1, INPUTS), x.t().contiguous().t()):
        close([linear(rows, weight, bias)], [F.linear(rows, weight, bias)])
    thinned = torch.randn(OUTPUTS, 2 * INPUTS)[:, ::2]
    close([linear(x, thinned)], [F.linear(x, thinned)])
    assert len(by_onednn) == 5


def test_small_products_other_numbers_and_transforms_are_left_to_torch(by_onednn):
    x, weight, bias = (each.detach() for each in tensors())
    few = x[:4]
    assert torch.equal(linear(few, weight, bias), F.linear(few, weight, bias))
    linear(x.double(), weight.double(), bias.double())
    with torch.autocast("cpu", torch.bfloat16):
        linear(x, weight, bias)
    stacked = torch.stack([weight, 2 * weight])
    y = torch.func.vmap(lambda w: linear(x, w, bias))(stacked)
    close([y[1]], [F.linear(x, 2 * weight, bias)])
    _, slope = torch.func.jvp(lambda x: linear(x, weight), (x,), (x,))
    close([slope], [F.linear(x, weight)])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        y = linear(dual, weight)
        close([torch.autograd.forward_ad.unpack_dual(y).tangent], [F.linear(x, weight)])
    assert not by_onednn


def test_a_layer_is_one_of_torch():
    assert isinstance(Linear(2, 3), nn.Linear)
    assert list(Linear(2, 3).state_dict()) == ["weight", "bias"]


@torch.no_grad()
def test_prepared_steps_of_many_rows_equal_the_layers(by_onednn, monkeypatch):
    monkeypatch.setattr(fast_step, "product", maps.product)
    enter, leave = nn.Linear(INPUTS, OUTPUTS), nn.Linear(OUTPUTS, INPUTS)
    x = torch.randn(ROWS, INPUTS)
    for rows in (x, x[:2]):
        h, before = enter(rows), len(by_onednn)
        close([fast_step.prepare(enter)(rows)], [h])
        close([fast_step.prepare_residual(leave)(rows, h)], [rows + leave(h)])
        step = fast_step.prepare_gelu_residual(enter, leave)
        close([step(rows, rows)], [rows + leave(F.gelu(h))])
        assert len(by_onednn) - before == (4 if rows is x else 0)
