"""Two looks at the same thing: what a pair has in common is what its code should keep.

A picture is seen from elsewhere (turned, nearer, moved) and under noise; of other rows some
features are those of other rows of the batch (Bahri et al. 2022), which keeps every feature's own
law. All of it is drawn from torch's global generator.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def either(n: int, like: Tensor) -> Tensor:
    """Uniform in [-1, 1], (n,)."""
    return 2 * torch.rand(n, dtype=like.dtype, device=like.device) - 1


def moved(pictures: Tensor, turn: float, zoom: float, shift: float) -> Tensor:
    """Pictures (B, C, H, W) turned by up to `turn` degrees either way, their size changed by up to
    the factor 1 + zoom, moved by up to the share `shift` of it."""
    n = len(pictures)
    angle, size = math.radians(turn) * either(n, pictures), (1 + zoom) ** either(n, pictures)
    cos, sin = size * angle.cos(), size * angle.sin()
    across, down = 2 * shift * either(n, pictures), 2 * shift * either(n, pictures)
    rows = torch.stack([cos, -sin, across, sin, cos, down], 1).reshape(n, 2, 3)
    grid = F.affine_grid(rows, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def corrupted(features: Tensor, owner: Tensor, share: float) -> Tensor:
    """Features (B, F) of which each entry's are another row's with probability `share`; those of
    one entry, named by `owner`, change together."""
    n, entries = len(features), int(owner[-1]) + 1
    foreign = torch.rand(n, entries, device=features.device) < share
    other = torch.randint(n, (n, entries), device=features.device)
    drawn = features.gather(0, other[:, owner])
    return torch.where(foreign[:, owner], drawn, features)
