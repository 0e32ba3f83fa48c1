"""Learning curves: every term of the loss and the held-out score against steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_curves(path: Path, history: Iterable[Mapping[str, Any]],
                 references: Mapping[str, float] | None = None) -> None:
    """Draw the records of a run's log, with dotted lines where some curves would end."""
    from matplotlib.figure import Figure

    records = list(history)
    held = [(r["step"], r["held_out"]["value"], r["held_out"]["kind"]) for r in records
            if r.get("held_out")]
    names = sorted({name for r in records for name in r["terms"]})
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in names:
        points = [(r["step"], r["terms"][name]) for r in records if name in r["terms"]]
        curve, = left.plot(*zip(*points, strict=True), label=name)
        if references and name in references:
            left.axhline(references[name], color=curve.get_color(), linestyle=":")
    if held:
        right.plot([step for step, _, _ in held], [value for _, value, _ in held], "k.-")
    left.set(title="training terms", xlabel="step", ylabel="mean a row")
    right.set(title="held out", xlabel="step", ylabel=held[-1][2] if held else "")
    if names:
        left.legend(frameon=False)
    figure.savefig(path, dpi=120)
