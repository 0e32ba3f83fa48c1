"""Five laws of handwritten digits, fitted, scored and sampled; about two minutes.

Each line that begins with $ is a command you can type yourself. At the end one picture shows rows
of real digits above rows drawn from each law.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import monge
from monge.cli.main import attempt
from monge.show.picture import as_bytes, grid

BUDGETS = {"independent": "10s", "tree": "10s", "made": "25s", "vae": "25s", "wgan": "40s"}
ACROSS = 16
MARGIN = 80


def main() -> None:
    for model, budget in BUDGETS.items():
        command = ["fit", model, "digits", "--budget", budget]
        print("$ monge", *command, flush=True)
        if attempt(command):
            sys.exit(1)
    runs = [monge.load(f"{model}-digits") for model in BUDGETS]
    print("\n" + "\n".join(line(run) for run in runs))
    out = runs[0].folder.parent / "demo.png"
    draw(runs, out)
    print(f"\n{out}: two rows of real digits, then two of each law")


def line(run: monge.Run) -> str:
    """One row of the leaderboard, on test rows no model has seen."""
    measures = run.evaluate()
    text = f"{run.about['model']:<24}"
    if bits := measures.get("bits_per_dim"):
        text += f"{bits.value:.3f} bits/dim ({bits.kind})  "
    distance, real = measures["energy_distance"], measures["energy_distance_of_real_rows"]
    return text + f"energy distance {distance.value:.3f} (real rows: {real.value:.3f})"


def draw(runs: list[monge.Run], out: Path) -> None:
    """Two rows of pictures for the data and for each law."""
    space = runs[0].space
    real = runs[0].rows().whole().x[:2 * ACROSS].numpy()
    drawn = [run.draw(2 * ACROSS).numpy() for run in runs]
    pictures = as_bytes(np.concatenate([real, *drawn]), space)
    sheet = Image.fromarray(grid(pictures, columns=ACROSS, zoom=4))
    named = Image.new("L", (sheet.width + MARGIN, sheet.height), 255)
    named.paste(sheet, (MARGIN, 0))
    pen, step = ImageDraw.Draw(named), sheet.height / (1 + len(runs))
    for place, name in enumerate(["real digits", *BUDGETS]):
        pen.text((4, (place + 0.5) * step), name, fill=0, anchor="lm")
    named.save(out)


if __name__ == "__main__":
    main()
