"""Clusters of points by k-means."""

from __future__ import annotations

import torch
from torch import Tensor


def k_means(points: Tensor, size: int, sweeps: int = 10) -> Tensor:
    """The centres (K, F) of clusters of points (N, F): k-means from k-means++ seeds (Arthur and
    Vassilvitskii, 2007). Clusters that lose all points keep their centre."""
    square = points.square().sum(1)

    def distance(centre: Tensor) -> Tensor:
        return (square - 2 * points @ centre + centre.square().sum()).clamp_min(0)  # (N,)

    centres = points.new_empty(size, points.shape[1])
    centres[0] = points[torch.randint(len(points), ())]
    nearest = distance(centres[0])
    for place in range(1, size):
        centres[place] = points[torch.multinomial(nearest + 1e-9, 1)[0]]
        nearest = nearest.minimum(distance(centres[place]))
    for _ in range(sweeps):
        member = nearest_centre(points, centres)
        count = torch.bincount(member, minlength=size)[:, None].to(points)
        total = torch.zeros_like(centres).index_add_(0, member, points)
        centres = torch.where(count > 0, total / count.clamp_min(1), centres)
    return centres


def nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest of the centres (K, F) to each of the points (N, F), (N,)."""
    return (0.5 * centres.square().sum(1) - points @ centres.T).argmin(1)
