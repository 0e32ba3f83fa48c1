"""Identities of causal dilated stacks: what they ignore, how far they see, and their queues."""

from __future__ import annotations

import torch
from torch import Tensor

from ..nn.causal import CausalConv
from ..nn.dilated import TCN, Stack, WaveNet
from .gaps import most
from .identity import Residual

STACKS = (WaveNet.Config(width=4, layers=4, skip=5), WaveNet.Config(width=4, layers=2, cycles=2),
          WaveNet.Config(width=3, layers=2, kernel=3), TCN.Config(width=4, layers=3),
          TCN.Config(width=3, layers=2, kernel=3))
ROWS, STEPS, CONTEXT = 3, 40, 2
ROUNDING = 1e-12


def stack(config: Stack.Config, context: int = 0) -> Stack:
    """A stack with weights at random, in float64."""
    net: Stack = config.build(2, context).double().eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return net


def rows(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, dtype=torch.float64)


def x22_dilated_stacks_ignore_the_future() -> Residual:
    """Inputs from t on do not change outputs before t, bit for bit.

    Source: van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio, sec. 2.1."""
    worst = 0.0
    for net in map(stack, STACKS):
        x, other = rows(STEPS, net.inputs), rows(STEPS, net.inputs)
        for t in (1, STEPS // 2, STEPS - 1):
            changed = torch.cat([x[:, :t], other[:, t:]], 1)
            worst = most(worst, float((net(x) - net(changed))[:, :t].abs().amax()))
    return Residual(worst, 0.0)


def x22_queues_equal_the_parallel_pass() -> Residual:
    """A dilated stack evaluated step by step equals one parallel pass.

    Source: Paine et al. 2016, Fast WaveNet Generation Algorithm."""
    worst = 0.0
    for config in STACKS:
        for own in (1, STEPS):  # a context that holds for all steps, and one for each
            net, x = stack(config, CONTEXT), rows(STEPS, config.width)
            context = rows(own, CONTEXT)
            state = net.start(ROWS, STEPS, context)
            steps = torch.stack([net.step(state, x[:, t]) for t in range(STEPS)], 1)
            whole = net(x, context)
            worst = most(worst, float((steps - whole).abs().amax() / whole.abs().amax()))
    return Residual(worst, ROUNDING)


def x23_reach_is_the_support_of_the_gradient() -> Residual:
    """RF = 1 + sum (k - 1) d = number of inputs with a gradient.

    Source: van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio, sec. 2.1; Araujo,
    Norris & Sim 2019, Computing Receptive Fields of Convolutional Neural Networks."""
    wrong = 0
    for net in map(stack, STACKS):
        for parameter in net.parameters():
            parameter.abs_()  # no ReLU is shut, no path cancels another
        wrong += abs(support(net, net.reach + 5) - net.reach)
        pasts = [conv.past for conv in net.modules() if isinstance(conv, CausalConv)]
        wrong += abs(1 + sum(pasts) - net.reach)
    return Residual(wrong, 0.0)


@torch.enable_grad()
def support(net: Stack, steps: int) -> int:
    """How many inputs move the last output."""
    x = torch.rand(1, steps, net.inputs, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x)[0, -1].sum(), x)
    return int((slope[0] != 0).any(1).sum())


def x23_reach_doubles_with_each_layer() -> Residual:
    """RF = 2^L for k = 2 and d = 1, 2, 4, ...; 1 + L without dilation.

    Source: van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio, sec. 2.1."""
    deep = [stack(WaveNet.Config(width=2, layers=n, skip=2)).reach - 2**n for n in range(1, 11)]
    flat = [stack(WaveNet.Config(width=2, layers=1, cycles=n, skip=2)).reach - 1 - n
            for n in range(1, 6)]
    return Residual(sum(map(abs, deep + flat)), 0.0)
