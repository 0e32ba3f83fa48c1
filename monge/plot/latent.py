"""Scatter plot of 2-D latent codes, coloured by label, beside decoded images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .figure import save

NAMED = 20
"""Labels with a colour; others are plotted in grey."""


def write_map(
    path: Path, z: NDArray, names: NDArray | None = None, sheet: NDArray | None = None
) -> None:
    """Codes (N, 2) coloured by label (N,), and a grid of images decoded over their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 if sheet is None else 12, 5.5), layout="constrained")
    panels = figure.subplots(1, 1 if sheet is None else 2, squeeze=False)[0]
    kinds = [] if names is None else sorted(set(names) - {""}, key=lambda n: (len(str(n)), n))
    if names is None or len(kinds) > NAMED:
        panels[0].scatter(z[:, 0], z[:, 1], s=6, color="0.4", linewidths=0)
    else:
        for place, name in enumerate(kinds):
            own = z[names == name]
            panels[0].scatter(
                own[:, 0],
                own[:, 1],
                s=6,
                color=f"C{place}" if len(kinds) <= 10 else colour(place),
                linewidths=0,
                label=str(name),
            )
        panels[0].legend(frameon=False, markerscale=3, loc="upper left", bbox_to_anchor=(1, 1))
    panels[0].set(title="codes", xlabel="z1", ylabel="z2")
    if sheet is not None:
        panels[1].imshow(sheet, cmap="gray", vmin=0, vmax=255)
        panels[1].set(title="decoded over the range of codes", xticks=[], yticks=[])
    save(figure, path)


def colour(index: int) -> tuple[float, ...]:
    """One of twenty colours."""
    from matplotlib import colormaps

    return tuple(np.asarray(colormaps["tab20"](index % NAMED)))
