"""A plan states what the built network is, or refuses in a sentence."""

import itertools
import math

import pytest
import torch

from monge.core.errors import UsageError
from monge.nn.layers.conv import UnsharedConvSpec
from monge.nn.layers.specs import (
    ActivationSpec,
    ConvSpec,
    DenseSpec,
    DropoutSpec,
    FlattenSpec,
    GlobalPoolSpec,
    NormSpec,
    PoolSpec,
    StackSpec,
    TransposedConvSpec,
    receptive_field,
)
from monge.nn.resnet import ResidualSpec, ResNetFeatures, resnet_spec


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("norm", ["batch", "group", "layer", "instance", "none"])
def test_a_plan_is_what_is_built(norm):
    stack = StackSpec(
        (
            ConvSpec(8, 5, 2, bias=False),
            NormSpec(norm),
            ActivationSpec("gelu"),
            DropoutSpec(0.1, True),
            PoolSpec("average", 3, 2, 1),
            ResidualSpec(ConvSpec(8)),
            TransposedConvSpec(6),
            FlattenSpec(),
            DenseSpec(4),
            NormSpec("layer"),
            ActivationSpec("softmax"),
        )
    )
    net, x = stack.build((3, 20, 17)).eval(), torch.randn(2, 3, 20, 17)
    assert tuple(net(x).shape[1:]) == stack.shape((3, 20, 17)) == (4,)
    assert stack.parameters((3, 20, 17)) == count(net)
    assert [tuple(shape) for shape in stack.shapes((3, 20, 17))][4] == (8, 10, 9)


def test_the_whole_resnet_is_counted_before_it_is_built():
    config = ResNetFeatures.Config(widths=(8, 12), blocks=2)
    assert resnet_spec(config).parameters((3, 9, 9)) == count(config.build((3, 9, 9)))
    assert resnet_spec(config).shape((3, 9, 9)) == (12,)


def test_textbook_numbers():
    assert PoolSpec("max", 2, 2).shape((256, 13, 13)) == (256, 6, 6)
    assert PoolSpec("max", 3, 2).shape((256, 13, 13)) == (256, 6, 6)
    assert ConvSpec(96, 11, 4, 0).shape((3, 227, 227)) == (96, 55, 55)
    assert ConvSpec(64, 3).parameters((3, 32, 32)) == 3 * 64 * 9 + 64
    assert (
        StackSpec((DenseSpec(6), DenseSpec(6), DenseSpec(6), DenseSpec(1))).parameters((1,)) == 103
    )
    assert UnsharedConvSpec(4, 3).parameters((2, 8, 8)) == 64 * ConvSpec(4, 3).parameters(
        (2, 8, 8)
    )


def test_fields_of_known_stacks():
    assert receptive_field(StackSpec([ConvSpec(1, 2, dilation=2**l) for l in range(10)])) == 1024
    assert receptive_field(StackSpec([ConvSpec(1, 3)] * 7)) == 15
    assert (
        receptive_field(StackSpec((ConvSpec(1, 3, 2), ConvSpec(1, 3), PoolSpec())))
        == 1 + 2 + 4 + 2
    )
    assert receptive_field(TransposedConvSpec(1, 4, 2, 1)) == 2
    assert receptive_field(StackSpec((ConvSpec(1), GlobalPoolSpec()))) == math.inf
    assert receptive_field(StackSpec((ConvSpec(1), NormSpec("layer")))) == math.inf
    assert receptive_field(ResidualSpec(StackSpec([ConvSpec(1)] * 2))) == 5


@pytest.mark.parametrize(("kernel", "stride"), [*itertools.product((2, 3, 4, 5), (1, 2, 3))])
def test_the_field_of_a_transposed_layer_is_what_its_gradient_reaches(kernel, stride):
    layer = TransposedConvSpec(1, kernel, stride, 0)
    net = layer.build((1, 12))
    for parameter in net.parameters():
        torch.nn.init.ones_(parameter)
    eye = torch.eye(12)[:, None]
    reach = (net(eye) - net(0 * eye))[:, 0]  # (inputs, outputs)
    middle = (reach.abs() > 1e-6).sum(0)[kernel:-kernel]
    assert receptive_field(layer) == max(int(middle.max()), 1)


@pytest.mark.parametrize(
    ("layer", "inputs", "value"),
    [
        (ConvSpec(4, 5, 2, 0), (1, 4, 9), "4x9"),
        (StackSpec([ConvSpec(4, 3, 2)] * 4), (1, 8, 8), "1x1"),
        (PoolSpec(), (3, 1, 1), "1x1"),
        (ConvSpec(4), (7,), r"\b7\b"),
        (DenseSpec(4), (1, 8, 8), "1x8x8"),
        (TransposedConvSpec(1, 2, 1, 3), (1, 4), r"padding\D*3\b"),
        (NormSpec("instance"), (4,), "norm=instance"),
        (StackSpec((ConvSpec(4, 8, 1, 0), NormSpec("instance"))), (1, 8, 8), "norm=instance"),
        (ResidualSpec(ConvSpec(4)), (3, 8, 8), "4x8x8.*3x8x8"),
        (UnsharedConvSpec(4), (3, 8), "3x8"),
    ],
)
def test_what_cannot_be_built_is_refused(layer, inputs, value):
    with pytest.raises(UsageError, match=value):
        layer.shape(inputs)
