"""One model per family on handwritten digits: fitted, ranked on held-out rows, and sampled.

It is `monge compare digits --one`, with one image at the end: a row of real digits above a row of
samples of each model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import monge
from monge.cli.main import attempt
from monge.comparison.runner import RESULTS, Comparison
from monge.core.abilities import CanSample
from monge.plot.image_grid import as_bytes, grid
from monge.run import storage

COMMAND = ["compare", "digits", "--one", "--budget", "20s", "--jobs", "2"]
ACROSS, MARGIN = 16, 124


def main() -> None:
    folder = storage.home() / "digits"
    print("$ monge", *COMMAND, flush=True)
    if attempt([*COMMAND, "--out", str(folder)]):
        sys.exit(1)
    out = folder / "demo.png"
    write_image(ranked_runs(folder), out)
    print(f"{out}: a row of real digits, then one of each model, the best first")


def ranked_runs(folder: Path) -> list[monge.Run]:
    """The runs that can sample, the best first."""
    found = [folder / model for model in Comparison.read(folder).plan.models]
    runs = [monge.load(path) for path in found if (path / RESULTS).exists()]
    return sorted((run for run in runs if isinstance(run.model, CanSample)), key=ranking_key)


def ranking_key(run: monge.Run) -> tuple[float, float]:
    metrics = json.loads((run.folder / RESULTS).read_text())["metrics"]
    likelihood = metrics.get("log_likelihood", {}).get("value", -np.inf)
    return -likelihood, metrics["energy_distance"]["value"]


def write_image(runs: list[monge.Run], out: Path) -> None:
    """A row of images for the data and for each model."""
    real = runs[0].split().whole().x[:ACROSS].numpy()
    samples = [run.sample_tensor(ACROSS).numpy() for run in runs]
    images = as_bytes(np.concatenate([real, *samples]), runs[0].space)
    sheet = Image.fromarray(grid(images, columns=ACROSS, zoom=4))
    named = Image.new("L", (sheet.width + MARGIN, sheet.height), 255)
    named.paste(sheet, (MARGIN, 0))
    pen, step = ImageDraw.Draw(named), sheet.height / (1 + len(runs))
    titles = [run.metadata["model"].partition(".")[2] for run in runs]
    for number, name in enumerate(["real digits", *titles]):
        pen.text((4, (number + 0.5) * step), name, fill=0, anchor="lm")
    named.save(out)


if __name__ == "__main__":
    main()
