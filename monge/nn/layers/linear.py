"""Linear maps by the faster of the two libraries of matrix products that torch brings.

torch multiplies by MKL, which on processors that are not Intel's leaves half of the width of
AVX-512 unused. oneDNN, which torch convolves by, uses all of it: products of float32 take about
half the time. Small products do not repay the longer call, and a product of a new shape is
prepared once, for a fraction of a millisecond.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.machine import processor_maker
from ...core.model import is_exporting

LEAST_PRODUCTS = 1 << 21
"""Multiplications from which oneDNN is quicker, the longer call included; with derivatives, whose
calls are longer still, from twice as many."""


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies matrices of float32 faster than MKL does on this machine."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and getattr(torch.ops.mkldnn, "_linear_pointwise", None) is not None
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and processor_maker() != "GenuineIntel"
    )


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether x W' is computed by oneDNN, for x (..., inputs) and W (outputs, inputs)."""
    return (
        not is_exporting()  # sizes are not known then
        and not torch.compiler.is_compiling()
        and x.numel() * weight.shape[0] >= LEAST_PRODUCTS << torch.is_grad_enabled()
        and x.dtype is torch.float32 is weight.dtype
        and onednn_is_faster()
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def onednn_inputs(weight: Tensor) -> float:
    """The numbers in x from which x W, for W (inputs, outputs), is computed by oneDNN in steps
    without derivatives."""
    suits = onednn_is_faster() and weight.dtype is torch.float32 and weight.device.type == "cpu"
    return LEAST_PRODUCTS / weight.shape[1] if suits else math.inf


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W' + b by oneDNN without a gradient, for x (n, inputs) and W (outputs, inputs), either of
    which may be a transpose."""
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()
    return cast(
        Tensor, torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "none")
    )


class OneDNNProduct(torch.autograd.Function):
    """x W' + b, whose derivatives are such products too and have derivatives of their own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        return (
            linear(slope, weight.t()) if to_x else None,
            linear(slope.t(), x.t()) if to_weight else None,
            slope.sum(0) if to_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W' + b for x (..., inputs), W (outputs, inputs) and b (outputs,)."""
    if not suits_onednn(x, weight):
        return F.linear(x, weight, bias)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        y = cast(Tensor, OneDNNProduct.apply(rows, weight, bias))
    else:
        y = product(rows, weight, bias)
    return y if rows is x else y.view(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    """torch's linear layer by the faster product."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class StackedLinear(nn.Module):
    """K linear maps side by side, each of rows of its own: (K, B, inputs) -> (K, B, outputs)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([each.weight.detach().t() for each in layers]))
        self.bias = nn.Parameter(torch.stack([each.bias.detach()[None] for each in layers]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)
