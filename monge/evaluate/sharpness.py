r"""Sharpness of images: the variance of the Laplacian, compared with that of real images.

$\mathrm{Var}(\Delta x)$ over the pixels of an image, $\Delta x = x_{i+1,j} + x_{i-1,j} +
x_{i,j+1} + x_{i,j-1} - 4 x_{ij}$, is small where edges are blurred (Tolstikhin et al. 2018
measure generated faces by it); noise raises it as well, so that the ratio is 1 for equal
distributions.
"""

from __future__ import annotations

import math

from torch import Tensor

from ..core.metric import Metric


def laplacian_variance(images: Tensor) -> Tensor:
    """The variance of the Laplacian over the inner pixels of images (N, C, H, W), (N,)."""
    x = images.double()
    around = x[..., 2:, 1:-1] + x[..., :-2, 1:-1] + x[..., 1:-1, 2:] + x[..., 1:-1, :-2]
    return (around - 4 * x[..., 1:-1, 1:-1]).flatten(1).var(1, correction=0)


def sharpness(images: Tensor, real: Tensor) -> Metric:
    """The mean variance of the Laplacian of images over that of real ones, with the standard error
    of a ratio of means."""
    own, theirs = laplacian_variance(images), laplacian_variance(real)
    ratio = float(own.mean() / theirs.mean().clamp(min=1e-300))
    spread = [
        float(each.var(correction=0) / each.mean().square().clamp(min=1e-300)) / len(each)
        for each in (own, theirs)
    ]
    return Metric(ratio, "estimate", ratio * math.sqrt(sum(spread)), "ratio")
