"""Pen strokes as a person would see them: the path that the steps of the pen make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .figure import save

MOST = 64
"""Strokes drawn side by side."""


def write_strokes(path: Path, strokes: Sequence[NDArray]) -> None:
    """Steps (T, 2) each, all on one scale."""
    from matplotlib.figure import Figure

    paths = [np.concatenate([np.zeros((1, 2)), np.cumsum(steps, 0)]) for steps in strokes[:MOST]]
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
