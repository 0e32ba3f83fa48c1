"""The functions that stand between linear maps."""

from __future__ import annotations

from typing import Literal

from torch import nn

Activation = Literal["relu", "leaky", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus"]


def activation(name: Activation, inplace: bool = False) -> nn.Module:
    """The elementwise function of that name; `inplace` overwrites its input where it can."""
    known: dict[str, nn.Module] = {
        "relu": nn.ReLU(inplace), "leaky": nn.LeakyReLU(0.2, inplace),
        "elu": nn.ELU(inplace=inplace), "gelu": nn.GELU(), "silu": nn.SiLU(inplace),
        "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "softplus": nn.Softplus(),
    }
    return known[name]
