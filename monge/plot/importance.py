"""The trials of a search over settings, and how much each setting matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.metric import Metric
from .figure import save


def write_importances(
    path: Path, importances: Mapping[str, float], values: Sequence[float], best: Metric
) -> None:
    """The held-out metric of each trial, and the share of its variance that each setting
    explains."""
    from matplotlib.figure import Figure

    figure = Figure((10, max(3.0, 1.2 + 0.3 * len(importances))), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(range(len(values)), values, "o", color="tab:blue", markersize=4)
    left.axhline(best.value, color="tab:orange", linewidth=1, label="best")
    left.set(xlabel="trial (0: default settings)", ylabel=f"held out, {best.unit} ({best.kind})")
    left.legend()
    names = list(importances)[::-1]
    right.barh(names, [importances[name] for name in names], color="tab:blue")
    right.set(xlabel="share of the variance explained", title="" if names else "too few trials")
    save(figure, path)
