"""Convolutions that torch lacks, against sums written out."""

import pytest
import torch
from torch import nn

from monge.nn.layers.conv import ContinuousConv, FourierKernel, NonLocal, UnsharedConvSpec
from monge.nn.mlp import MLP


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_unshared_weights_belong_to_their_places():
    form = UnsharedConvSpec(3, 3, 2, 1)
    layer, x = form.build((2, 6, 5)).double(), normal(4, 2, 6, 5)
    nn.init.normal_(layer.bias)
    out, padded = layer(x), nn.functional.pad(x, (1, 1, 1, 1))
    assert out.shape[1:] == form.shape((2, 6, 5)) == (3, 3, 3)
    for place, (row, column) in enumerate((r, c) for r in range(3) for c in range(3)):
        window = padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].flatten(1)
        due = window @ layer.weight[place] + layer.bias[place]
        assert torch.allclose(out[:, :, row, column], due)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("steps", [1, 7, 20])
def test_continuous_convolution_sums_over_all_offsets(causal, steps):
    kernel = FourierKernel(3, 2, 20, 4, MLP.Config(width=8, depth=1)).double()
    layer, x = ContinuousConv(kernel, 2, causal).double(), normal(2, 3, steps)
    g = kernel(torch.arange(1 - steps, steps))  # (offsets, out, in)
    due = torch.zeros(2, 2, steps, dtype=torch.float64)
    for i in range(steps):
        for j in range(i + 1 if causal else steps):
            due[:, :, i] += x[:, :, j] @ g[j - i + steps - 1].T
    assert torch.allclose(layer(x), due, atol=1e-13)


def test_a_kernel_of_short_support_is_an_ordinary_convolution():
    conv = nn.Conv1d(3, 2, 5, padding=2).double()

    class Short(nn.Module):
        def forward(self, offsets):
            taps = conv.weight.permute(2, 0, 1)[(offsets + 2).clamp(0, 4)]
            return torch.where((offsets.abs() <= 2)[:, None, None], taps, 0.0)

    layer, x = ContinuousConv(Short(), 2).double(), normal(2, 3, 11)
    layer.bias.data.copy_(conv.bias[:, None])
    assert torch.allclose(layer(x), conv(x), atol=1e-13)


@pytest.mark.parametrize("pairing", ["gaussian", "embedded", "dot", "concat"])
def test_non_local_sums_over_all_pairs(pairing):
    layer, x = NonLocal(4, pairing, 3).double(), normal(2, 4, 3, 2)
    assert torch.equal(layer(x), x)  # it begins as the identity
    nn.init.normal_(layer.out.weight)
    rows = x.flatten(2).mT
    q, k, v = layer.query(rows), layer.key(rows), layer.value(rows)
    if pairing == "concat":
        weights = torch.relu(q + k.mT) / 6
    elif pairing == "dot":
        weights = torch.einsum("bid,bjd->bij", q, k) / 6
    else:
        weights = (torch.einsum("bid,bjd->bij", q, k) / q.shape[2] ** 0.5).softmax(2)
    due = x + layer.out(torch.einsum("bij,bjd->bid", weights, v)).mT.reshape(x.shape)
    assert torch.allclose(layer(x), due)


def test_non_local_moves_with_its_positions_and_reads_through_a_norm():
    layer, x = NonLocal(8, before="group").double(), normal(2, 8, 6)
    nn.init.normal_(layer.out.weight)
    order = torch.randperm(6)
    assert torch.allclose(layer(x)[..., order], layer(x[..., order]))
    assert torch.allclose(layer(5 * x) - 5 * x, layer(x) - x, atol=1e-4)
