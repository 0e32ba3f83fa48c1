"""No output sees its own entry or a later one, and a scan equals the whole pass."""

from __future__ import annotations

import itertools

import pytest
import torch

from monge.core.rng import make_generator
from monge.nn.autoregressive import pixelcnn as stacks
from monge.nn.autoregressive import pixelrnn as lstm2d
from monge.nn.autoregressive.pixel import RasterNet, masked_conv
from monge.nn.autoregressive.pixelcnn import GatedPixelCNN, PlainPixelCNN
from monge.nn.autoregressive.pixelrnn import DiagonalBiLSTM, RowLSTM

NETWORKS = [PlainPixelCNN, GatedPixelCNN, RowLSTM, DiagonalBiLSTM]
SHAPES = [(1, 4, 5), (3, 3, 4), (2, 1, 6), (1, 5, 1)]
SIZES = [
    {"width": 6, "depth": 3},
    {"width": 5, "depth": 1, "first": 5},
    {"width": 2, "depth": 2},
    {"width": 7, "depth": 3, "kernel": 5, "first": 7},
]


def network(
    owner: type[RasterNet], shape, context: int = 0, outputs: int = 2, **size
) -> RasterNet:
    torch.manual_seed(0)
    if owner is DiagonalBiLSTM:
        size.pop("kernel", None)
    config = owner.Config(**{"width": 12, "depth": 3, "first": 3, **size})
    net = config.build(shape, outputs, context).double().eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return net


def places(shape) -> torch.Tensor:
    """The place of each entry: pixel by pixel, colour by colour."""
    colours, rows, columns = shape
    pixels = torch.arange(rows * columns).reshape(rows, columns)
    return pixels * colours + torch.arange(colours)[:, None, None]


def test_masks_of_both_types():
    one = torch.zeros(1, dtype=torch.long)
    a, b = (masked_conv(one, one, 1, 1, 1, strict=strict).mask[0, 0] for strict in (True, False))
    assert a.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert b.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert masked_conv(one, one, left=1).mask is None
    rgb = torch.arange(3)
    a, b = (masked_conv(rgb, rgb, strict=strict).mask[..., 0, 0] for strict in (True, False))
    assert torch.equal(a, torch.ones(3, 3).tril(-1))
    assert torch.equal(b, torch.ones(3, 3).tril())


@pytest.mark.parametrize("owner", NETWORKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_entry_depends_on_earlier_ones_alone(owner, shape):
    net, order = network(owner, shape), places(shape)
    for colour, row, column in itertools.product(*map(range, shape)):
        seen = net.support(row, column, colour)
        assert not (seen & (order >= order[colour, row, column])).any()
        own = seen[:, row, column].tolist()
        assert own == [other < colour for other in range(shape[0])]


def test_two_stacks_or_both_diagonals_see_every_earlier_entry_and_others_have_a_blind_spot():
    shape, order = (1, 9, 9), places((1, 9, 9))[0]
    for owner, blind in (
        (PlainPixelCNN, 6),
        (RowLSTM, 6),
        (GatedPixelCNN, 0),
        (DiagonalBiLSTM, 0),
    ):
        seen = network(owner, shape, depth=6).support(4, 4)[0]
        assert ((order < 40) & ~seen).sum() == blind
    lacking = (order < 40) & ~network(PlainPixelCNN, shape, depth=12).support(4, 4)[0]
    assert lacking.nonzero().tolist() == [[1, 8], [2, 7], [2, 8], [3, 6], [3, 7], [3, 8]]


@pytest.mark.parametrize("owner", NETWORKS)
def test_a_first_mask_that_is_too_lenient_is_seen(owner, monkeypatch):
    for module in (stacks, lstm2d):
        monkeypatch.setattr(
            module,
            "masked_conv",
            lambda *degrees, strict=False, **reach: masked_conv(*degrees, **reach),
        )
    assert network(owner, (1, 3, 3)).support(1, 1)[0, 1, 1]


@pytest.mark.parametrize("owner", NETWORKS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "context"), list(itertools.product(SIZES, [0, 2])))
def test_a_scan_equals_the_whole_pass(owner, shape, size, context):
    net, n = network(owner, shape, context, **size), 3
    x = torch.randn(n, *shape, dtype=torch.float64, generator=make_generator(0))
    c = torch.randn(n, context, dtype=torch.float64, generator=make_generator(1))
    whole = net(x, c).unflatten(1, (shape[0], -1))  # (n, C, outputs, H, W)
    assert whole.std() > 0.1
    for cached in (True, False):
        steps = net.stepper(cached)(c)
        for row, column, colour in itertools.product(*map(range, (*shape[1:], shape[0]))):
            place = int(places(shape)[colour, row, column])
            own = steps.parameters(place)
            torch.testing.assert_close(own, whole[:, colour, :, row, column], atol=1e-11, rtol=0)
            steps.feed(place, x[:, colour, row, column, None])


@pytest.mark.parametrize("owner", NETWORKS)
def test_conditions_enter_every_layer_and_every_entry(owner):
    net = network(owner, (1, 3, 3), context=2)
    c = torch.randn(1, 2, dtype=torch.float64)
    out = net(torch.randn(1, 1, 3, 3, dtype=torch.float64), c)
    for entry in out[0, 0].flatten():
        (slopes,) = torch.autograd.grad(entry, net.given.weight, retain_graph=True)
        assert all((part != 0).any() for part in slopes.chunk(3))


def test_training_hides_and_asking_does_not():
    net = network(GatedPixelCNN, (1, 3, 3), dropout=0.5)
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64)
    assert torch.equal(net(x), net(x))
    net.train()
    assert not torch.equal(net(x), net(x))
