"""Random corruption of inputs: each function is a value of data.augment.

Each takes rows x (B, *event) in the units of the data and their space.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from ...core.space import Space


def noise(x: Tensor, space: Space, most: float) -> Tensor:
    """Gaussian noise, in percent of the range, or of the spread of real values (noise5)"""
    spread = space.statistic("scale").to(x) if space.kind == "real" else max(space.size - 1, 1)
    return x + most / 100 * spread * torch.randn_like(x)


def blur(x: Tensor, space: Space, most: float) -> Tensor:
    """Gaussian blur of images by at most the given number of pixels (blur1)"""
    reach = math.ceil(3 * most)
    place = torch.arange(-reach, reach + 1)
    width = (most * torch.rand(len(x), 1)).clamp(min=1e-3)  # (B, 1)
    kernel = (-(place / width).square() / 2).softmax(1).repeat_interleave(x.shape[1], 0)
    flat = x.reshape(1, -1, *x.shape[2:])  # (1, B C, H, W)
    groups = flat.shape[1]
    rows = conv2d(
        pad(flat, (0, 0, reach, reach), "replicate"), kernel[:, None, :, None], groups=groups
    )
    return conv2d(
        pad(rows, (reach, reach, 0, 0), "replicate"), kernel[:, None, None, :], groups=groups
    ).reshape(x.shape)


def salt(x: Tensor, space: Space, most: float) -> Tensor:
    """The given percentage of pixels made black or white, half each (salt2)"""
    u = torch.rand(len(x), 1, *x.shape[2:])
    low, high = (
        (0, max(space.size - 1, 1)) if space.kind != "real" else (min(space.low), max(space.high))
    )
    ends = torch.where(u < most / 200, low, high).to(x.dtype)
    return torch.where(u < most / 100, ends, x)


def channels(x: Tensor, space: Space, most: float) -> Tensor:
    """Each channel replaced by its mean with the given probability in percent (channels20)"""
    hidden = torch.rand(*x.shape[:2], 1, 1) < most / 100
    return torch.where(hidden, space.statistic("mean").to(x), x)
