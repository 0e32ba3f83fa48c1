"""Reliability diagrams: predicted against observed frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..evaluate.predictions import TargetPrediction, reliability
from .figure import save


def write_reliability(path: Path, predictions: Sequence[TargetPrediction]) -> None:
    """For classes accuracy against confidence, for numbers the share of truths below each
    quantile; the size of a dot shows its number of rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(predictions), 3.6), layout="constrained")
    for axes, prediction in zip(
        figure.subplots(1, len(predictions), squeeze=False)[0], predictions, strict=True
    ):
        x, y, count = (values.numpy() for values in reliability(prediction))
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axes.plot(x, y, linewidth=1)
        axes.scatter(x, y, s=4 + 60 * count / count.max())
        axes.set(
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
            title=prediction.space.name,
            xlabel="confidence" if prediction.is_class else "level",
            ylabel="accuracy" if prediction.is_class else "share of truths below the quantile",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
