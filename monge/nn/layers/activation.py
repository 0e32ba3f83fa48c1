"""Activation functions.

sigmoid 1 / (1 + e^-z), tanh 2 sigmoid(2z) - 1 and arctan saturate; relu max(0, z) does not, but
its derivative is 0 on one side (and at 0, by convention); leaky has a slope there, 0.2, rrelu
(Xu et al. 2015) a slope a ~ U(1/8, 1/3) sampled for each number in training and its mean after it,
prelu (He et al. 2015) a slope that is learnt, one for all layers of a network, from 0.25;
elu, gelu, silu and softplus are smooth; selu (Klambauer et al. 2017) is the elu, scaled such that
N(0, 1) keeps its mean and variance. identity and softmax are for outputs. maxout (Goodfellow et
al. 2013) is the largest of several linear maps, a convex function that is learnt.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Pointwise = Literal[
    "relu",
    "leaky",
    "rrelu",
    "elu",
    "selu",
    "prelu",
    "gelu",
    "silu",
    "softplus",
    "tanh",
    "sigmoid",
    "arctan",
    "identity",
]
"""Elementwise functions, for layers that must not mix entries."""
Activation = Literal[Pointwise, "softmax"]
LEAKY_SLOPE = 0.2
"""Slope of leaky below 0, unless a setting says otherwise."""


class Arctan(nn.Module):
    """arctan z, with derivative 1 / (1 + z^2)."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.atan(z)


class Maxout(nn.Module):
    """The largest of each `pieces` entries: (..., pieces width) -> (..., width)."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces

    def forward(self, z: Tensor) -> Tensor:
        return z.unflatten(-1, (-1, self.pieces)).amax(-1)


def activation(
    name: Activation, inplace: bool = False, axis: int = -1, slope: float = LEAKY_SLOPE
) -> nn.Module:
    """The function with this name; `inplace` overwrites its input if possible, `axis` is that of
    softmax, `slope` that of leaky below 0."""
    known: dict[str, nn.Module] = {
        "relu": nn.ReLU(inplace),
        "leaky": nn.LeakyReLU(slope, inplace),
        "rrelu": nn.RReLU(1 / 8, 1 / 3, inplace),
        "elu": nn.ELU(inplace=inplace),
        "selu": nn.SELU(inplace),
        "prelu": nn.PReLU(),
        "gelu": nn.GELU(),
        "silu": nn.SiLU(inplace),
        "softplus": nn.Softplus(),
        "tanh": nn.Tanh(),
        "sigmoid": nn.Sigmoid(),
        "arctan": Arctan(),
        "identity": nn.Identity(),
        "softmax": nn.Softmax(axis),
    }
    return known[name]
