"""Pairs made of images, written with a plus: each function can follow the name of a dataset.

A function takes the codec and the compact rows (N, C, H, W) of images of levels and gives two of
both: the source, which is given, and the target, which is modelled.
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
    """Outlines -> image: where the brightness changes by more than 3/8 of its most"""
    outline, light = grey(codec, x)
    kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])  # Sobel
    both = torch.stack([kernel, kernel.T])[:, None]  # (2, 1, 3, 3)

    def drawn(part: Tensor) -> Tensor:
        slope = F.conv2d(F.pad(part.float(), (1, 1, 1, 1), mode="replicate"), both).norm(dim=1)
        steep = slope > 1.5 * codec.top  # of 4 top at most
        return (steep * codec.top).to(x.dtype)[:, None]

    lines = torch.cat([drawn(part) for part in light.split(IMAGES_AT_ONCE)])
    return (outline, lines), (codec, x)


def half(codec: Array, x: Tensor) -> tuple[Side, Side]:
    """Upper half -> whole image: what is below the middle is blank in the source"""
    upper = x.clone()
    upper[..., x.shape[-2] // 2 :, :] = 0
    return (codec, upper), (codec, x)


def beside(codec: Array, x: Tensor) -> tuple[Side, Side]:
    """Two images side by side in one: the left is the source, the right the target"""
    width = x.shape[-1]
    if width % 2:
        raise DataError(
            f"+beside takes images of two equal halves apart, and these are {width} "
            "pixels wide; crop them to an even width"
        )
    apart = replace(codec, shape=(*codec.shape[:-1], width // 2))
    return (apart, x[..., : width // 2].clone()), (apart, x[..., width // 2 :].clone())


def low(codec: Array, x: Tensor, factor: int) -> tuple[Side, Side]:
    """Small image -> image: the means of squares of factor x factor pixels (low2)"""
    height, width = x.shape[-2:]
    if height % factor or width % factor:
        raise DataError(
            f"+low{factor} shrinks images {factor} times, and these are "
            f"{height}x{width}; crop or resize them to multiples of {factor}"
        )
    parts = [
        F.avg_pool2d(part.float(), factor).round().to(x.dtype) for part in x.split(IMAGES_AT_ONCE)
    ]
    small = replace(codec, shape=(codec.shape[0], height // factor, width // factor))
    return (small, torch.cat(parts)), (codec, x)
