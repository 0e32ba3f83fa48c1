"""Averaged weights have averaged statistics of batch norm."""

import torch
from torch import nn

from monge.train.trainer import EMA


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_running_statistics_are_averaged_with_the_weights():
    model = net()
    average = EMA(model, 0.5)
    first = model[1].running_mean.clone()
    model(torch.ones(8, 3) + torch.randn(8, 3))
    moved = model[1].running_mean.clone()
    average.update(100)
    expected = (first + moved) / 2
    torch.testing.assert_close(average.weights["1.running_mean"], expected)
    with average.swapped():
        torch.testing.assert_close(model[1].running_mean, expected)
    assert torch.equal(model[1].running_mean, moved)
    assert "1.num_batches_tracked" not in average.weights


def test_without_an_average_nothing_is_stored():
    assert EMA(net(), 0.0).weights == {}
