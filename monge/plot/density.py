"""Plot of a learned 2-D density beside the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .figure import save

POINTS = 200
"""Grid points per axis."""
MARGIN = 0.1
"""Margin of the plot as a share of the range of the data."""


def write_density(path: Path, log_prob: Callable[[Tensor], Tensor], rows: NDArray) -> float:
    """Plot exp(log_prob), (N, 2) -> (N,), on a grid beside rows (N, 2); returns the probability
    mass on the grid."""
    from matplotlib.figure import Figure

    low, high = np.percentile(rows, [0.25, 99.75], axis=0)
    wide = np.where(high > low, MARGIN * (high - low), 0.5)  # also for a constant coordinate
    low, high = low - wide, high + wide
    axes = [np.linspace(a, b, POINTS) for a, b in zip(low, high, strict=True)]
    grid = torch.from_numpy(np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)).float()
    heights = torch.cat([log_prob(part).exp() for part in grid.split(10_000)])
    p = heights.reshape(POINTS, POINTS).double().numpy()
    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    extent = (low[0], high[0], low[1], high[1])
    left.imshow(
        p,
        origin="lower",
        extent=extent,
        aspect="auto",
        vmin=0,
        vmax=float(np.percentile(p, 99.5)) or 1.0,
    )
    right.hist2d(rows[:, 0], rows[:, 1], bins=60, range=list(zip(low, high, strict=True)))
    left.set(title="learned density")
    right.set(title="data")
    save(figure, path)
    return float(p.sum() * np.prod((high - low) / (POINTS - 1)))
