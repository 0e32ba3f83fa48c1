r"""Convolutions that torch lacks, between linear maps and attention.

unshared    $h[i] = u[i] + \sum_k W[i, k] x[i + k]$: a window with separate weights per position
convolution the same with equal W and u everywhere: equivariant to shifts
continuous  $h_i = \sum_j g(j) x_{i+j}$ over all offsets j, where g is a network
non-local   $h_i = \sum_j \alpha(x_i, x_j) x_j$: weights depend on content, not on position
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import UsageError
from ..mlp import MLP
from .linear import Linear
from .norm import Norm, norm
from .specs import ConvSpec, Shape, format_shape

Pairing = Literal["gaussian", "embedded", "dot", "concat"]


@dataclass(frozen=True)
class UnsharedConvSpec(ConvSpec):
    """Spec of an unshared layer: a convolution with separate parameters per position."""

    def shape(self, inputs: Shape) -> Shape:
        if len(inputs) != 3:
            raise UsageError(
                "an unshared layer reads images (channels, height, width), but here "
                f"is a shape of {format_shape(inputs)}; use a plain convolution"
            )
        return super().shape(inputs)

    def parameters(self, inputs: Shape) -> int:
        return super().parameters(inputs) * math.prod(self.shape(inputs)[1:])

    def build(self, inputs: Shape) -> nn.Module:
        return UnsharedConv2d(self, inputs)


class UnsharedConv2d(nn.Module):
    """h[i, j] = u[i, j] + sum over k of W[i, j, k] x[(i, j) s + d k - p] (LeCun 1989)."""

    def __init__(self, form: UnsharedConvSpec, inputs: Shape) -> None:
        super().__init__()
        self.form, self.sides = form, form.shape(inputs)[1:]
        places, reads = math.prod(self.sides), inputs[0] * form.kernel**2
        self.weight = nn.Parameter(torch.empty(places, reads, form.width))
        self.bias = nn.Parameter(torch.zeros(places, 1, form.width)) if form.bias else None
        nn.init.normal_(self.weight, 0.0, (2 / reads) ** 0.5)  # He's, for relu

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, width, H', W')
        form = self.form
        windows = F.unfold(x, form.kernel, form.dilation, form.margin, form.stride)
        h = windows.permute(2, 0, 1) @ self.weight  # (places, B, width)
        h = h if self.bias is None else h + self.bias
        return h.permute(1, 2, 0).unflatten(2, self.sides)


class FourierKernel(nn.Module):
    """A kernel as a network of the offset: j -> (outputs, inputs), with sines and cosines of
    j / length at `count` doubling frequencies as inputs."""

    rates: Tensor

    def __init__(
        self, inputs: int, outputs: int, length: int, count: int, net: MLP.Config
    ) -> None:
        super().__init__()
        self.shape, self.length = (outputs, inputs), length
        self.net: MLP = net.build(2 * count + 1, outputs * inputs)
        rates = math.pi / length * 2.0 ** torch.arange(count)
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, offsets: Tensor) -> Tensor:  # (J,) -> (J, outputs, inputs)
        place = offsets[:, None].to(self.rates)
        angles = place * self.rates  # (J, count)
        features = torch.cat([place / self.length, angles.sin(), angles.cos()], 1)
        # The output sums over about `length` offsets and all inputs.
        size = (self.length * self.shape[1]) ** -0.5
        return self.net(features).unflatten(1, self.shape) * size


class ContinuousConv(nn.Module):
    """h_i = b + sum over j of g(j) x_{i+j}, over every offset of a sequence of any length
    (Romero et al. 2022); `causal` uses only j <= 0. Computed by FFT in O(n log n).

    kernel: offsets (J,) -> (J, outputs, inputs).
    """

    def __init__(self, kernel: nn.Module, outputs: int, causal: bool = False) -> None:
        super().__init__()
        self.kernel, self.causal = kernel, causal
        self.bias = nn.Parameter(torch.zeros(outputs, 1))

    def forward(self, x: Tensor) -> Tensor:  # (B, inputs, T) -> (B, outputs, T)
        steps = x.shape[2]
        last = 0 if self.causal else steps - 1
        g = self.kernel(torch.arange(1 - steps, last + 1, device=x.device))  # (J, out, in)
        size = steps + len(g) - 1
        # With a reversed kernel, the sum over x_{i+j} is a product of transforms.
        waves = torch.fft.rfft(g.flip(0), size, 0)  # (F, out, in)
        seen = torch.fft.rfft(x, size).permute(2, 1, 0)  # (F, in, B)
        h = torch.fft.irfft((waves @ seen).permute(2, 1, 0), size)
        return h[..., last : last + steps] + self.bias


class NonLocal(nn.Module):
    r"""$y_i = x_i + W \sum_j \alpha_{ij} G x_j$ over all positions of a map (Wang et al. 2018):

    gaussian  $\alpha_i = \mathrm{softmax}_j(x_i \cdot x_j / \sqrt d)$
    embedded  the same of linear maps Q x_i and K x_j: self-attention
    dot       $Q x_i \cdot K x_j / n$
    concat    $\mathrm{relu}(q \cdot x_i + k \cdot x_j) / n$

    W is initialised to 0, so the block starts as the identity. With a norm, the sum reads the
    normalised x.
    """

    def __init__(
        self,
        channels: int,
        pairing: Pairing = "embedded",
        width: int | None = None,
        before: Norm = "none",
    ) -> None:
        super().__init__()
        width = width or max(channels // 2, 1)
        self.pairing, self.norm = pairing, norm(before, channels, 1)
        outputs = {"gaussian": 0, "embedded": width, "dot": width, "concat": 1}[pairing]
        self.query = Linear(channels, outputs, bias=False) if outputs else nn.Identity()
        self.key = Linear(channels, outputs, bias=False) if outputs else nn.Identity()
        self.value = Linear(channels, width, bias=False)
        self.out = Linear(width, channels)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, *sides) -> (B, C, *sides)
        rows = self.norm(x.flatten(2)).mT  # (B, n, C)
        return x + self.out(self.gather(rows)).mT.reshape(x.shape)

    def gather(self, x: Tensor) -> Tensor:
        """sum over j of alpha_ij G x_j, (B, n, C) -> (B, n, width)."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.pairing in ("gaussian", "embedded"):
            return F.scaled_dot_product_attention(query, key, value)
        if self.pairing == "dot":  # right to left, which avoids an n x n matrix
            return query @ (key.mT @ value) / x.shape[1]
        return F.relu(query + key.mT) @ value / x.shape[1]
