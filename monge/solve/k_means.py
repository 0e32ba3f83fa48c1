"""Clusters of points by k-means."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def k_means(points: Tensor, size: int, sweeps: int = 10) -> Tensor:
    """The cluster of each of the points (N, F): k-means from k-means++ seeds (Arthur and
    Vassilvitskii, 2007)."""
    square = points.square().sum(1, keepdim=True)

    def distance(centres: Tensor) -> Tensor:
        return (square - 2 * points @ centres.T + centres.square().sum(1)).clamp_min(0)  # (N, K)

    centres = points[torch.randint(len(points), (1,))]
    nearest = distance(centres)[:, 0]
    for _ in range(size - 1):
        seed = points[torch.multinomial(nearest + 1e-9, 1)]
        centres = torch.cat([centres, seed])
        nearest = nearest.minimum(distance(seed)[:, 0])
    for _ in range(sweeps):
        member = one_hot(distance(centres).argmin(1), size).to(points)  # (N, K)
        count = member.sum(0)[:, None]
        centres = torch.where(count > 0, member.T @ points / count.clamp_min(1), centres)
    return distance(centres).argmin(1)
