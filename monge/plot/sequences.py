"""Plots of pen strokes and of audio waveforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .figure import save

MAX_STROKES = 64
"""Most strokes plotted side by side."""


def write_strokes(path: Path, strokes: Sequence[NDArray]) -> None:
    """Plot strokes, steps (T, 2) each, on one scale."""
    from matplotlib.figure import Figure

    paths = [
        np.concatenate([np.zeros((1, 2)), np.cumsum(steps, 0)]) for steps in strokes[:MAX_STROKES]
    ]
    middles = [(places.min(0) + places.max(0)) / 2 for places in paths]
    reach = 0.55 * max(float(np.ptp(places, 0).max()) for places in paths)
    side = math.ceil(math.sqrt(len(paths)))
    lines = math.ceil(len(paths) / side)
    figure = Figure(figsize=(side, lines), layout="constrained")
    for axes in figure.subplots(lines, side, squeeze=False).flat:
        axes.set_axis_off()
    for axes, places, (x, y) in zip(figure.axes, paths, middles, strict=False):
        axes.plot(places[:, 0], places[:, 1], color="black", linewidth=1.2)
        axes.set(aspect="equal", xlim=(x - reach, x + reach), ylim=(y - reach, y + reach))
    save(figure, path)


MAX_WAVEFORMS = 16
"""Most waveforms plotted below each other."""
POINTS = 4000
"""Most points of a waveform; of longer ones the extremes of each stretch are plotted."""


def write_waves(path: Path, sounds: Sequence[NDArray], rate: int) -> None:
    """Plot waveforms, samples (T,) or (T, channels) each, on one scale."""
    from matplotlib.figure import Figure

    shown = [
        outline(samples.reshape(len(samples), -1).mean(1), rate)
        for samples in sounds[:MAX_WAVEFORMS]
    ]
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
