"""The residual network and the U-Net: shapes, contexts, what they refuse."""

import pytest
import torch
from torch import nn

from monge.core.config import Config
from monge.core.errors import UsageError
from monge.nn.resnet import ResidualBlock, ResNetFeatures
from monge.nn.unet import UNet, unpatch

SMALL = UNet.Config(width=8, multipliers=(1, 2), blocks=1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def shaken(net):
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    return net.double().eval()


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        UNet.Config(width=8, multipliers=(1,), attention=0),
        UNet.Config(
            width=4,
            multipliers=(1, 1, 2),
            blocks=2,
            attention=3,
            norm="batch",
            activation="elu",
            doubling="transposed",
            dropout=0.2,
        ),
        UNet.Config(
            width=4,
            multipliers=(2, 1),
            patch=2,
            middle=1,
            norm="none",
            activation="softmax",
            doubling="linear",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(3, 8, 12), (2, 16)])
def test_shapes_are_kept_and_every_parameter_matters(config, shape):
    assert Config.from_dict(config.to_dict()) == config
    net = config.build(shape, 5, 7)
    x, context = torch.randn(4, *shape), torch.randn(4, 7)
    assert not net(x, context).any()  # it begins at 0
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    y = net(x, context)
    assert y.shape == (4, 5, *shape[1:])
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_a_context_speaks_to_its_own_row_and_must_be_given():
    net, x = shaken(SMALL.build((1, 8, 8), 1, 3)), torch.randn(2, 1, 8, 8, dtype=torch.float64)
    context = torch.randn(2, 3, dtype=torch.float64)
    other = torch.stack([context[0], context[1] + 1])
    left, right = net(x, context), net(x, other)
    assert torch.allclose(left[0], right[0])
    assert not torch.allclose(left[1], right[1])
    with pytest.raises(UsageError, match=r"\b3\b.*\b0\b"):
        net(x)
    with pytest.raises(UsageError, match=r"\b0\b.*\b3\b"):
        SMALL.build((1, 8, 8), 1)(x.float(), context.float())


@torch.enable_grad()
def test_every_output_reads_the_whole_image_where_the_lowest_level_attends():
    net = shaken(UNet.Config(width=4, multipliers=(1, 2), attention=1).build((1, 32), 1))
    x = torch.randn(1, 1, 32, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x)[0, 0, 0], x)
    assert bool((slope != 0).all())


def test_sizes_that_do_not_divide_are_refused():
    config = UNet.Config(width=4, multipliers=(1, 1, 1, 1))
    with pytest.raises(UsageError, match=r"\b8\b.*28x28.*\b3 multipliers.*32x32"):
        config.build((1, 28, 28), 1)
    net = config.build((1, 32, 32), 1)
    assert net(torch.randn(1, 1, 16, 40)).shape == (1, 1, 16, 40)
    with pytest.raises(UsageError, match=r"30x24.*32x24"):
        net(torch.randn(1, 1, 30, 24))
    with pytest.raises(UsageError, match=r"patch=2.*\b4\b.*6x6.*\b1 multipliers"):
        UNet.Config(multipliers=(1, 1), patch=2).build((1, 6, 6), 1)
    with pytest.raises(UsageError, match=r"\b4\b.*8x7.*patch=1"):
        UNet.Config(multipliers=(1,), patch=4).build((1, 8, 7), 1)
    with pytest.raises(UsageError, match=r"1 or 2\b.*\b3\b"):
        config.build((1, 8, 8, 8), 1)
    with pytest.raises(UsageError, match="multipliers=1,2,4"):
        UNet.Config(multipliers=()).build((1, 8, 8), 1)


def test_a_patch_is_a_square_of_positions():
    maps = torch.randn(2, 12, 3, 5)
    assert torch.equal(unpatch(maps, 2), nn.functional.pixel_shuffle(maps, 2))
    assert unpatch(torch.arange(4.0).reshape(1, 2, 2), 2).flatten().tolist() == [0, 2, 1, 3]


def test_residual_layers_add_and_project():
    x, body = torch.randn(3, 4), nn.Linear(4, 6)
    around = nn.Linear(4, 6)
    assert torch.equal(ResidualBlock(body, around)(x), around(x) + body(x))
    assert torch.equal(ResidualBlock(nn.Identity())(x), 2 * x)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_a_resnet_makes_features(norm):
    config = ResNetFeatures.Config(widths=(4, 6, 8), blocks=1, norm=norm, dropout=0.2)
    net, x = config.build((3, 9, 7)), torch.randn(5, 3, 9, 7)
    assert net(x).shape == (5, net.width) == (5, 8)
    net(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())
    biases = [m.bias is not None for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert all(biases) == (norm != "batch")
    assert any(biases) == (norm != "batch")


def test_a_resnet_refuses_images_that_are_too_small():
    with pytest.raises(UsageError, match=r"1x1.*\b3\b.*\b2\b"):
        ResNetFeatures.Config(widths=(4,) * 5).build((1, 8, 8))
    with pytest.raises(UsageError, match="widths=32,64,128"):
        ResNetFeatures.Config(widths=()).build((1, 8, 8))


@pytest.mark.parametrize("settings", ["doubling=unpool", "pairing=dot", "pairing=concat"])
@pytest.mark.parametrize("sides", [(8,), (8, 8)])
def test_unpooling_and_other_pairings_train(settings, sides):
    config = UNet.Config(width=8, multipliers=(1, 2)).override(settings)
    net = config.build((2, *sides), 3)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    out = net(torch.randn(2, 2, *sides))
    assert out.shape == (2, 3, *sides)
    out.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in net.parameters())
