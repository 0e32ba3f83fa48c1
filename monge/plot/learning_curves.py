"""Learning curves: every term of the loss and the held-out score against steps, and the held-out
scores of several fits against seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .figure import save


def write_curves(
    path: Path, history: Iterable[Mapping[str, Any]], references: Mapping[str, float] | None = None
) -> None:
    """Plot the records of a run's log, with dotted lines at the optimal values of some curves."""
    from matplotlib.figure import Figure

    records = list(history)
    held = [
        (r["step"], r["held_out"]["value"], r["held_out"]["kind"])
        for r in records
        if r.get("held_out")
    ]
    names = sorted({name for r in records for name in r["terms"]})
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in names:
        points = [(r["step"], r["terms"][name]) for r in records if name in r["terms"]]
        (curve,) = left.plot(*zip(*points, strict=True), label=name)
        if references and name in references:
            left.axhline(references[name], color=curve.get_color(), linestyle=":")
    if held:
        right.plot([step for step, _, _ in held], [value for _, value, _ in held], "k.-")
    left.set(title="training terms", xlabel="step", ylabel="mean per row")
    right.set(title="held out", xlabel="step", ylabel=held[-1][2] if held else "")
    if names:
        left.legend(frameon=False)
    save(figure, path)


NATS = ("exact", "bound", "estimate")
SOON = 0.01
"""Smallest value of the logarithmic time axis, in seconds."""


def write_race(path: Path, histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Plot held-out scores of several fits over their seconds, log-likelihoods apart from
    distances; False if there was nothing to plot."""
    from matplotlib.figure import Figure

    courses = {
        name: [
            (max(line["seconds"], SOON), line["held_out"]["value"])
            for line in lines
            if is_score(line)
        ]
        for name, lines in histories.items()
    }
    scores = {
        name: next(line["held_out"]["kind"] in NATS for line in lines if is_score(line))
        for name, lines in histories.items()
        if courses[name]
    }
    kinds = [kind for kind in (True, False) if kind in scores.values()]
    if not kinds:
        return False
    figure = Figure(figsize=(9, 3.8 * len(kinds)), layout="constrained")
    below = figure.subplots(len(kinds), squeeze=False, sharex=True)[:, 0]
    for axes, kind in zip(below, kinds, strict=True):
        shown = {name: courses[name] for name, scored in scores.items() if scored == kind}
        for number, (name, course) in enumerate(shown.items()):
            axes.plot(
                *zip(*course, strict=True),
                label=name,
                marker=".",
                linestyle="-" if number < 10 else "--",
            )
        axes.set(
            xlabel="seconds",
            ylabel="held-out log-likelihood, nats per row" if kind else "held-out distance",
            xscale="log",
        )
        if kind:
            axes.set_ylim(
                bottom=floor(
                    [score for course in shown.values() for _, score in course],
                    [course[-1][1] for course in shown.values()],
                )
            )
        axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)
    return True


def is_score(line: Mapping[str, Any]) -> bool:
    held: Mapping[str, Any] = line.get("held_out") or {"value": None}
    return held["value"] is not None and math.isfinite(held["value"])


def floor(every: Sequence[float], last: Sequence[float]) -> float:
    """The lower end of the axis, which hides very low initial scores so that later ones can be
    distinguished."""
    high, low = max(every), min(last)
    return max(min(every), high - 2 * max(high - low, 1e-3)) - 0.05 * max(high - low, 1e-3)
