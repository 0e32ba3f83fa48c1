r"""Identities of norms, dropout, residual connections and initial weights.

A norm removes the shift and scale of the layers before it; the 2^n networks that dropout makes
average to the scaled one if it is linear; residual connections preserve gradients, and a variance
of alpha / D_in preserves signals, through any depth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.rng import make_generator
from ..models.adversarial._convnets import critic_convnet
from ..nn.attention.transformer import TransformerEncoder
from ..nn.autoregressive.masked_mlp import MaskedMLP
from ..nn.autoregressive.pixelcnn import PlainPixelCNN
from ..nn.autoregressive.pixelrnn import DiagonalBiLSTM, RowLSTM
from ..nn.dilated import ContinuousStack, TCNStack, WaveNetStack
from ..nn.layers.activation import Pointwise, activation
from ..nn.layers.dropout import apply_mask, dropout, monte_carlo_dropout
from ..nn.layers.init import GAIN_SQUARED, UNSTABLE, Init, initialise
from ..nn.layers.norm import Norm, norm
from ..nn.mlp import MLP
from ..nn.resnet import ResidualBlock as Skip
from ._helpers import gap, most, normal, standard_errors
from .convolution import ROUNDING
from .framework import Residual

PER_ROW: tuple[Norm, ...] = ("layer", "group", "instance")
DEPTH, WIDTH = 30, 128
"""Layers and units through which a variance is followed."""
NETWORKS = 64
"""Networks over which its growth is averaged."""
BUILT_BAND = 20.0
"""By what factor one network may differ. Residual sums add up to e, or to e^2 where what is added
has one sign, and a chain of 40 relu layers of 256 units varies by a factor of about 2.7 between
networks; seen over six seeds is at most 12. A gain that is off by 8 % in each of 40 layers leaves
it."""
INITS: tuple[Init, ...] = ("auto", "he")
"""Initial weights of transformers that are examined."""
STACK_BAND = 6.0
"""The same of stacks of residual blocks; five seeds gave at most 3.8."""
SAMPLES = 200_000
MASKS = 1000
"""Dropout masks that are sampled."""
MAX_STANDARD_ERRORS = 5.0
"""Standard errors that chance may make."""


def batch_norm() -> tuple[nn.BatchNorm2d, Tensor]:
    layer = norm("batch", 3, 2).double()
    assert isinstance(layer, nn.BatchNorm2d)
    return layer.train(), 2 * normal(6, 3, 4, 5) + 3


def x25_batch_norm_cancels_a_bias() -> Residual:
    """BN(x + b) = BN(x).

    Examines: nn.layers.norm.

    Source: Ioffe & Szegedy 2015, Batch Normalization, sec. 3.2."""
    layer, x = batch_norm()
    return Residual(gap(layer(x + normal(3, 1, 1)), layer(x)), ROUNDING)


def x25_batch_norm_can_restore_its_input() -> Residual:
    """gamma = sqrt(biased variance + eps) and beta = mean restore x.

    Examines: nn.layers.norm.

    Source: Ioffe & Szegedy 2015, Batch Normalization, sec. 3."""
    layer, x = batch_norm()
    layer.weight.copy_((x.var((0, 2, 3), correction=0) + layer.eps).sqrt())
    layer.bias.copy_(x.mean((0, 2, 3)))
    return Residual(gap(layer(x), x), ROUNDING)


def x25_running_variance_is_unbiased() -> Residual:
    """Running averages use the mean and the unbiased variance.

    Examines: nn.layers.norm.

    Source: Ioffe & Szegedy 2015, Batch Normalization, sec. 3.1."""
    layer, x = batch_norm()
    layer(x)
    rate = layer.momentum or 0.0
    assert layer.running_mean is not None
    assert layer.running_var is not None
    mean = gap(layer.running_mean, rate * x.mean((0, 2, 3)))
    variance = gap(layer.running_var, 1 - rate + rate * x.var((0, 2, 3)))
    return Residual(most(mean, variance), ROUNDING)


def x25_evaluation_reads_the_running_averages_alone() -> Residual:
    """In evaluation, a row is normalised alike in every batch.

    Examines: nn.layers.norm.

    Source: Ioffe & Szegedy 2015, Batch Normalization, sec. 3.1."""
    layer, x = batch_norm()
    layer(x)
    layer.eval()
    return Residual(gap(layer(x)[:1], layer(x[:1])), 0)


def x26_layer_norm_ignores_scale_and_shift() -> Residual:
    """LN(a x + b) = LN(x) for a > 0, as eps -> 0.

    Examines: nn.layers.norm.

    Source: Ba, Kiros & Hinton 2016, Layer Normalization, sec. 5."""
    layer, x = norm("layer", 16).double(), normal(5, 16)
    assert isinstance(layer, nn.LayerNorm)
    layer.eps = 0.0
    return Residual(gap(layer(3.7 * x - 2), layer(x)), ROUNDING)


def x26_layer_norm_ignores_other_rows() -> Residual:
    """Layer, group and instance norm treat each row independently.

    Examines: nn.layers.norm.

    Source: Ba, Kiros & Hinton 2016, Layer Normalization; Wu & He 2018, Group Normalization."""
    x, worst = normal(5, 16, 3, 4), 0.0
    for name in PER_ROW:
        layer = norm(name, 16, 2).double()
        worst = most(worst, gap(layer(x)[:1], layer(x[:1])))
    return Residual(worst, ROUNDING)


def x26_norms_are_their_formulas() -> Residual:
    """(x - mean) / sqrt(var + eps) over the entries that each norm averages.

    Batch norm averages rows and sides, layer norm channels and sides, group norm sides and a
    share of the channels, instance norm sides.

    Examines: nn.layers.norm.

    Source: Wu & He 2018, Group Normalization, sec. 3.1."""
    x, worst = 2 * normal(5, 16, 3, 4) + 1, 0.0
    axes_of: dict[Norm, tuple[int, ...]] = {
        "batch": (0, 3, 4),
        "layer": (1, 2, 3, 4),
        "instance": (3, 4),
    }
    for name, axes in axes_of.items():
        worst = most(worst, apart_from_formula(name, x, 1, axes))
    return Residual(most(worst, apart_from_formula("group", x, 4, (2, 3, 4))), ROUNDING)


def apart_from_formula(name: Norm, x: Tensor, groups: int, axes: tuple[int, ...]) -> float:
    """How far a norm of maps is from the formula over these axes of (B, groups, C, H, W)."""
    layer = norm(name, x.shape[1], x.dim() - 2).double().train()
    parts = x.unflatten(1, (groups, -1))
    mean, variance = parts.mean(axes, True), parts.var(axes, correction=0, keepdim=True)
    due = ((parts - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)
    return gap(layer(x), due)


def masks(units: int) -> Tensor:
    """Every choice of kept units, (2^n, n)."""
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=units)), dtype=torch.float64)


def chances(kept: Tensor, rate: float) -> Tensor:
    """The probability of each choice, (2^n,)."""
    return (kept * (1 - rate) + (1 - kept) * rate).prod(1)


def x27_dropout_keeps_the_mean() -> Residual:
    """E of dropout in training is its input, which evaluation returns.

    Examines: nn.layers.dropout.

    Source: Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting, sec. 10."""
    h, worst = torch.rand(4, 1, dtype=torch.float64) + 1, []
    rows = h.expand(SAMPLES // 4, 4, 1)
    for layer in (dropout(0.3), dropout(0.3, dims=1, whole=True)):
        worst.append(standard_errors(layer.train()(rows), h))
        worst.append(gap(layer.eval()(h), h))
    worst.append(standard_errors(apply_mask(rows, 0.3, False, None, shared=False), h))
    return Residual(most(worst), MAX_STANDARD_ERRORS)


def x27_linear_networks_average_to_the_scaled_one() -> Residual:
    """Linear networks thinned by dropout average to the whole one.

    Examines: nn.layers.dropout.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 7.12."""
    thinned, whole = thinned_layer(bias=False)
    return Residual(standard_errors(thinned, whole), MAX_STANDARD_ERRORS)


def thinned_layer(bias: bool) -> tuple[Tensor, Tensor]:
    """Outputs of a linear map of five numbers, 0.3 of which dropout leaves out, (N, 3), and of
    the map in evaluation, (3,)."""
    net, h = nn.Sequential(dropout(0.3), nn.Linear(5, 3, bias)).double(), normal(5)
    return net.train()(h.expand(SAMPLES // 4, 5)), net.eval()(h)


def x27_softmax_networks_average_geometrically() -> Residual:
    """The normalised geometric mean of thinned softmax nets is the whole one.

    Examines: nn.layers.dropout.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 7.12."""
    thinned, whole = (logits.log_softmax(-1) for logits in thinned_layer(bias=True))
    ratios, due = (logs[..., 1:] - logs[..., :1] for logs in (thinned, whole))
    return Residual(standard_errors(ratios, due), MAX_STANDARD_ERRORS)


def x28_thinned_networks_average_to_the_exact_mean() -> Residual:
    """Monte-Carlo dropout tends to the average over all 2^n masks.

    Examines: nn.layers.dropout.

    Source: Gal & Ghahramani 2016, Dropout as a Bayesian Approximation."""
    net, exact, _ = thinning()
    generator, h, found = make_generator(4), torch.ones(1, 6, dtype=torch.float64), []
    for _ in range(MASKS):
        with monte_carlo_dropout(net, generator):
            found.append(net(h)[0, 0])
    samples = torch.stack(found)
    return Residual(
        float((samples.mean() - exact).abs() / samples.std()) * MASKS**0.5, MAX_STANDARD_ERRORS
    )


def x28_the_whole_network_is_not_the_average() -> Residual:
    """For a non-linear network, the mean over masks is not the scaled network.

    Examines: nn.layers.dropout.

    Source: Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting, sec. 7.5."""
    _, exact, whole = thinning()
    return Residual(0.01 - float((exact - whole).abs()), 0)


def thinning() -> tuple[nn.Module, Tensor, Tensor]:
    """A network non-linear after dropout, its exact mean over masks, and its scaled output."""
    net = nn.Sequential(dropout(0.4), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    initialise(net, "he", "relu")
    kept, bends = masks(6), net[1:]
    mean = (chances(kept, 0.4) * bends(kept / 0.6)[:, 0]).sum()
    return net.eval(), mean, net.eval()(torch.ones(6, dtype=torch.float64))[0]


@torch.enable_grad()
def x29_residual_jacobian_is_the_identity_and_more() -> Residual:
    """d(h + f(h)) / dh = I + df / dh.

    Examines: nn.resnet.

    Source: He et al. 2016, Identity Mappings in Deep Residual Networks."""
    body = MLP.Config(width=8, depth=1, activation="tanh").build(5, 5).double()
    jacobian, h = torch.autograd.functional.jacobian, normal(5)
    whole, inner = jacobian(Skip(body), h), jacobian(body, h)
    return Residual(gap(whole, torch.eye(5, dtype=torch.float64) + inner), 1e-14)


def x29_residual_gradients_stay_alike() -> Residual:
    """Gradients of 24 plain layers look like white noise, residual ones do not.

    Examines: nn.resnet.

    Source: Balduzzi et al. 2017, The Shattered Gradients Problem."""
    return Residual(0.3 - (likeness(residual=True) - likeness(residual=False)), 0)


@torch.enable_grad()
def likeness(residual: bool, depth: int = 24, width: int = 200, points: int = 256) -> float:
    """The correlation of the derivatives of a centred net at neighbours on a line (Balduzzi et
    al. 2017)."""

    def layer() -> nn.Module:
        return nn.Sequential(norm("batch", width), nn.ReLU(), nn.Linear(width, width))

    layers = [Skip(layer()) if residual else layer() for _ in range(depth)]
    net = nn.Sequential(nn.Linear(1, width), *layers, nn.Linear(width, 1)).double()
    initialise(net)
    x = torch.linspace(-2, 2, points, dtype=torch.float64)[:, None].requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x)
    centred = (slope - slope.mean()).flatten()
    return float((centred[1:] * centred[:-1]).sum() / centred.square().sum())


def x30_he_keeps_the_variance() -> Residual:
    """ReLU layers of variance 2 / D_in keep Var z over 30 layers.

    Examines: nn.layers.init.

    Source: He et al. 2015, Delving Deep into Rectifiers, sec. 2.2."""
    return Residual(growth("relu", "he"), MAX_STANDARD_ERRORS)


def x30_linear_layers_keep_the_variance() -> Residual:
    """Linear layers of variance 1 / D_in keep Var z over 30 layers.

    Examines: nn.layers.init.

    Source: Glorot & Bengio 2010, Understanding the Difficulty of Training Deep Feedforward
    Networks."""
    return Residual(growth("identity", "he"), MAX_STANDARD_ERRORS)


def x30_built_weights_have_their_variance() -> Residual:
    """Var W = alpha / D_in in every map as built; 1 / alpha = E a(z)^2.

    The first map reads inputs, so that its alpha is 1. Each of the n maps that are added to their
    input has 1 / n of the variance, and 1 / n^2 if the function has one sign. Perceptrons and
    masked ones at depths 8, 20 and 40; left out are chains that are rescaled layer by layer.

    Examines: nn.mlp, nn.autoregressive.masked_mlp.

    Source: He et al. 2015, Delving Deep into Rectifiers, sec. 2.2; Zhang, Dauphin & Ma 2019,
    Fixup Initialization."""
    missed, width, entries = [], 64, torch.arange(32)
    for depth in (8, 20, 40):
        for name in ("relu", "leaky", "elu", "selu", "silu", "gelu"):
            for residual in (True, False) if name not in UNSTABLE else (True,):
                config = MLP.Config(width=width, depth=depth, activation=name, residual=residual)
                missed.append(variance_off(config.build(32, 64).linears, name, residual))
        masked = MaskedMLP.Config(width=width, depth=depth, direct=False)
        net = masked.build(entries, entries.repeat(2), entries[None])
        missed.append(variance_off(net.maps(), masked.activation, masked.residual))
    return Residual(most(missed), MAX_STANDARD_ERRORS)


def variance_off(maps: Sequence[nn.Linear], name: Pointwise, residual: bool) -> float:
    """By how many standard errors the variance of the weights is off."""
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    moment = float(torch.trapezoid(activation(name)(z.clone()).square() * density, z))
    added, squares = len(maps) - 2, []
    for place, layer in enumerate(maps):
        alpha = 1 / moment if place else 1.0
        between = residual and 0 < place <= added
        share = added ** (2 if name in ("relu", "leaky") else 1) if between else 1
        scale = layer.in_features * share / alpha
        squares.append(layer.weight.detach().double().square().flatten() * scale)
    return standard_errors(torch.cat(squares), torch.ones(()))


def x30_built_networks_keep_the_variance() -> Residual:
    """Networks as models build them give Var z near 1 at depths 8, 20 and 40.

    Perceptrons and masked ones, with residual sums and without, by their default initial weights.
    Left out are saturating functions, whose gain is 1 by convention, and 40 plain layers of silu
    and gelu, in which rows of smaller norm fade whatever the weights.

    Examines: nn.mlp, nn.autoregressive.masked_mlp.

    Source: He et al. 2015, Delving Deep into Rectifiers, sec. 2.2; Mishkin & Matas 2016, All you
    need is a good init."""
    missed, width = [], 256
    entries = torch.arange(32)
    for depth in (8, 20, 40):
        for name in ("relu", "leaky", "elu", "selu", "silu", "gelu"):
            for residual in (True, False) if depth <= 20 or name not in UNSTABLE else (True,):
                config = MLP.Config(width=width, depth=depth, activation=name, residual=residual)
                missed.append(log_variance(config.build(32, 64)(torch.randn(64, 32))))
        masked = MaskedMLP.Config(width=width, depth=depth, direct=False)
        net = masked.build(entries, entries.repeat(2), entries[None])
        missed.append(log_variance(net(torch.randn(64, 32))[:, 16:32]))
    return Residual(most(missed), math.log(BUILT_BAND))


def x30_built_stacks_keep_the_variance() -> Residual:
    """Built stacks of blocks keep the variance of their states at any depth.

    Gated, plain and continuous residual blocks of sequence models and those of transformers, at
    depths 4, 16 and 40.

    Examines: nn.dilated, nn.attention.transformer.

    Source: He et al. 2015, Delving Deep into Rectifiers, sec. 2.2; Zhang, Dauphin & Ma 2019,
    Fixup Initialization."""
    missed = []
    for depth in (4, 16, 40):
        rounds = depth // 4
        for config in (
            WaveNetStack.Config(width=32, layers=4, cycles=rounds),
            TCNStack.Config(width=32, layers=4, cycles=rounds),
            ContinuousStack.Config(width=32, layers=depth, kernel=4),
        ):
            net, states = config.build(8).eval(), torch.randn(4, 24, 32)
            with torch.no_grad():
                for block in net.blocks:
                    start = states[:, :1].expand(-1, block.past, -1)
                    states, _ = block.over(torch.cat([start, states], 1), None)
            missed.append(log_variance(states))
        for init in INITS:
            transformer = TransformerEncoder.Config(
                width=32, depth=depth, heads=2, positions="none", init=init
            )
            encoder, steps = transformer.build(32, 24).eval(), torch.randn(4, 24, 32)
            with torch.no_grad():
                for block in encoder.blocks:
                    steps = block(steps)
            missed.append(log_variance(steps))
    return Residual(most(missed), math.log(STACK_BAND))


def x30_built_image_networks_keep_the_variance() -> Residual:
    """Image networks built with he give features of a variance near 1.

    One masked stack and both stacks of LSTM cells at depths 2, 8 and 20, critics of GANs at images
    of sides 16 and 64, which they halve to 4.

    Examines: nn.autoregressive.pixelcnn, nn.autoregressive.pixelrnn,
    models.adversarial._convnets.

    Source: He et al. 2015, Delving Deep into Rectifiers, sec. 2.2."""
    missed = []
    x = torch.cat([torch.randn(8, 1, 8, 8), torch.ones(8, 1, 8, 8)], 1)
    with torch.no_grad():
        for stack in (PlainPixelCNN, RowLSTM, DiagonalBiLSTM):
            for depth in (2, 8, 20):
                net = stack.Config(width=32, depth=depth, init="he").build((1, 8, 8), 2)
                missed.append(log_variance(net.features(x, net.biases(None))))
        for side, depth in ((16, 2), (64, 4)):
            critic, _ = critic_convnet(3, (side, side), 16, depth, "he")
            missed.append(log_variance(critic(torch.randn(64, 3, side, side))))
    return Residual(most(missed), math.log(STACK_BAND))


def log_variance(z: Tensor) -> float:
    return abs(math.log(float(z.double().square().mean())))


def growth(name: Pointwise, options: Init, times: float = 1.0) -> float:
    """By how many standard errors the growth of |z|^2 in a layer differs from 1 in the mean over
    layers and networks, where weights have `times` their variance. Its mean is 1 whatever the
    layers before, since the weights of a unit are as likely as their negative; 2 % in each layer
    are 5 standard errors."""
    act, layer = activation(name), nn.Linear(WIDTH, WIDTH).double()
    ratios = []
    for z in normal(NETWORKS, 16, WIDTH):
        for _ in range(DEPTH):
            initialise(layer, options, name)
            following = layer(act(z)) * math.sqrt(times)
            ratios.append(following.square().sum() / z.square().sum())
            z = following
    return standard_errors(torch.stack(ratios), torch.ones(()))


def x30_gains_are_second_moments() -> Residual:
    """alpha = 1 / E[a(z)^2] of each function; Var relu(z) = (1 - 1/pi) / 2.

    Examines: nn.layers.activation.

    Source: He et al. 2015, Delving Deep into Rectifiers, sec. 2.2."""
    z, missed = normal(SAMPLES), []
    for name in ("relu", "leaky", "rrelu", "elu", "gelu", "silu", "identity"):
        square = activation(name).train()(z.clone()).square() * GAIN_SQUARED[name]
        missed.append(standard_errors(square, torch.ones(())))
    h = activation("relu")(z.clone())
    spread = (h - h.mean()).square()
    missed.append(
        standard_errors(spread, torch.tensor((1 - 1 / math.pi) / 2, dtype=torch.float64))
    )
    return Residual(most(missed), MAX_STANDARD_ERRORS)


def x49_randomised_slopes_average_to_that_of_evaluation() -> Residual:
    """E f(x) of randomised leaky ReLU in training is its f(x) in evaluation.

    Examines: nn.layers.activation.

    Source: Xu et al. 2015, Empirical Evaluation of Rectified Activations in Convolutional
    Network."""
    layer, x = activation("rrelu"), torch.tensor([-2.0, -0.5, 1.5], dtype=torch.float64)
    samples = layer.train()(x.expand(SAMPLES, 3).clone())
    error = samples.std(0) / SAMPLES**0.5 + 1e-15
    return Residual(
        float(((samples.mean(0) - layer.eval()(x)).abs() / error).amax()), MAX_STANDARD_ERRORS
    )
