"""One law of each family on handwritten digits: fitted, ranked on rows none has seen, and drawn.

It is `monge compare digits --one`, with one picture at the end: two rows of real digits above two
rows drawn from each law.
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

WORDS = ["compare", "digits", "--one", "--budget", "20s", "--jobs", "2"]
ACROSS, MARGIN = 16, 110


def main() -> None:
    where = storage.home() / "digits"
    print("$ monge", *WORDS, flush=True)
    if attempt([*WORDS, "--out", str(where)]):
        sys.exit(1)
    out = where / "demo.png"
    draw(entrants(where), out)
    print(f"{out}: two rows of real digits, then two of each law, the best first")


def entrants(where: Path) -> list[monge.Run]:
    """The runs that draw, in the order of their score."""
    found = [where / model for model in Comparison.read(where).plan.models]
    runs = [monge.load(place) for place in found if (place / RESULTS).exists()]
    return sorted((run for run in runs if isinstance(run.model, CanSample)), key=place_of)


def place_of(run: monge.Run) -> tuple[float, float]:
    measures = json.loads((run.folder / RESULTS).read_text())["metrics"]
    score = measures.get("log_likelihood", {}).get("value", -np.inf)
    return -score, measures["energy_distance"]["value"]


def draw(runs: list[monge.Run], out: Path) -> None:
    """Two rows of pictures for the data and for each law."""
    real = runs[0].rows().whole().x[: 2 * ACROSS].numpy()
    drawn = [run.sample_tensor(2 * ACROSS).numpy() for run in runs]
    pictures = as_bytes(np.concatenate([real, *drawn]), runs[0].space)
    sheet = Image.fromarray(grid(pictures, columns=ACROSS, zoom=4))
    named = Image.new("L", (sheet.width + MARGIN, sheet.height), 255)
    named.paste(sheet, (MARGIN, 0))
    pen, step = ImageDraw.Draw(named), sheet.height / (1 + len(runs))
    titles = [run.metadata["model"].partition(".")[2] for run in runs]
    for place, name in enumerate(["real digits", *titles]):
        pen.text((4, (place + 0.5) * step), name, fill=0, anchor="lm")
    named.save(out)


if __name__ == "__main__":
    main()
