"""One model per family on handwritten digits: fitted, ranked on held-out rows, and sampled.

It is `monge compare digits --one`, with one image at the end: a row of real digits above a row of
samples of each model with its figure, the best likelihood first. The digits have 8 x 8 pixels and
are drawn smoothly.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import monge
from monge.cli.main import attempt
from monge.comparison.runner import RESULTS, Comparison
from monge.core.abilities import CanSample
from monge.plot.image_grid import as_bytes
from monge.run import storage

COMMAND = ["compare", "digits", "--one", "--budget", "30s", "--jobs", "2"]
ACROSS, SIZE, GAP = 16, 40, 4
"""Digits in a row, and pixels of a drawn digit and between two."""


@dataclass(frozen=True)
class Entry:
    """A run of the comparison that can sample."""

    run: monge.Run

    @cached_property
    def metrics(self) -> dict[str, Any]:
        return json.loads((self.run.folder / RESULTS).read_text())["metrics"]

    @property
    def rank(self) -> tuple[float, float]:
        likelihood = self.metrics.get("log_likelihood", {}).get("value", -math.inf)
        return -likelihood, self.metrics["energy_distance"]["value"]

    @property
    def figure(self) -> str:
        found = self.metrics.get("log_likelihood")
        if not found:
            return f"energy distance {self.metrics['energy_distance']['value']:.3f}"
        bits = -found["value"] / math.log(2) / self.run.space.dims
        return f"{bits:.2f} bits/pixel ({found['kind']})"

    @property
    def title(self) -> str:
        return self.run.metadata["model"].partition(".")[2]


def main() -> None:
    folder = storage.home() / "digits"
    print("$ monge", *COMMAND, flush=True)
    if attempt([*COMMAND, "--out", str(folder)]):
        sys.exit(1)
    out = folder / "demo.png"
    write_image(ranked(folder), out)
    print(f"{out}: a row of real digits, then one of each model, the best first")


def ranked(folder: Path) -> list[Entry]:
    """The runs that can sample, the best first."""
    found = [folder / model for model in Comparison.read(folder).plan.models]
    runs = [monge.load(path) for path in found if (path / RESULTS).exists()]
    entries = [Entry(run) for run in runs if isinstance(run.model, CanSample)]
    return sorted(entries, key=lambda each: each.rank)


def strip(images: np.ndarray) -> np.ndarray:
    """Pictures (n, 8, 8) of bytes side by side, enlarged smoothly."""
    row = np.zeros((SIZE + GAP, len(images) * (SIZE + GAP)), np.uint8)
    for i, image in enumerate(images):
        large = Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        row[GAP // 2 :, i * (SIZE + GAP) + GAP // 2 :][:SIZE, :SIZE] = np.asarray(large)
    return row


def write_image(entries: list[Entry], out: Path) -> None:
    """A row of pictures for the data and for each model, with names and figures."""
    space = entries[0].run.space
    real = entries[0].run.split().whole().x[:ACROSS].numpy()
    rows = {"real digits": (real, "")}
    rows |= {e.title: (e.run.sample_tensor(ACROSS).numpy(), e.figure) for e in entries}
    figure = Figure(figsize=(9.6, 0.44 * len(rows)), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.01, hspace=0.0)
    for axes, (name, (x, about)) in zip(figure.subplots(len(rows)), rows.items(), strict=True):
        axes.imshow(strip(as_bytes(x, space).reshape(-1, *space.shape[-2:])), cmap="gray")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        axes.text(1.01, 0.5, about, transform=axes.transAxes, va="center", fontsize=8)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
