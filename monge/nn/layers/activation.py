"""Activation functions.

sigmoid 1 / (1 + e^-z), tanh 2 sigmoid(2z) - 1 and arctan saturate; relu max(0, z) does not, but
its derivative is 0 on one side (and at 0, by convention); leaky keeps a slope of 0.2 there, rrelu
(Xu et al. 2015) a slope a ~ U(1/8, 1/3) sampled for each number in training and its mean after it,
prelu (He et al. 2015) a slope that is learnt, one for all layers of a network, from 0.25;
elu, gelu, silu and softplus are smooth; selu (Klambauer et al. 2017) is the elu, scaled such that
N(0, 1) keeps its mean and variance. identity and softmax are for outputs.
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


class Arctan(nn.Module):
    """arctan z, with derivative 1 / (1 + z^2)."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.atan(z)


def activation(name: Activation, inplace: bool = False, axis: int = -1) -> nn.Module:
    """The function with this name; `inplace` overwrites its input if possible, `axis` is that of
    softmax."""
    known: dict[str, nn.Module] = {
        "relu": nn.ReLU(inplace),
        "leaky": nn.LeakyReLU(0.2, inplace),
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
