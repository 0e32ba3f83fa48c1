r"""Initial weights.

For z' = W a(z) with independent weights of variance s^2, Var z' = D_in s^2 E[a(z)^2]. The variance
of pre-activations stays constant with depth if $s^2 = \alpha / D_{in}$ (He et al. 2015) with $1 /
\alpha = E[a(z)^2]$ at z ~ N(0, 1): alpha is 2 for relu, 1 for linear layers and by convention for
functions that are nearly linear near 0. Glorot & Bengio (2010) use $2 \alpha / (D_{in} +
D_{out})$, which also preserves the variance of gradients.

For functions between two slopes, such as silu and gelu, $E[a(z)^2]$ grows faster than Var z, so
that a small deviation from Var z = 1 doubles every few layers. Deep chains of them are rescaled
layer by layer after sampling, to Var z = 1 on normal inputs (Mishkin & Matas 2016).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from .activation import LEAKY_SLOPE, Activation

Init = Literal["auto", "he", "xavier", "orthogonal", "small", "torch"]
"""How weights are sampled. torch leaves them as torch does, uniform of variance 1 / (3 D_in);
auto is torch in shallow networks, whose small first outputs help generative models, and he in deep
ones, which would lose their signal, or with residual sums let it grow."""
SHALLOW = 5
"""Most maps in a row that auto leaves to torch; these keep a thousandth of the variance."""
SMALL_STD = 0.01
"""Standard deviation of the weights of `small`."""
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ONE_SIDED: tuple[Activation, ...] = ("relu", "leaky", "rrelu", "prelu", "softplus", "sigmoid")
"""Functions whose mean is far from 0, so that sums of them grow like their number."""
UNSTABLE: tuple[Activation, ...] = ("silu", "gelu")
"""Functions in deep chains of which the variance runs away from 1."""
PROBE_ROWS = 512
"""Normal rows that a deep chain of these is rescaled on."""
GAIN_SQUARED: dict[Activation, float] = {
    "relu": 2.0,
    "leaky": 2 / (1 + LEAKY_SLOPE**2),
    "rrelu": 2 / (1 + (1 / 8**2 + 1 / 24 + 1 / 3**2) / 3),  # slopes U(1/8, 1/3): their mean square
    "elu": 1.550,
    "selu": 1.0,
    "prelu": 2 / (1 + 0.25**2),
    "gelu": 2.352,
    "silu": 2.812,
    "softplus": 1.0,
    "tanh": 1.0,
    "sigmoid": 1.0,
    "arctan": 1.0,
    "identity": 1.0,
    "softmax": 1.0,
}
"""alpha of each function; those of elu, gelu and silu are 1 / E[a(z)^2] rounded."""


def leaky_gain(slope: float) -> float:
    """alpha of leaky with this slope below 0."""
    return 2 / (1 + slope**2)


def maxout_gain(pieces: int) -> float:
    """alpha of maxout: 1 over the mean square of the largest of this many normal numbers."""
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    log_density = -z.square() / 2 - math.log(2 * math.pi) / 2
    largest = pieces * (log_density + (pieces - 1) * torch.special.log_ndtr(z)).exp()
    return 1 / float(torch.trapezoid(z.square() * largest, z))


@torch.no_grad()
def initialise(
    net: nn.Module,
    how: Init = "he",
    activation: Activation = "relu",
    slope: float = LEAKY_SLOPE,
) -> None:
    """Sample the weights of every linear map and convolution in the net; biases become 0. Maps
    whose weights are 0, so that a block starts as the identity, stay so. `slope` is that of
    leaky."""
    if resolve(how, deep=False) == "torch":
        return
    alpha = leaky_gain(slope) if activation == "leaky" else GAIN_SQUARED[activation]
    for layer in net.modules():
        if isinstance(layer, (nn.Linear, *CONVS, *TRANSPOSED)) and bool(layer.weight.any()):
            init_weight(layer, how, alpha)
            if layer.bias is not None:
                layer.bias.zero_()


def resolve(how: Init, deep: bool) -> Init:
    """What auto means in a network."""
    return how if how != "auto" else "he" if deep else "torch"


@torch.no_grad()
def initialise_chain(
    layers: Sequence[nn.Linear],
    how: Init,
    activation: Activation,
    residual: bool = False,
    gain: float | None = None,
) -> None:
    """The same for maps that follow one another: the first reads inputs, so that its alpha is 1,
    the others read activations. With `residual` the maps between the first and the last are added
    to their inputs, so that each may add only its part of the variance, or of the size if what is
    added has one sign. `gain` is alpha, by default that of the activation."""
    how = resolve(how, deep=len(layers) > SHALLOW)
    if how == "torch":
        return
    between = len(layers) - 2
    for place, layer in enumerate(layers):
        alpha = (gain or GAIN_SQUARED[activation]) if place else 1.0
        share = 1
        if residual and 0 < place <= between:
            share = between**2 if activation in ONE_SIDED else between
        init_weight(layer, how, alpha / share)
        if layer.bias is not None:
            layer.bias.zero_()


@torch.no_grad()
def rescale_chain(layers: Sequence[nn.Linear], act: nn.Module) -> None:
    """Scale the weights of maps that follow one another, in order, so that the outputs of normal
    inputs have variance 1."""
    h = torch.randn(PROBE_ROWS, layers[0].in_features)
    for layer in layers:
        z = layer(h.to(layer.weight))
        scale = z.square().mean().sqrt()
        layer.weight.div_(scale)
        h = act(z / scale)


def init_weight(layer: nn.Module, how: Init, alpha: float) -> None:
    assert isinstance(layer.weight, nn.Parameter)
    sample_weight(layer.weight, how, alpha, *fans(layer))


@torch.no_grad()
def sample_weight(weight: Tensor, how: Init, alpha: float, into: float, out: float) -> None:
    """Sample a weight of a map that has `into` inputs per output and `out` outputs per input."""
    if how == "orthogonal":
        nn.init.orthogonal_(weight, math.sqrt(alpha))
        return
    variance = {"he": alpha / into, "xavier": 2 * alpha / (into + out), "small": SMALL_STD**2}[how]
    weight.normal_(0, math.sqrt(variance))


def fans(layer: nn.Module) -> tuple[float, float]:
    """D_in, the inputs per output, and D_out, the outputs per input."""
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    first, second = weight[0].numel(), weight.numel() / weight.shape[1]
    if isinstance(layer, TRANSPOSED):  # its weight is that of the adjoint convolution
        steps = math.prod(layer.stride)
        return second / steps, first
    steps = math.prod(layer.stride) if isinstance(layer, CONVS) else 1
    return first, second / steps
