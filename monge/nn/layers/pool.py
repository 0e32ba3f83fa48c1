"""Pooling, unpooling and upsampling."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Pooling = Literal["max", "average"]
Halving = Literal["stride", "max", "average"]
"""How a network halves its maps: convolutions of stride 2, or pooling."""
Doubling = Literal["nearest", "linear", "transposed"]
"""How it doubles them: nearest or linear interpolation followed by a convolution of kernel 3 (no
checkerboard artefacts), or a transposed convolution of kernel 4 and stride 2."""

MAX = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR = ("linear", "bilinear", "trilinear")


def pool(name: Pooling, dims: int, kernel: int, stride: int, padding: int = 0) -> nn.Module:
    """The largest or the mean value of every window."""
    kind = MAX if name == "max" else AVERAGE
    return kind[dims - 1](kernel, stride, padding)


class GlobalPool(nn.Module):
    """One number of each channel, the mean or the largest over all positions: (B, C, *sides) ->
    (B, C). The mean does not change when a map is shifted around."""

    def __init__(self, kind: Pooling = "average") -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        return flat.mean(2) if self.kind == "average" else flat.amax(2)


def halve_by_max(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each window of side 2, and where it stood: (B, C, *sides) -> twice
    (B, C, *sides / 2)."""
    pools = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
    value, places = pools[x.ndim - 3](x, 2, return_indices=True)
    return value, places


def unpool(x: Tensor, places: Tensor) -> Tensor:
    """Maps of twice the sides with x at the places that `halve_by_max` found and 0 elsewhere
    (Zeiler & Fergus 2014)."""
    pools = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)
    return pools[x.ndim - 3](x.contiguous(), places.contiguous(), (2,) * (x.ndim - 2))


def upsample(name: Doubling, dims: int, inputs: int, outputs: int) -> nn.Module:
    """(B, inputs, *sides) -> (B, outputs, *2 sides)."""
    if name == "transposed":
        return TRANSPOSED[dims - 1](inputs, outputs, 4, 2, 1)
    mode = "nearest" if name == "nearest" else LINEAR[dims - 1]
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode=mode), CONV[dims - 1](inputs, outputs, 3, padding=1)
    )
