"""Curves of transport costs along the size of minibatches and the entropy of plans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..evaluate.two_sample import Sweep
from .figure import save

LABELS = {
    "exact": "exact transport",
    "cost": "cost of the entropic plan",
    "value": "entropic value",
    "divergence": "Sinkhorn divergence",
    "within": "exact, A with itself",
    "product": "mean of all pairs",
}


def write_sweeps(path: Path, sweeps: Sequence[Sweep]) -> None:
    """One panel for each sweep, with standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(sweeps), 4), layout="constrained")
    for axes, sweep in zip(figure.subplots(1, len(sweeps), squeeze=False)[0], sweeps, strict=True):
        for name, curve in sweep.curves.items():
            axes.errorbar(
                sweep.at,
                [metric.value for metric in curve],
                [0.0 if metric.stderr != metric.stderr else metric.stderr for metric in curve],
                label=LABELS[name],
                marker=".",
                linewidth=1.2,
            )
        whole = sweep.setting == "batch_size"
        label = "rows of a minibatch" if whole else "entropy, in units of the mean cost"
        axes.set(xscale="log", xlabel=label, ylabel="squared distance, in variances")
        axes.legend(fontsize=8)
    save(figure, path)
