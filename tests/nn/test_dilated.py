"""Causal convolutions: the formula, causality, the reach, and steps equal to the whole pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from monge.core.rng import make_generator
from monge.nn.causal_conv import CausalConv
from monge.nn.dilated import ContinuousStack, DilatedStack, TCNStack, WaveNetStack

STACKS = [
    WaveNetStack.Config(width=6, layers=3, skip=5),
    WaveNetStack.Config(width=4, layers=2, cycles=2),
    WaveNetStack.Config(width=4, layers=2, kernel=3),
    TCNStack.Config(width=5, layers=3),
    TCNStack.Config(width=4, layers=2, kernel=3, cycles=2),
    ContinuousStack.Config(width=4, layers=2, kernel=7, rates=3),
]
named = pytest.mark.parametrize(
    "config", STACKS, ids=lambda c: f"{c.owner.__name__}-{c.layers}-{c.cycles}-{c.kernel}"
)


def stack(config: DilatedStack.Config, context: int = 0) -> DilatedStack:
    torch.manual_seed(0)
    net = config.build(3, context).double().eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return net.requires_grad_(False)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=make_generator(1))


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("dilation", [1, 3])
def test_a_convolution_is_the_sum_over_its_taps(kernel, dilation):
    conv = CausalConv(2, 3, kernel, dilation).double()
    x = rows(4, 9, 2)
    taps = conv.weight.reshape(3, kernel, 2)  # the oldest first
    expected = conv.bias.expand(4, 9, 3).clone()
    for t in range(9):
        for i in range(kernel):
            if (earlier := t - (kernel - 1 - i) * dilation) >= 0:
                expected[:, t] += x[:, earlier] @ taps[:, i].T
    torch.testing.assert_close(conv(x), expected)
    library = F.conv1d(
        F.pad(x.mT, (conv.past, 0)), taps.transpose(1, 2), conv.bias, dilation=dilation
    ).mT
    torch.testing.assert_close(conv(x), library)
    state = conv.start(4, 9)
    steps = torch.stack([conv.step(state, x[:, t]) for t in range(9)], 1)
    torch.testing.assert_close(steps, conv(x))


@named
@pytest.mark.parametrize("context", [0, 1, 40], ids=["alone", "global", "local"])
def test_stepping_equals_the_whole_pass_and_so_do_windows(config, context):
    net, steps = stack(config, 2 if context else 0), 40
    x, given = rows(5, steps, net.inputs), rows(5, context, 2) if context else None
    whole = net(x, given)
    state = net.start(5, steps, given)
    torch.testing.assert_close(
        torch.stack([net.step(state, x[:, t]) for t in range(steps)], 1), whole
    )
    padded = torch.cat([net.before.expand(5, net.reach - 1, -1), x], 1)
    along = given
    if context > 1:
        along = torch.cat([given[:, :1].expand(-1, net.reach - 1, -1), given], 1)
    torch.testing.assert_close(net.window(padded, along), whole)
    late = slice(steps - net.reach - 4, steps)
    part = given[:, late] if context > 1 else given
    torch.testing.assert_close(net.window(x[:, late], part), whole[:, -5:])


@named
def test_the_reach_is_the_support_of_the_gradient(config):
    net = stack(config)
    assert net.reach == 1 + sum(conv.past for block in net.blocks for conv in block.convs)
    x = rows(1, net.reach + 8, net.inputs).requires_grad_()
    (slope,) = torch.autograd.grad(net(x)[0, -3].sum(), x)
    support = (slope[0].abs().sum(1) > 0).nonzero()[:, 0].tolist()
    last = x.shape[1] - 3
    assert max(support) == last
    if isinstance(net, WaveNetStack):  # a ReLU may hide what a smooth gate cannot
        assert support == list(range(last - net.reach + 1, last + 1))
    else:
        assert min(support) >= last - net.reach + 1


def test_two_taps_reach_two_to_the_number_of_layers():
    assert [stack(WaveNetStack.Config(width=2, layers=n)).reach for n in (1, 3, 10)] == [
        2,
        8,
        1024,
    ]


@named
def test_rows_that_are_taken_go_on_as_they_were(config):
    net, order = stack(config, 2), torch.tensor([2, 0, 0])
    x, given = rows(3, 12, net.inputs), rows(3, 1, 2)
    state = net.start(3, 12, given)
    for t in range(6):
        net.step(state, x[:, t])
    state.reorder(order)
    changed = torch.cat([x[order, :6], x[:, 6:]], 1)
    rest = torch.stack([net.step(state, x[:, t]) for t in range(6, 12)], 1)
    torch.testing.assert_close(rest, net(changed, given[order])[:, 6:])


def test_a_tap_of_the_future_is_found(monkeypatch):
    """The check of causality can fail."""
    net, x = stack(STACKS[0]), rows(2, 20, 6)
    other = x.clone()
    other[:, 12:] += 1

    def leaks() -> bool:
        return not torch.equal(net(x)[:, :12], net(other)[:, :12])

    assert not leaks()
    monkeypatch.setattr(
        CausalConv,
        "over",
        lambda self, x: F.linear(
            torch.cat(
                [x[:, self.past :], x[:, : x.shape[1] - self.past].roll(-self.past - 1, 1)], 2
            ),
            self.weight,
            self.bias,
        ),
    )
    assert leaks()
