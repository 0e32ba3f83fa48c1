"""A plan states what the built network is, or refuses in a sentence."""

import itertools
import math

import pytest
import torch

from monge.core.errors import UsageError
from monge.nn.layers.conv import Local
from monge.nn.layers.specs import (
    Act,
    Conv,
    Dense,
    Drop,
    Flatten,
    GlobalPoolSpec,
    Normalise,
    Pool,
    Stack,
    Transposed,
    field,
)
from monge.nn.resnet import ResidualSpec, ResNet, resnet_spec


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "none"])
def test_a_plan_is_what_is_built(norm):
    stack = Stack(
        (
            Conv(8, 5, 2, bias=False),
            Normalise(norm),
            Act("gelu"),
            Drop(0.1, True),
            Pool("average", 3, 2, 1),
            ResidualSpec(Conv(8)),
            Transposed(6),
            Flatten(),
            Dense(4),
            Normalise("layer"),
            Act("softmax"),
        )
    )
    net, x = stack.build((3, 20, 17)).eval(), torch.randn(2, 3, 20, 17)
    assert tuple(net(x).shape[1:]) == stack.shape((3, 20, 17)) == (4,)
    assert stack.parameters((3, 20, 17)) == count(net)
    assert [tuple(shape) for shape in stack.shapes((3, 20, 17))][4] == (8, 10, 9)


def test_the_whole_resnet_is_counted_before_it_is_built():
    config = ResNet.Config(widths=(8, 12), blocks=2)
    assert resnet_spec(config).parameters((3, 9, 9)) == count(config.build((3, 9, 9)))
    assert resnet_spec(config).shape((3, 9, 9)) == (12,)


def test_textbook_numbers():
    assert Pool("max", 2, 2).shape((256, 13, 13)) == (256, 6, 6)
    assert Pool("max", 3, 2).shape((256, 13, 13)) == (256, 6, 6)
    assert Conv(96, 11, 4, 0).shape((3, 227, 227)) == (96, 55, 55)
    assert Conv(64, 3).parameters((3, 32, 32)) == 3 * 64 * 9 + 64
    assert Stack((Dense(6), Dense(6), Dense(6), Dense(1))).parameters((1,)) == 103
    assert Local(4, 3).parameters((2, 8, 8)) == 64 * Conv(4, 3).parameters((2, 8, 8))


def test_fields_of_known_stacks():
    assert field(Stack([Conv(1, 2, dilation=2**l) for l in range(10)])) == 1024
    assert field(Stack([Conv(1, 3)] * 7)) == 15
    assert field(Stack((Conv(1, 3, 2), Conv(1, 3), Pool()))) == 1 + 2 + 4 + 2
    assert field(Transposed(1, 4, 2, 1)) == 2
    assert field(Stack((Conv(1), GlobalPoolSpec()))) == math.inf
    assert field(Stack((Conv(1), Normalise("layer")))) == math.inf
    assert field(ResidualSpec(Stack([Conv(1)] * 2))) == 5


@pytest.mark.parametrize(("kernel", "stride"), [*itertools.product((2, 3, 4, 5), (1, 2, 3))])
def test_the_field_of_a_transposed_layer_is_what_its_gradient_reaches(kernel, stride):
    layer = Transposed(1, kernel, stride, 0)
    net = layer.build((1, 12))
    for parameter in net.parameters():
        torch.nn.init.ones_(parameter)
    eye = torch.eye(12)[:, None]
    reach = (net(eye) - net(0 * eye))[:, 0]  # (inputs, outputs)
    middle = (reach.abs() > 1e-6).sum(0)[kernel:-kernel]
    assert field(layer) == max(int(middle.max()), 1)


@pytest.mark.parametrize(
    ("layer", "inputs", "words"),
    [
        (Conv(4, 5, 2, 0), (1, 4, 9), "4x9"),
        (Stack([Conv(4, 3, 2)] * 4), (1, 8, 8), "1x1"),
        (Pool(), (3, 1, 1), "1x1"),
        (Conv(4), (7,), "7"),
        (Dense(4), (1, 8, 8), "1x8x8"),
        (Transposed(1, 2, 1, 3), (1, 4), "padding of 3"),
        (Normalise("instance"), (4,), "norm=instance"),
        (Stack((Conv(4, 8, 1, 0), Normalise("instance"))), (1, 8, 8), "norm=instance"),
        (ResidualSpec(Conv(4)), (3, 8, 8), "4x8x8.*3x8x8"),
        (Local(4), (3, 8), "3x8"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(layer, inputs, words):
    with pytest.raises(UsageError, match=words):
        layer.shape(inputs)
