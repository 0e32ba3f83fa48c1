"""The identities of layers hold, and each fails on what was spoiled on purpose."""

import pytest
import torch
from torch import nn

from monge.nn.layers import specs
from monge.nn.layers import specs as shape
from monge.verify import convolution, norm_dropout_init
from monge.verify import norm_dropout_init as networks
from monge.verify.framework import examine, identities

OURS = [
    each for each in identities() if each.listing.group in ("convolution", "norm_dropout_init")
]
IDS = {f"X{n}" for n in (16, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 49)}


def failed(start):
    """The names of those that begin so and fail."""
    return {
        each.listing.name
        for each in OURS
        if each.listing.name.startswith(start) and examine(each).passed is False
    }


@pytest.fixture
def still():
    with torch.no_grad():
        torch.manual_seed(0)
        yield


def test_every_id_of_the_group_is_there():
    assert {each.listing.id for each in OURS} == IDS


def test_a_wrong_size_rule_fails_x16(monkeypatch):
    right = specs.window_sides
    monkeypatch.setattr(
        shape,
        "window_sides",
        lambda inputs, kernel, stride, padding, dilation=1: right(inputs, kernel, stride, padding),
    )
    assert failed("x16") == {"x16_layers_have_the_stated_shapes_and_counts"}
    assert not failed("x19")


def test_a_field_that_forgets_strides_fails_x23(monkeypatch):
    monkeypatch.setattr(
        specs.ConvSpec,
        "reads",
        lambda self, span: (span[0], span[1] + self.dilation * (self.kernel - 1)),
    )
    assert failed("x23") == {
        "x23_field_is_the_support_of_the_gradient",
        "x23_field_is_one_plus_a_sum",
    }


def test_zero_padding_and_odd_shifts_are_not_equivariant(still):
    x = convolution.normal(1, 1, 8, 8)
    padded = nn.Conv2d(1, 1, 3, padding=1).double()
    wrapped = nn.Conv2d(1, 1, 3, 2, 1, padding_mode="circular").double()
    left, right = padded(x.roll(1, 3)), padded(x).roll(1, 3)
    assert convolution.gap(left[..., 2:-1], right[..., 2:-1]) < 1e-12
    assert convolution.gap(left, right) > 0.01  # the border
    assert convolution.gap(wrapped(x.roll(1, 3)), wrapped(x)) > 0.01


def test_the_notes_initialisation_explodes_and_glorots_dies(still):
    most = norm_dropout_init.MAX_STANDARD_ERRORS
    assert norm_dropout_init.growth("relu", "he", times=2) > 10 * most  # 4 / D_in
    assert norm_dropout_init.growth("relu", "he", times=0.5) > 10 * most  # 1 / D_in
    assert norm_dropout_init.growth("relu", "xavier") < most  # a square layer: 2 / D_in again


def test_a_batch_norm_with_unbiased_variance_fails_x25(monkeypatch):
    class Unbiased(nn.BatchNorm2d):
        def forward(self, x):
            scale = (x.var((0, 2, 3), keepdim=True) + self.eps).sqrt()
            y = (x - x.mean((0, 2, 3), keepdim=True)) / scale
            return y * self.weight[:, None, None] + self.bias[:, None, None]

    monkeypatch.setattr(networks, "norm", lambda name, channels, dims=0: Unbiased(channels))
    assert failed("x25") >= {
        "x25_batch_norm_can_restore_its_input",
        "x25_evaluation_reads_the_running_averages_alone",
    }


def test_plain_layers_shatter_gradients(still):
    assert (
        abs(norm_dropout_init.likeness(residual=False))
        < 0.3
        < norm_dropout_init.likeness(residual=True)
    )


def test_a_slope_that_is_not_the_mean_fails_x49(monkeypatch):
    layer = nn.RReLU(1 / 8, 1 / 3)
    layer.eval = lambda: nn.LeakyReLU(1 / 5)
    monkeypatch.setattr(networks, "activation", lambda name: layer)
    assert failed("x49")
