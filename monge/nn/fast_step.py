"""Layers prepared for many calls on a few rows each, as in step-by-step sampling.

Such calls are dominated by overhead around the product, and the product itself is two to three
times faster if the weights are stored as (inputs, outputs). From some rows on the library of
`layers.linear` takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .layers.linear import onednn_inputs, product

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
    return prepare_product(weight, None if layer.bias is None else layer.bias.detach() * gain)


def prepare_product(weight: Tensor, bias: Tensor | None) -> StepMap:
    """x W + b of x (n, inputs), for W (inputs, outputs) and b (outputs,)."""
    turned, many = weight.t(), onednn_inputs(weight)
    added = None if bias is None else bias[None]  # what has all axes is not expanded for one row

    def step(x: Tensor) -> Tensor:
        if x.numel() >= many and not x.requires_grad:
            return product(x, turned, bias)
        return torch.mm(x, weight) if added is None else torch.addmm(added, x, weight)

    return step


def prepare_residual(layer: nn.Linear, gain: float = 1.0) -> ResidualStep:
    """x + W (gain h) + b of x and h, for few rows fused into one call."""
    weight, bias = (layer.weight.detach().t() * gain).contiguous(), layer.bias.detach()
    turned, many = weight.t(), onednn_inputs(weight)

    def step(x: Tensor, h: Tensor) -> Tensor:
        if h.numel() >= many and not h.requires_grad:
            return x + product(h, turned, bias)
        return torch.add(x, bias).addmm_(h, weight)

    return step


def prepare_gelu_residual(enter: nn.Linear, leave: nn.Linear) -> ResidualStep:
    """x + `leave` of the gelu of `enter` h: z Phi(z) = (u + u erf u) / sqrt 2 with u = z / sqrt 2,
    and the roots are absorbed by the weights. Hidden units are written over those of the last
    call; behind them stands a 1, whose weights are the bias of `leave`."""
    root, hidden = math.sqrt(0.5), enter.out_features
    weight, bias = (enter.weight.detach().t() * root).contiguous(), enter.bias.detach() * root
    out = torch.cat([leave.weight.detach().t() * root, leave.bias.detach()[None]])
    added = bias[None]
    first, last, many = weight.t(), out[:-1].t(), onednn_inputs(weight)
    units = u = e = bias.new_empty(0)  # the hidden units with the 1, without it, and scratch

    def think(x: Tensor, h: Tensor) -> Tensor:
        nonlocal units, u, e
        if h.numel() >= many and not h.requires_grad:
            v = product(h, first, bias)
            return x + product(v.addcmul_(v, v.erf()), last, out[-1])
        if units.shape[0] != h.shape[0]:
            units, e = bias.new_ones(h.shape[0], hidden + 1), bias.new_empty(h.shape[0], hidden)
            u = units.narrow(1, 0, hidden)
        torch.addmm(added, h, weight, out=u)
        torch.addcmul(u, u, torch.erf(u, out=e), out=u)
        return torch.addmm(x, units, out)

    return think
