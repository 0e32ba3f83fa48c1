"""Identities of convolutions: linear maps that are local and the same at every position.

Receptive fields, output shapes and parameter counts of a stack are arithmetic; the adjoint of a
convolution is the transposed one.

Identities of causal dilated stacks: what they ignore, how far they see, and their queues.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn.causal_conv import CausalConv
from ..nn.dilated import DilatedStack, TCNStack, WaveNetStack
from ..nn.layers.activation import activation
from ..nn.layers.conv import UnsharedConv2d, UnsharedConvSpec
from ..nn.layers.pool import GlobalPool
from ..nn.layers.specs import (
    ConvSpec,
    DenseSpec,
    LayerSpec,
    PoolSpec,
    Shape,
    StackSpec,
    TransposedConvSpec,
    receptive_field,
)
from ..nn.mlp import MLP
from ._helpers import gap, most, normal
from .framework import Residual

ROUNDING = 1e-12
"""What float64 leaves of a sum of a few hundred products."""
STACKS: tuple[tuple[LayerSpec, ...], ...] = (
    tuple(ConvSpec(1, 2, padding=0, dilation=2**layer) for layer in range(5)),
    tuple(ConvSpec(1, 3, padding=0) for _ in range(4)),
    (
        ConvSpec(1, 5, 2, 0),
        ConvSpec(1, 3, padding=0, dilation=2),
        ConvSpec(1, 3, 2, 0),
        ConvSpec(1, 2, padding=0),
    ),
    (
        ConvSpec(1, 3, padding=0),
        PoolSpec("average", 2, 2),
        ConvSpec(1, 3, padding=0),
        PoolSpec("average", 3, 2),
    ),
    (ConvSpec(1, 3, 2, 1), ConvSpec(1, 3), TransposedConvSpec(1), ConvSpec(1, 3)),
    (TransposedConvSpec(1, 3, 2, 0), TransposedConvSpec(1, 5, 3, 1), ConvSpec(1, 5)),
)
"""Stacks whose field is measured; the first few are convolutions and pools alone."""


def cells() -> Iterator[tuple[LayerSpec, Shape]]:
    """Small layers of every kind, with what enters them."""
    sizes = itertools.product((7, 8, 13), (1, 2, 3), (1, 2, 3), (0, 1))
    for side, kernel, stride, padding in sizes:
        for dilation in (1, 2):
            yield ConvSpec(4, kernel, stride, padding, dilation), (3, side, side + 1)
            yield TransposedConvSpec(4, kernel, stride, padding, dilation, stride - 1), (3, side)
        if padding <= kernel // 2:
            yield PoolSpec("max", kernel, stride, padding), (2, side, side)
    yield UnsharedConvSpec(4, 3, 2), (2, 7, 8)
    yield DenseSpec(5), (7,)
    yield DenseSpec(5, bias=False), (7,)


def x16_layers_have_the_stated_shapes_and_counts() -> Residual:
    """Predicted shapes and parameter counts of layers are those of real ones.

    Examines: nn.layers.conv, nn.layers.specs.

    Source: Dumoulin & Visin 2016, A Guide to Convolution Arithmetic for Deep Learning."""
    wrong = 0
    for layer, inputs in cells():
        built = layer.build(inputs).double()
        wrong += layer.shape(inputs) != tuple(built(normal(2, *inputs)).shape[1:])
        wrong += layer.parameters(inputs) != count(built)
    return Residual(wrong, 0)


def x16_perceptrons_have_the_stated_count() -> Residual:
    """D0 D + D + (K-1)(D^2 + D) + D DL + DL parameters; softmax has none.

    Examines: nn.mlp.

    Source: Prince 2023, Understanding Deep Learning, ch. 4."""
    wrong = count(activation("softmax"))
    for before, width, depth, after in itertools.product((1, 4), (3, 6), (1, 2, 3), (1, 2)):
        stated = (before + 1) * width + (depth - 1) * (width + 1) * width + (width + 1) * after
        wrong += stated != count(MLP.Config(width=width, depth=depth).build(before, after))
    return Residual(wrong, 0)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def x19_unshared_and_alike_is_convolution() -> Residual:
    """A locally connected layer with equal weights everywhere convolves.

    Examines: nn.layers.conv, nn.layers.specs.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.5."""
    form, inputs = ConvSpec(3, 3, 2), (2, 9, 8)
    conv = form.build(inputs).double()
    local = UnsharedConvSpec(3, 3, 2).build(inputs).double()
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(local, UnsharedConv2d)
    assert conv.bias is not None
    assert local.bias is not None
    local.weight.copy_(conv.weight.flatten(1).T.expand_as(local.weight))
    local.bias.copy_(conv.bias.expand_as(local.bias))
    x = normal(4, *inputs)
    return Residual(gap(conv(x), local(x)), ROUNDING)


def x19_zero_margins_make_a_smaller_kernel() -> Residual:
    """A kernel that is 0 beyond a radius is the smaller kernel of that radius.

    Examines: nn.layers.specs.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.2."""
    large, small = (ConvSpec(3, side).build((2, 8, 9)).double() for side in (5, 3))
    assert isinstance(large, nn.Conv2d)
    assert isinstance(small, nn.Conv2d)
    large.load_state_dict({"weight": F.pad(small.weight, (1, 1, 1, 1)), "bias": small.bias})
    x = normal(4, 2, 8, 9)
    return Residual(gap(large(x), small(x)), ROUNDING)


def x19_convolution_is_a_toeplitz_matrix() -> Residual:
    """A convolution is a matrix with constant diagonals.

    Examines: nn.layers.specs.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.1."""
    conv, steps = ConvSpec(1, 5, bias=False).build((1, 9)).double(), 9
    assert isinstance(conv, nn.Conv1d)
    matrix = conv(torch.eye(steps, dtype=torch.float64)[:, None])[:, 0].T  # (output, input)
    offset = torch.arange(steps) - torch.arange(steps)[:, None] + 2
    kernel = F.pad(conv.weight[0, 0], (steps, steps))
    x = normal(steps)
    applied = gap(matrix @ x, conv(x[None, None])[0, 0])
    return Residual(most(gap(matrix, kernel[offset + steps]), applied), ROUNDING)


def x19_convolution_commutes_with_shifts() -> Residual:
    """A convolution of stride s commutes with shifts by s, away from the ends.

    Examines: nn.layers.specs.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.2."""
    x, worst = F.pad(normal(2, 3, 4, 4), (4, 10, 4, 10)), 0.0  # nothing near the ends
    for stride, shift in ((1, 1), (1, 5), (2, 2), (2, 6), (3, 3)):
        conv = ConvSpec(4, 3, stride).build((3, 18, 18)).double()
        moved = conv(x.roll((shift, shift), (2, 3)))
        steps = shift // stride
        worst = most(worst, gap(moved, conv(x).roll((steps, steps), (2, 3))))
    return Residual(worst, ROUNDING)


def x20_global_average_ignores_shifts() -> Residual:
    """The mean over positions of a circular convolution is shift invariant.

    Examines: nn.layers.pool.

    Source: Lin, Chen & Yan 2014, Network in Network, sec. 3.2."""
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular").double()
    net, x = nn.Sequential(conv, nn.ReLU(), GlobalPool()), normal(2, 3, 8, 8)
    return Residual(gap(net(x), net(x.roll((3, 5), (2, 3)))), 1e-13)


def x21_dilation_puts_zeros_into_the_kernel() -> Residual:
    """Dilation d is a kernel with d - 1 zeros between its entries.

    Examines: nn.layers.specs.

    Source: Yu & Koltun 2016, Multi-Scale Context Aggregation by Dilated Convolutions."""
    worst = 0.0
    for rate in (2, 3):
        conv = ConvSpec(4, 3, padding=0, dilation=rate).build((2, 12, 12)).double()
        assert isinstance(conv, nn.Conv2d)
        wide = torch.zeros(4, 2, 2 * rate + 1, 2 * rate + 1, dtype=torch.float64)
        wide[:, :, ::rate, ::rate] = conv.weight
        x = normal(3, 2, 12, 12)
        worst = most(worst, gap(conv(x), F.conv2d(x, wide, conv.bias)))
    return Residual(worst, ROUNDING)


def x21_convolution_is_correlation_with_the_kernel_turned() -> Residual:
    """sum_k h[k] x[i - dk] is what a layer computes with a flipped kernel.

    Examines: nn.causal_conv, nn.layers.specs.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.1."""
    kernel, x, rate = normal(3), normal(11), 2
    layer = ConvSpec(1, 3, padding=0, dilation=rate, bias=False).build((1, 11)).double()
    causal = CausalConv(1, 1, 3, rate).double()
    layer.load_state_dict({"weight": kernel.flip(0)[None, None]})
    causal.load_state_dict({"weight": kernel.flip(0)[None], "bias": torch.zeros(1)})
    ends = torch.arange(2 * rate, len(x))
    plain = torch.as_tensor(sum(kernel[k] * x[ends - rate * k] for k in range(3)))
    past = causal(x[None, :, None])[0, 2 * rate :, 0]
    return Residual(most(gap(layer(x[None, None])[0, 0], plain), gap(past, plain)), ROUNDING)


def x23_field_is_the_support_of_the_gradient() -> Residual:
    """The receptive field is the number of inputs with a non-zero gradient.

    Examines: nn.layers.specs.

    Source: Araujo, Norris & Sim 2019, Computing Receptive Fields of Convolutional Neural
    Networks."""
    return Residual(
        most(abs(receptive_field(StackSpec(stack)) - support(stack)) for stack in STACKS), 0
    )


def x23_field_is_one_plus_a_sum() -> Residual:
    """It is 1 + sum (k-1) d prod s: 2^L for k=2, d=2^l, and 1 + 2L for k=3.

    Examines: nn.layers.specs.

    Source: Araujo, Norris & Sim 2019, Computing Receptive Fields of Convolutional Neural
    Networks."""
    found = [receptive_field(StackSpec(stack)) for stack in STACKS[:4]]
    wrong = [abs(receptive_field(StackSpec(stack)) - closed(stack)) for stack in STACKS[:4]]
    return Residual(most(*wrong, abs(found[0] - 2**5), abs(found[1] - (1 + 2 * 4))), 0)


def closed(stack: Sequence[LayerSpec]) -> int:
    total, jump = 1, 1
    for layer in stack:
        assert isinstance(layer, (ConvSpec, PoolSpec))
        rate = layer.dilation if isinstance(layer, ConvSpec) else 1
        total, jump = total + (layer.kernel - 1) * rate * jump, jump * layer.stride
    return total


@torch.enable_grad()
def support(stack: Sequence[LayerSpec]) -> int:
    """Inputs between the first and the last that move one output, of those far from the ends the
    most; weights are positive, so that nothing cancels."""
    net = StackSpec(stack).build((1, 96)).double()
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    x = normal(1, 1, 96).requires_grad_()
    y = net(x)[0, 0]
    middle, period = len(y) // 2, StackSpec(stack).period
    slopes = [
        torch.autograd.grad(y[middle + place], x, retain_graph=True)[0].flatten()
        for place in range(period)
    ]
    seen = [slope.nonzero() for slope in slopes]
    return max(int(places[-1] - places[0]) + 1 for places in seen)


def x24_transposed_is_the_adjoint() -> Residual:
    """<conv(x), g> = <x, transposed(g)>.

    Examines: nn.layers.specs.

    Source: Dumoulin & Visin 2016, A Guide to Convolution Arithmetic for Deep Learning, ch. 4."""
    worst = 0.0
    for kernel, stride, padding, rate in ((3, 1, 1, 1), (4, 2, 1, 1), (3, 2, 0, 2), (5, 3, 2, 1)):
        form = ConvSpec(4, kernel, stride, padding, rate, bias=False)
        sides = form.shape((3, 13, 16))[1:]
        lost = {(side + 2 * padding - rate * (kernel - 1) - 1) % stride for side in (13, 16)}
        back = TransposedConvSpec(3, kernel, stride, padding, rate, max(lost), bias=False)
        conv = form.build((3, 13, 16)).double()
        adjoint = back.build((4, *sides)).double()
        adjoint.load_state_dict(conv.state_dict())
        x, g = normal(2, 3, 13, 16), normal(2, 4, *sides)
        back_of_g = F.pad(adjoint(g), (0, 3, 0, 3))[:, :, :13, :16]
        worst = most(worst, abs(float((conv(x) * g).sum() - (x * back_of_g).sum())))
    return Residual(worst, 1e-11)


DILATED_STACKS = (
    WaveNetStack.Config(width=4, layers=4, skip=5),
    WaveNetStack.Config(width=4, layers=2, cycles=2),
    WaveNetStack.Config(width=3, layers=2, kernel=3),
    TCNStack.Config(width=4, layers=3),
    TCNStack.Config(width=3, layers=2, kernel=3),
)
ROWS, STEPS, CONTEXT = 3, 40, 2
DILATED_ROUNDING = 1e-12


def stack(config: DilatedStack.Config, context: int = 0) -> DilatedStack:
    """A stack with weights at random, in float64."""
    net: DilatedStack = config.build(2, context).double().eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return net


def rows(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, dtype=torch.float64)


def x22_dilated_stacks_ignore_the_future() -> Residual:
    """Inputs from t on do not change outputs before t, bit for bit.

    Examines: nn.dilated.

    Source: van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio, sec. 2.1."""
    worst = 0.0
    for net in map(stack, DILATED_STACKS):
        x, other = rows(STEPS, net.inputs), rows(STEPS, net.inputs)
        for t in (1, STEPS // 2, STEPS - 1):
            changed = torch.cat([x[:, :t], other[:, t:]], 1)
            worst = most(worst, float((net(x) - net(changed))[:, :t].abs().amax()))
    return Residual(worst, 0.0)


def x22_queues_equal_the_parallel_pass() -> Residual:
    """A dilated stack evaluated step by step equals one parallel pass.

    Examines: nn.dilated.

    Source: Paine et al. 2016, Fast WaveNet Generation Algorithm."""
    worst = 0.0
    for config in DILATED_STACKS:
        for own in (1, STEPS):  # a context that holds for all steps, and one for each
            net, x = stack(config, CONTEXT), rows(STEPS, config.width)
            context = rows(own, CONTEXT)
            state = net.start(ROWS, STEPS, context)
            steps = torch.stack([net.step(state, x[:, t]) for t in range(STEPS)], 1)
            whole = net(x, context)
            worst = most(worst, float((steps - whole).abs().amax() / whole.abs().amax()))
    return Residual(worst, DILATED_ROUNDING)


def x23_reach_is_the_support_of_the_gradient() -> Residual:
    """RF = 1 + sum (k - 1) d = number of inputs with a gradient.

    Examines: nn.dilated.

    Source: van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio, sec. 2.1; Araujo,
    Norris & Sim 2019, Computing Receptive Fields of Convolutional Neural Networks."""
    wrong = 0
    for net in map(stack, DILATED_STACKS):
        for parameter in net.parameters():
            parameter.abs_()  # no ReLU is shut, no path cancels another
        wrong += abs(inputs_seen(net, net.reach + 5) - net.reach)
        pasts = [conv.past for conv in net.modules() if isinstance(conv, CausalConv)]
        wrong += abs(1 + sum(pasts) - net.reach)
    return Residual(wrong, 0.0)


@torch.enable_grad()
def inputs_seen(net: DilatedStack, steps: int) -> int:
    """How many inputs move the last output."""
    x = torch.rand(1, steps, net.inputs, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x)[0, -1].sum(), x)
    return int((slope[0] != 0).any(1).sum())


def x23_reach_doubles_with_each_layer() -> Residual:
    """RF = 2^L for k = 2 and d = 1, 2, 4, ...; 1 + L without dilation.

    Examines: nn.dilated.

    Source: van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio, sec. 2.1."""
    deep = [
        stack(WaveNetStack.Config(width=2, layers=n, skip=2)).reach - 2**n for n in range(1, 11)
    ]
    flat = [
        stack(WaveNetStack.Config(width=2, layers=1, cycles=n, skip=2)).reach - 1 - n
        for n in range(1, 6)
    ]
    return Residual(sum(map(abs, deep + flat)), 0.0)
