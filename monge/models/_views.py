"""Augmented views of rows, for models that compare what a network says of two of them.

A view of an image is moved: rotated, sheared, zoomed and shifted at random, and a square of it may
be cut out (DeVries & Taylor 2017). In a view of any other row some entries are those of other rows
of the batch (Bahri et al. 2022), which keeps the marginals. Random numbers come from torch's
global generator.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def symmetric_uniform(n: int, like: Tensor) -> Tensor:
    """Uniform in [-1, 1], (n,)."""
    return 2 * torch.rand(n, dtype=like.dtype, device=like.device) - 1


def transform_images(
    images: Tensor, rotate: float, zoom: float, shift: float, shear: float = 0.0
) -> Tensor:
    """Images (B, C, H, W) rotated by up to `rotate` degrees, sheared by up to `shear` of their
    height, zoomed by up to the factor 1 + zoom and shifted by up to the share `shift` of their
    size."""
    n = len(images)
    angle, size = (
        math.radians(rotate) * symmetric_uniform(n, images),
        (1 + zoom) ** symmetric_uniform(n, images),
    )
    cos, sin = size * angle.cos(), size * angle.sin()
    across, down = (
        2 * shift * symmetric_uniform(n, images),
        2 * shift * symmetric_uniform(n, images),
    )
    slant = shear * symmetric_uniform(n, images) if shear else torch.zeros_like(cos)
    rows = torch.stack([cos, slant * cos - sin, across, sin, slant * sin + cos, down], 1)
    grid = F.affine_grid(rows.reshape(n, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def cut_out(images: Tensor, side: float, filling: Tensor) -> Tensor:
    """Images (B, C, H, W) with `filling`, which broadcasts to them, in a square around a random
    pixel of each; its side is the share `side` of the shorter side of the image."""
    n, (height, width) = len(images), images.shape[2:]
    half = side * min(height, width) / 2

    def near(length: int) -> Tensor:  # (B, length)
        middle = torch.randint(length, (n, 1), device=images.device)
        return (torch.arange(length, device=images.device) - middle).abs() < half

    inside = near(height)[:, None, :, None] & near(width)[:, None, None, :]  # (B, 1, H, W)
    return torch.where(inside, filling, images)


def mixed_rows(n: int, entries: int, share: float, device: torch.device) -> Tensor:
    """The row that each entry of n rows is taken from, (n, entries): its own, or a random one with
    probability `share`."""
    replaced = torch.rand(n, entries, device=device) < share
    other = torch.randint(n, (n, entries), device=device)
    return torch.where(replaced, other, torch.arange(n, device=device)[:, None])


def corrupt_entries(features: Tensor, owner: Tensor, share: float) -> Tensor:
    """Features (B, F) with each entry replaced by that of another row with probability `share`;
    the features of one entry, by `owner`, are replaced together."""
    rows = mixed_rows(len(features), int(owner[-1]) + 1, share, features.device)
    return features.gather(0, rows[:, owner])
