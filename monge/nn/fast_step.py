"""Layers made ready for many calls on a few rows each, which is what drawing step by step is.

Such a call is dominated by what surrounds its product, and the product itself is two to three
times faster where the weights are stored input by output.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]
Sum = Callable[[Tensor, Tensor], Tensor]
"""x + f(h) of x and h."""


def ready(*layers: nn.Module) -> Map:
    """The layers one after the other, on (n, inputs), in eval mode and with the weights of now."""
    maps = [one(layer) for layer in layers if not isinstance(layer, (nn.Dropout, nn.Identity))]
    if len(maps) == 1:
        return maps[0]

    def chain(x: Tensor) -> Tensor:
        for each in maps:
            x = each(x)
        return x

    return chain


def one(layer: nn.Module) -> Map:
    if isinstance(layer, nn.Linear):
        return affine(layer)
    if isinstance(layer, nn.LayerNorm):
        about = layer.normalized_shape, layer.weight, layer.bias, layer.eps
        return lambda x: torch.layer_norm(x, *about)
    return layer.forward


def affine(layer: nn.Linear, gain: Tensor | float = 1.0) -> Map:
    """The layer's map, its outputs times `gain`."""
    weight = (layer.weight.t() * gain).contiguous()  # (inputs, outputs)
    if layer.bias is None:
        return lambda x: torch.mm(x, weight)
    bias = layer.bias * gain  # (outputs,)
    return lambda x: torch.addmm(bias, x, weight)


def added(layer: nn.Linear, gain: float = 1.0) -> Sum:
    """x + W (gain h) + b of x and h, in place of a sum of its own."""
    weight, bias = (layer.weight.t() * gain).contiguous(), layer.bias
    return lambda x, h: torch.add(x, bias).addmm_(h, weight)


def gelu(enter: nn.Linear, leave: nn.Linear) -> Sum:
    """x + `leave` of the gelu of `enter` h: z Phi(z) = (u + u erf u) / sqrt 2 with u = z / sqrt 2,
    and the weights take up the roots."""
    root = math.sqrt(0.5)
    weight, bias = (enter.weight.t() * root).contiguous(), enter.bias * root
    out = added(leave, root)

    def thought(x: Tensor, h: Tensor) -> Tensor:
        u = torch.addmm(bias, h, weight)
        return out(x, torch.addcmul(u, u, u.erf()))

    return thought
