"""Sound as a picture: amplitude over time, a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .figure import save

MOST = 16
"""Waves drawn below one another."""
POINTS = 4000
"""Points of a wave, beyond which only the extremes of each stretch are drawn."""


def write_waves(path: Path, sounds: Sequence[NDArray], rate: int) -> None:
    """Samples (T,) or (T, channels) each, all on one scale."""
    from matplotlib.figure import Figure

    shown = [outline(samples.reshape(len(samples), -1).mean(1), rate)
             for samples in sounds[:MOST]]
    figure = Figure(figsize=(8, 0.8 * len(shown) + 0.6), layout="constrained")
    axes = figure.subplots(len(shown), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for panel, (time, low, high) in zip(axes, shown, strict=True):
        panel.fill_between(time, low, high, linewidth=0.5, edgecolor="C0")
        panel.set(yticks=[])
    axes[-1].set(xlabel="seconds")
    save(figure, path)


def outline(wave: NDArray, rate: int) -> tuple[NDArray, NDArray, NDArray]:
    """Time, and the lowest and highest sample of each stretch."""
    starts = np.arange(0, len(wave), max(1, len(wave) // POINTS))
    return starts / rate, np.minimum.reduceat(wave, starts), np.maximum.reduceat(wave, starts)
