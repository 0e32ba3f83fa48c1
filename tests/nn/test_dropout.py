"""Dropout hides its share, keeps the mean, and is the identity after training."""

import pytest
import torch

from monge.nn.layers.dropout import Dropout, drop_elements


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.95])
def test_the_share_and_the_mean_are_right(rate):
    torch.manual_seed(0)
    x = drop_elements(torch.ones(100_001, dtype=torch.float64), rate)
    share, deviation = float((x == 0).double().mean()), (rate * (1 - rate) / len(x)) ** 0.5
    assert abs(share - rate) < 5 * deviation + 1 / (1 << 16)
    assert x.max().item() == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_gradients_pass_where_numbers_stay_and_nothing_is_hidden_after_training():
    torch.manual_seed(0)
    layer, x = Dropout(0.4), torch.ones(3, 7, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert layer.eval()(x) is x
