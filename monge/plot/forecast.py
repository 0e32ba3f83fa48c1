"""Plot of a forecast: past, median, interval and a few trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .figure import save

MOST = 8
"""Channels plotted below one another."""
PATHS = 5
"""Trajectories plotted behind the interval."""


def write_forecast(
    path: Path,
    past: NDArray,
    paths: NDArray,
    names: Sequence[str],
    times: Sequence[str],
    interval: float,
) -> None:
    """past (T, C), paths (n, H, C); `times` are those of the first and the last step plotted, and
    of the first forecast step."""
    from matplotlib.figure import Figure

    shown = min(past.shape[1], MOST)
    figure = Figure(figsize=(9, 2.2 * shown + 0.6), layout="constrained")
    axes = figure.subplots(shown, 1, squeeze=False, sharex=True)[:, 0]
    before, after = np.arange(-len(past), 0), np.arange(-1, paths.shape[1])
    levels = ((1 - interval) / 2, 0.5, (1 + interval) / 2)
    for place, panel in enumerate(axes):
        last = np.full((len(paths), 1), past[-1, place])
        every = np.concatenate([last, paths[..., place]], 1)  # (n, 1 + H)
        low, middle, high = np.quantile(every, levels, axis=0)
        panel.plot(before, past[:, place], color="0.3", linewidth=1)
        panel.plot(after, every[:PATHS].T, color="C0", linewidth=0.5, alpha=0.5)
        panel.fill_between(
            after, low, high, color="C0", alpha=0.25, linewidth=0, label=f"{interval:.0%} interval"
        )
        panel.plot(after, middle, color="C0", linewidth=1.5, label="median")
        panel.set(ylabel=names[place])
    axes[0].legend(frameon=False, loc="upper left")
    axes[-1].set(xticks=[-len(past), 0, paths.shape[1] - 1], xticklabels=list(map(str, times)))
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
