"""Attention maps, and the steps of attention as matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .figure import save


def write_map(
    path: Path, weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Weights (T, S) as an image; dark is high."""
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(1.5 + 0.35 * len(columns), 1.2 + 0.3 * len(rows)), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), shown(columns), rotation=90)
    axes.set_yticks(range(len(rows)), shown(rows))
    axes.xaxis.tick_top()
    save(figure, path)


def write_steps(path: Path, tokens: Sequence[str], steps: Mapping[str, np.ndarray]) -> None:
    """Named matrices side by side with their numbers, one row per token."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(steps), 1.4 + 0.42 * len(tokens)), layout="constrained")
    for axes, (name, values) in zip(
        figure.subplots(1, len(steps), squeeze=False)[0], steps.items(), strict=True
    ):
        finite = np.where(np.isfinite(values), values, np.nan)
        reach = max(np.nanmax(np.abs(finite)), 1e-9)
        axes.imshow(finite, cmap="RdBu_r", vmin=-1.6 * reach, vmax=1.6 * reach, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7)
        wide = name[0] in "SA"  # scores and weights have a column for each token
        axes.set_xticks(
            range(values.shape[1]),
            shown(tokens) if wide else range(values.shape[1]),
            rotation=90 if wide else 0,
        )
        axes.set_yticks(range(len(tokens)), shown(tokens))
        axes.set_title(name, fontsize=9)
    save(figure, path)


def shown(pieces: Sequence[str]) -> list[str]:
    """Pieces of text as labels: blanks and line ends made visible, dollar signs escaped."""
    return [piece.replace(" ", "·").replace("\n", "⏎").replace("$", r"\$") for piece in pieces]
