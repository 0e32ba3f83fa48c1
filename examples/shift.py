r"""KL, JS and transport distances of a distribution that moves away from another, in one figure.

Left, two uniform distributions on vertical segments of the plane, theta apart: their supports are
disjoint for every theta but 0, so that KL is infinite, JS is log 2 and total variation 1 whatever
theta is, and only the transport distances measure how far, with a gradient that a generator can
follow. Right, two normal distributions with standard deviation 0.5, which overlap: all divergences
are smooth, but JS saturates.

    python -m examples.shift [-o shift.png]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from monge.prob.divergence import (
    jensen_shannon,
    kl,
    sinkhorn_divergence,
    total_variation,
    wasserstein,
)

THETAS = torch.arange(-40, 41, dtype=torch.float64) / 20
CELLS = 2001
SPREAD = 0.5
COLOURS = {
    "KL": "tab:red",
    "JS": "tab:orange",
    "total variation": "tab:green",
    "W₁": "tab:blue",
    "Sinkhorn divergence": "tab:purple",
}
Curves = dict[str, list[float]]


def on_tables(p: Tensor, q: Tensor) -> dict[str, float]:
    return {
        "KL": float(kl(p, q)),
        "JS": float(jensen_shannon(p, q)),
        "total variation": float(total_variation(p, q)),
    }


def on_points(x: Tensor, y: Tensor) -> dict[str, float]:
    entropic = sinkhorn_divergence(x, y, 0.1, relative=False, tolerance=1e-6)
    return {"W₁": float(wasserstein(x, y)), "Sinkhorn divergence": float(entropic)}


def segments(theta: float) -> dict[str, float]:
    """U{0} x U[0, 1] against U{theta} x U[0, 1]."""
    apart = torch.eye(2, dtype=torch.float64)[[0, 0 if theta == 0 else 1]]
    height = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    x, y = (torch.stack([torch.full_like(height, at), height], 1) for at in (0.0, theta))
    return on_tables(*apart) | on_points(x, y)


def normals(theta: float) -> dict[str, float]:
    """N(0, s^2) against N(theta, s^2): densities on a grid, points at equal quantiles."""
    grid = torch.linspace(-6, 6, CELLS, dtype=torch.float64)
    p, q = (torch.softmax(-(grid - at).square() / (2 * SPREAD**2), 0) for at in (0.0, theta))
    levels = (torch.arange(100, dtype=torch.float64) + 0.5) / 100
    x = SPREAD * torch.special.ndtri(levels)[:, None]
    return on_tables(p, q) | on_points(x, x + theta)


def curves(at: Callable[[float], dict[str, float]]) -> Curves:
    found = [at(float(theta)) for theta in THETAS]
    return {name: [each[name] for each in found] for name in COLOURS}


def plot(axes: Axes, title: str, found: Curves, top: float) -> None:
    middle = len(THETAS) // 2
    for name, values in found.items():
        shown = torch.tensor(values)
        jumps = abs(values[middle + 1] - values[middle]) > 0.2
        if jumps:  # zero at theta = 0 alone
            axes.plot([0], [0], "o", color=COLOURS[name], markersize=5, zorder=3)
            shown[middle] = math.nan
        if math.isinf(values[0]):
            axes.plot(
                THETAS[THETAS != 0],
                [top] * (len(THETAS) - 1),
                "^",
                markersize=4,
                color=COLOURS[name],
                clip_on=False,
            )
        label = f"{name} (infinite)" if math.isinf(values[0]) else name
        axes.plot(THETAS, shown, color=COLOURS[name], label=label, linewidth=2)
    axes.axhline(math.log(2), color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlabel="shift θ", ylim=(-0.05, top), xlim=(-2, 2))
    axes.set_title(title, pad=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", fontsize=8, framealpha=0.9, edgecolor="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("shift.png"))
    out = parser.parse_args().out
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    plot(left, "two segments, disjoint for θ ≠ 0", curves(segments), 3)
    plot(right, f"two normal distributions with deviation {SPREAD}", curves(normals), 3)
    left.set_ylabel("distance (dotted: log 2)")
    figure.savefig(out, dpi=130)
    print(out)


if __name__ == "__main__":
    main()
