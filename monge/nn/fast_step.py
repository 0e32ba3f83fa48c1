"""Layers prepared for many calls on a few rows each, as in step-by-step sampling.

Such calls are dominated by overhead around the product, and the product itself is two to three
times faster if the weights are stored as (inputs, outputs).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

StepMap = Callable[[Tensor], Tensor]
ResidualStep = Callable[[Tensor, Tensor], Tensor]
"""x + f(h) of x and h."""


def prepare(*layers: nn.Module) -> StepMap:
    """The composed layers on (n, inputs), in eval mode and with the current weights."""
    maps = [
        prepare_layer(layer)
        for layer in layers
        if not isinstance(layer, (nn.Dropout, nn.Identity))
    ]
    if len(maps) == 1:
        return maps[0]

    def chain(x: Tensor) -> Tensor:
        for each in maps:
            x = each(x)
        return x

    return chain


def prepare_layer(layer: nn.Module) -> StepMap:
    if isinstance(layer, nn.Linear):
        return prepare_linear(layer)
    if isinstance(layer, nn.LayerNorm):
        shape, weight, bias, eps = layer.normalized_shape, layer.weight, layer.bias, layer.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return layer.forward


def prepare_linear(layer: nn.Linear, gain: Tensor | float = 1.0) -> StepMap:
    """The linear map of the layer, with outputs multiplied by `gain`."""
    weight = (layer.weight.detach().t() * gain).contiguous()  # (inputs, outputs)
    if layer.bias is None:
        return lambda x: torch.mm(x, weight)
    bias = layer.bias.detach() * gain  # (outputs,)
    return lambda x: torch.addmm(bias, x, weight)


def prepare_residual(layer: nn.Linear, gain: float = 1.0) -> ResidualStep:
    """x + W (gain h) + b of x and h, fused into one call."""
    weight, bias = (layer.weight.detach().t() * gain).contiguous(), layer.bias.detach()
    return lambda x, h: torch.add(x, bias).addmm_(h, weight)


def prepare_gelu_residual(enter: nn.Linear, leave: nn.Linear) -> ResidualStep:
    """x + `leave` of the gelu of `enter` h: z Phi(z) = (u + u erf u) / sqrt 2 with u = z / sqrt 2,
    and the roots are absorbed by the weights. Hidden units are written over those of the last
    call; behind them stands a 1, whose weights are the bias of `leave`."""
    root, hidden = math.sqrt(0.5), enter.out_features
    weight, bias = (enter.weight.detach().t() * root).contiguous(), enter.bias.detach() * root
    out = torch.cat([leave.weight.detach().t() * root, leave.bias.detach()[None]])
    units = u = e = bias.new_empty(0)  # the hidden units with the 1, without it, and scratch

    def think(x: Tensor, h: Tensor) -> Tensor:
        nonlocal units, u, e
        if units.shape[0] != h.shape[0]:
            units, e = bias.new_ones(h.shape[0], hidden + 1), bias.new_empty(h.shape[0], hidden)
            u = units.narrow(1, 0, hidden)
        torch.addmm(bias, h, weight, out=u)
        torch.addcmul(u, u, torch.erf(u, out=e), out=u)
        return torch.addmm(x, units, out)

    return think
