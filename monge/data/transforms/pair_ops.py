"""Transforms of images into pairs, written with a plus after the name of a dataset.

Each takes the codec and the stored rows (N, C, H, W) of images of levels and returns both for the
source, which is the condition, and for the target, which is the event.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import DataError
from ..codecs.array import Array
from .ops import grey

Side = tuple[Array, Tensor]
IMAGES_AT_ONCE = 4096
"""Images whose edges are computed at once."""


def edges(codec: Array, x: Tensor) -> tuple[Side, Side]:
    """Edges -> image: edges are where the gradient exceeds 3/8 of its largest possible value"""
    outline, light = grey(codec, x)
    kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])  # Sobel
    both = torch.stack([kernel, kernel.T])[:, None]  # (2, 1, 3, 3)

    def edges_of(part: Tensor) -> Tensor:
        slope = F.conv2d(F.pad(part.float(), (1, 1, 1, 1), mode="replicate"), both).norm(dim=1)
        steep = slope > 1.5 * codec.top  # the largest possible value is 4 top
        return (steep * codec.top).to(x.dtype)[:, None]

    lines = torch.cat([edges_of(part) for part in light.split(IMAGES_AT_ONCE)])
    return (outline, lines), (codec, x)


def half(codec: Array, x: Tensor) -> tuple[Side, Side]:
    """Upper half -> whole image: the lower half of the source is blank"""
    upper = x.clone()
    upper[..., x.shape[-2] // 2 :, :] = 0
    return (codec, upper), (codec, x)


def beside(codec: Array, x: Tensor) -> tuple[Side, Side]:
    """Two images side by side in one: the left is the source, the right the target"""
    width = x.shape[-1]
    if width % 2:
        raise DataError(
            f"+beside splits images into two equal halves, but these are {width} "
            "pixels wide; crop them to an even width"
        )
    apart = replace(codec, shape=(*codec.shape[:-1], width // 2))
    return (apart, x[..., : width // 2].clone()), (apart, x[..., width // 2 :].clone())


def low(codec: Array, x: Tensor, factor: int) -> tuple[Side, Side]:
    """Small image -> image: the means of squares of factor x factor pixels (low2)"""
    height, width = x.shape[-2:]
    if height % factor or width % factor:
        raise DataError(
            f"+low{factor} shrinks images {factor} times, but these are "
            f"{height}x{width}; crop or resize them to multiples of {factor}"
        )
    parts = [
        F.avg_pool2d(part.float(), factor).round().to(x.dtype) for part in x.split(IMAGES_AT_ONCE)
    ]
    small = replace(codec, shape=(codec.shape[0], height // factor, width // factor))
    return (small, torch.cat(parts)), (codec, x)
