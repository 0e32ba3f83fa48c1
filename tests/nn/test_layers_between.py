"""What stands between linear maps: functions, norms, dropout, first weights."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.adversarial.cyclegan import CycleGAN
from monge.models.adversarial.dcgan import DCGAN
from monge.models.adversarial.pix2pix import Pix2Pix
from monge.models.adversarial.wgan import WGAN
from monge.models.diffusion.noisy_classifier import NoisyClassifier
from monge.models.flow.attribute import AttributeFlow
from monge.models.flow.cflow import CFlow
from monge.models.flow.glow import Glow
from monge.models.flow.superres import Superres
from monge.models.latent._encoder_decoder import ConvEncoderDecoder
from monge.nn.autoregressive.any_order import ConvSubsetNet
from monge.nn.autoregressive.masked_mlp import MaskedMLP
from monge.nn.autoregressive.pixel import WindowConv2d
from monge.nn.autoregressive.pixelcnn import GatedPixelCNN, PlainPixelCNN
from monge.nn.autoregressive.pixelrnn import DiagonalBiLSTM
from monge.nn.layers.activation import Activation, Pointwise, activation
from monge.nn.layers.dropout import dropout, monte_carlo_dropout
from monge.nn.layers.init import GAIN_SQUARED, Init, fans, initialise, maxout_gain
from monge.nn.layers.norm import Norm, centres_channels, group_count, norm
from monge.nn.layers.pool import GlobalPool, halve_by_max, unpool, upsample
from monge.nn.mlp import MLP
from monge.nn.recurrent import GRU, LSTM, ElmanRNN
from monge.nn.resnet import ResNetFeatures

Z = torch.linspace(-6, 6, 2001, dtype=torch.float64)


def test_every_activation_has_its_formula():
    formulas = {
        "sigmoid": 1 / (1 + (-Z).exp()),
        "tanh": 2 * torch.sigmoid(2 * Z) - 1,
        "arctan": torch.atan(Z),
        "relu": Z * (Z > 0),
        "leaky": torch.maximum(0.2 * Z, Z),
        "rrelu": torch.where(Z < 0, 11 / 48 * Z, Z),
        "identity": Z,
        "softplus": (1 + Z.exp()).log(),
        "silu": Z * torch.sigmoid(Z),
        "softmax": Z.exp() / Z.exp().sum(),
        "elu": torch.where(Z < 0, Z.exp() - 1, Z),
        "selu": 1.0507009873554805 * torch.where(Z < 0, 1.6732632423543772 * (Z.exp() - 1), Z),
        "prelu": torch.where(Z < 0, 0.25 * Z, Z),  # its first slope
        "gelu": Z * (1 + torch.erf(Z / 2**0.5)) / 2,
    }
    assert set(formulas) == set(get_args(Activation)) == set(get_args(Pointwise)) | {"softmax"}
    for name, due in formulas.items():
        assert torch.allclose(activation(name).double().eval()(Z), due), name


def test_randomised_slopes_are_sampled_in_training_alone():
    layer, x = activation("rrelu"), -torch.ones(10_000)
    slopes = -layer(x)
    assert 1 / 8 <= slopes.min() < 0.13
    assert 0.33 < slopes.max() <= 1 / 3
    assert layer.eval()(x).unique().numel() == 1


def test_softmax_has_an_axis_and_no_place_in_a_masked_network():
    x = torch.randn(2, 3, 4, 4)
    assert torch.allclose(activation("softmax", axis=1)(x).sum(1), torch.ones(2, 4, 4))
    with pytest.raises(UsageError, match="activation=softmax"):
        MaskedMLP.Config(activation="softmax")


@pytest.mark.parametrize("name", get_args(Norm))
@pytest.mark.parametrize("dims", [0, 1, 2])
def test_norms_centre_and_scale_their_own_axes(name, dims):
    x = 3 * torch.randn(6, 16, *[5] * dims, dtype=torch.float64) + 2
    if name == "instance" and not dims:
        with pytest.raises(UsageError, match=r"norm=instance.*norm=layer"):
            norm(name, 16, dims)
        return
    y = norm(name, 16, dims).double()(x)
    sides = tuple(range(2, x.ndim))
    grouped = y.unflatten(1, (4, 4))
    over = {
        "batch": y.transpose(0, 1).reshape(16, -1),
        "layer": y.reshape(6, -1),
        "group": grouped.reshape(24, -1),
        "instance": y.reshape(96, -1),
    }
    if name == "none":
        assert torch.equal(y, x)
        return
    assert over[name].mean(1).abs().max() < 1e-12
    assert (over[name].var(1, correction=0) - 1).abs().max() < 1e-3
    shift = torch.randn(16, *[1] * len(sides), dtype=torch.float64)
    same = torch.allclose(norm(name, 16, dims).double()(x + shift), y, atol=1e-5)
    assert same == centres_channels(name)


@pytest.mark.parametrize("dims", [0, 1, 2])
def test_a_batch_of_one_is_refused_in_training_and_fine_after(dims):
    layer, x = norm("batch", 4, dims), torch.randn(1, 4, *[5] * dims)
    with pytest.raises(UsageError, match=r"norm=group.*train\.batch_size"):
        layer(x)
    layer.eval()(x)
    norm("group", 4, dims)(x)


def test_groups_divide_the_channels_and_are_never_too_small():
    found = {channels: group_count(channels) for channels in (1, 3, 4, 7, 8, 12, 24, 32, 100, 256)}
    assert found == {1: 1, 3: 1, 4: 1, 7: 1, 8: 2, 12: 3, 24: 6, 32: 8, 100: 5, 256: 8}


@torch.no_grad()
def test_thinned_samples_from_its_generator_and_from_nothing_else():
    net = nn.Sequential(nn.Linear(4, 50), dropout(0.5), nn.Linear(50, 1)).eval()
    x, before = torch.randn(1, 4).expand(3, 4), torch.get_rng_state()

    def sampled(seed, shared=True):
        with monte_carlo_dropout(net, make_generator(seed), shared):
            return net(x)

    assert torch.equal(sampled(1), sampled(1))
    assert not torch.equal(sampled(1), sampled(2))
    assert float(sampled(1).std()) < 1e-6  # rows share a mask,
    assert float(sampled(1, shared=False).std()) > 1e-2  # or have their own
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(net(x), net(x))
    net.train()
    assert torch.equal(sampled(1), sampled(1))


def test_whole_channels_are_hidden_together_and_the_mean_is_kept():
    layer, x = dropout(0.3, 2, whole=True), torch.ones(1, 4000, 2, 2)
    for seen in (layer(x), hidden(layer, x)):
        flat = seen.flatten(2)[0]
        assert bool((flat == flat[:, :1]).all())
        assert flat.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
        assert float(flat.mean()) == pytest.approx(1, abs=0.05)
    assert torch.equal(layer.eval()(x), x)


def hidden(layer, x):
    with monte_carlo_dropout(layer, make_generator(0)):
        return layer(x)


@pytest.mark.parametrize("name", ["relu", "leaky", "rrelu", "elu", "gelu", "silu", "identity"])
def test_alpha_is_one_over_the_second_moment(name):
    weight = (-Z.square() / 2).exp()
    layer = activation(name)
    if name == "rrelu":
        slope = torch.linspace(1 / 8, 1 / 3, 2001, dtype=torch.float64).square().mean()
        values = torch.where(Z < 0, slope, 1.0) * Z.square()
    else:
        values = layer(Z).square()
    total = float((weight * values).sum() / weight.sum())
    assert GAIN_SQUARED[name] == pytest.approx(1 / total, rel=1e-3)


def test_first_weights_have_the_stated_spread():
    layers = [nn.Linear(300, 200), nn.Conv2d(20, 30, 5), nn.ConvTranspose2d(20, 30, 4, 2)]
    net = nn.Sequential(*layers)
    due = [(300, 200), (500, 750), (80, 480)]
    assert [fans(layer) for layer in layers] == due
    for options in ("he", "xavier", "small"):
        initialise(net, options, "relu")
        for layer, (into, out) in zip(layers, due, strict=True):
            spread = {"he": 2 / into, "xavier": 4 / (into + out), "small": 1e-4}[options]
            assert float(layer.weight.detach().var()) == pytest.approx(spread, rel=0.05)
            assert not layer.bias.any()
    initialise(net, "orthogonal", "relu")
    product = layers[0].weight @ layers[0].weight.T
    assert torch.allclose(product, 2 * torch.eye(200), atol=1e-4)


@pytest.mark.parametrize("doubling", ["nearest", "linear", "transposed"])
@pytest.mark.parametrize("dims", [1, 2])
def test_maps_are_doubled_and_summed_up(doubling, dims):
    x = torch.randn(2, 3, *(5, 7)[:dims])
    assert upsample(doubling, dims, 3, 4)(x).shape == (2, 4, *(10, 14)[:dims])
    assert torch.allclose(GlobalPool()(x), x.flatten(2).mean(2))
    assert torch.equal(GlobalPool("max")(x), x.flatten(2).amax(2))


def test_max_pooling_is_undone_by_torchs_own_indices():
    x = torch.randn(2, 3, 8, 8)
    y, places = F.max_pool2d(x, 2, return_indices=True)
    back = F.max_unpool2d(y, places, 2)
    assert torch.equal(F.max_pool2d(back.clamp_min(0), 2), y.clamp_min(0))


def signal(config, rows=256, inputs=256, outputs=256):
    """Variance over rows of the outputs for standard normal inputs, averaged over networks."""
    x = torch.randn(rows, inputs, generator=make_generator(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [config.build(inputs, outputs) for _ in range(8)]
    with torch.no_grad():
        return float(torch.stack([net(x).var(0).mean() for net in nets]).mean())


@pytest.mark.parametrize(("name", "depth"), [("relu", 6), ("relu", 20), ("silu", 6)])
@pytest.mark.parametrize("init", ["he", "orthogonal", "auto"])
def test_deep_networks_keep_their_signal(depth, init, name):
    config = MLP.Config(width=256, depth=depth, activation=name, init=init)
    assert 0.02 < signal(config) < 5  # rows become alike with depth, at any weights
    assert signal(replace(config, init="torch")) < 1e-3


def test_residual_branches_share_the_variance():
    config = MLP.Config(width=256, depth=20, activation="relu", residual=True, init="he")
    assert 0.5 < signal(config) < 200  # twice at each layer would be 2^19


def test_small_weights_are_small_and_torch_is_torch():
    small = MLP.Config(width=64, depth=2, init="small").build(64, 3)
    assert all(float(layer.weight.detach().std()) < 0.012 for layer in small.linears)
    torch.manual_seed(3)
    shallow = MLP.Config(width=8, depth=1).build(4, 3)
    torch.manual_seed(3)
    peer = torch.nn.Linear(4, 8)
    assert torch.equal(shallow.hidden[0].weight, peer.weight)


IMAGE = Space(kind="levels", shape=(1, 8, 8), size=16, rows=99)
PAIR = replace(IMAGE, given={"source": IMAGE})
SMALL_PAIR = replace(IMAGE, given={"source": replace(IMAGE, shape=(1, 4, 4))})
LABEL = Space(kind="label", size=3, given={"image": IMAGE})
ENTRIES = torch.arange(64)
NETWORKS = {
    "mlp": lambda init: MLP.Config(width=64, init=init).build(32, 32),
    "masked": lambda init: MaskedMLP.Config(width=64, direct=False, init=init).build(
        ENTRIES, ENTRIES, ENTRIES[None]
    ),
    "encoder and decoder": lambda init: ConvEncoderDecoder.Config(
        widths=(16,), width=32, init=init
    ).build(replace(IMAGE, kind="real"), 64, 0, 4, 2, 64),
    "resnet": lambda init: ResNetFeatures.Config(widths=(16,), blocks=1, init=init).build(
        (1, 8, 8)
    ),
    "pixelcnn": lambda init: pixel(GatedPixelCNN, init),
    "plain": lambda init: pixel(PlainPixelCNN, init),
    "pixelrnn": lambda init: pixel(DiagonalBiLSTM, init, 1),
    "deep_nade": lambda init: ConvSubsetNet.Config(init=init).build(
        (1, 8, 8), ENTRIES, ENTRIES, 0
    ),
    "rnn": lambda init: ElmanRNN.Config(width=32, activation="relu", init=init).build(32),
    "gru": lambda init: GRU.Config(width=32, depth=2, init=init).build(32),
    "lstm": lambda init: LSTM.Config(width=32, init=init).build(32),
    "glow": lambda init: Glow.Config(steps=2, width=32, init=init).build(IMAGE),
    "superres": lambda init: Superres.Config(steps=1, init=init).build(SMALL_PAIR),
    "cflow": lambda init: CFlow.Config(layers=2, steps=1, init=init).build(PAIR),
    "attribute": lambda init: AttributeFlow.Config(steps=1, init=init).build(
        replace(IMAGE, given={"label": replace(LABEL, given={})})
    ),
    "dcgan": lambda init: DCGAN.Config(init=init).build(IMAGE),
    "wgan": lambda init: WGAN.Config(image_net="conv", init=init).build(IMAGE),
    "pix2pix": lambda init: Pix2Pix.Config(init=init).build(PAIR).discriminator,
    "cyclegan": lambda init: CycleGAN.Config(init=init).build(PAIR).discriminators,
    "noisy classifier": lambda init: NoisyClassifier.Config(init=init).build(LABEL).net,
}


def pixel(stack, init, depth=2):
    return stack.Config(width=32, depth=depth, first=5, init=init).build((1, 8, 8), 2)


def weights_of(net):
    """The weights of the linear maps and convolutions of a network, and their inputs per output;
    those that start at 0 and small ones, whose spread is uncertain, are left out."""
    for layer in net.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            mask = layer.mask if isinstance(layer, WindowConv2d) else None
            read = 1.0 if mask is None else float(mask.mean())
            weight, into = layer.weight.detach(), fans(layer)[0] * read
        elif isinstance(layer, nn.RNNBase):
            weight, into = layer.weight_hh_l0.detach(), layer.hidden_size
        else:
            continue
        if weight.any() and weight.numel() > 500:
            yield weight, into


@pytest.mark.parametrize("name", NETWORKS)
def test_a_setting_chooses_the_initial_weights_of_every_network(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = {init: NETWORKS[name](init) for init in get_args(Init)}
    sizes = {
        init: [float(weight.square().mean()) * into for weight, into in weights_of(net)]
        for init, net in nets.items()
    }
    assert all(size > 0.8 for size in sizes["he"])
    for weight, _ in weights_of(nets["torch"]):
        assert abs(float(weight.square().mean()) * weight[0].numel() - 1 / 3) < 0.05
    small = [float(weight.std()) for weight, _ in weights_of(nets["small"])]
    assert small
    assert all(abs(std - 0.01) < 0.002 for std in small)
    assert len({tuple(sizes[init]) for init in ("he", "xavier", "orthogonal", "torch")}) == 4


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.7])
def test_the_slope_of_leaky_and_its_gain_are_settings(slope):
    leaky = activation("leaky", slope=slope)
    torch.testing.assert_close(leaky(Z), torch.where(Z < 0, slope * Z, Z))
    net = MLP.Config(width=512, depth=20, activation="leaky", slope=slope, init="he").build(64, 64)
    spread = float(net(torch.randn(256, 64)).detach().square().mean())
    assert 0.2 < spread < 5


@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_maxout_is_the_largest_of_its_maps_and_keeps_the_variance(pieces):
    config = MLP.Config(width=3, depth=1, activation="maxout", pieces=pieces)
    net, x = config.build(4, 2), torch.randn(7, 4)
    maps = net.hidden[0](x).reshape(7, 3, pieces)
    torch.testing.assert_close(net(x), net.out(maps.max(2).values))
    largest = torch.randn(400_000, pieces, dtype=torch.float64).amax(1).square()
    error = float(largest.std()) / 400_000**0.5
    assert abs(float(largest.mean()) - 1 / maxout_gain(pieces)) < 5 * error
    deep = replace(config, width=256, depth=20).build(64, 64)
    assert 0.05 < float(deep(torch.randn(256, 64)).detach().square().mean()) < 20


def test_noise_on_activations_is_of_training_alone():
    net = MLP.Config(width=2000, depth=1, activation="relu", noise=0.3).build(4, 2)
    x, seen = torch.randn(50, 4), []
    net.drop.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    net(x), net.eval()(x), net(x)
    assert torch.equal(seen[1], seen[2])
    noise = (seen[0] - seen[1]).flatten().detach()
    assert abs(float(noise.std()) - 0.3) < 0.005
    assert abs(float(noise.mean())) < 0.005


def test_unpooling_puts_values_where_the_maxima_were():
    for sides in ((8,), (4, 6)):
        x = torch.randn(2, 3, *sides)
        value, places = halve_by_max(x)
        back = unpool(value, places)
        assert back.shape == x.shape
        torch.testing.assert_close(back, torch.where(back != 0, x, 0))
        assert int((back != 0).sum()) == value.numel()
        torch.testing.assert_close(halve_by_max(back.clamp(min=0))[0], value.clamp(min=0))
