"""Histograms of ranks: flat, within the band of chance, if a model is calibrated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..evaluate.ranks import Ranks
from .figure import save

MOST_PLOTTED = 8
"""Most statistics plotted side by side."""
BAND = 0.99
"""Probability that a bin is inside the band, if ranks are uniform."""


def write_ranks(path: Path, ranks: Ranks) -> None:
    """One histogram for each statistic, with the central interval of a binomial count."""
    from matplotlib.figure import Figure
    from scipy.stats import binom

    counts = ranks.counts().numpy()
    chosen = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), MOST_PLOTTED)).astype(int))
    figure = Figure(figsize=(2.8 * len(chosen), 2.8), layout="constrained")
    rows, bins = len(ranks.rank), ranks.bins
    low, high = binom.interval(BAND, rows, 1 / bins)
    edges = np.linspace(0, 1, bins + 1)
    for axes, place in zip(
        figure.subplots(1, len(chosen), squeeze=False, sharey=True)[0], chosen, strict=True
    ):
        axes.axhspan(low, high, color="0.88")
        axes.axhline(rows / bins, color="0.6", linewidth=1)
        axes.stairs(counts[place], edges, fill=True, alpha=0.8)
        axes.set(xlim=(0, 1), title=ranks.names[place], xlabel="rank among samples")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
