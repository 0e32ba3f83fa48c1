"""Rows unlike the data of a run: which scores find which pictures.

    MONGE_DATA=path python -m benchmarks.detection [--models vae glow] [--budget 4m] [--rows 500]

Models of MNIST score its test pictures beside black ones, pictures of one colour, noise, digits
turned upside down, and small photographs in grey (`cifar`). Printed is AUROC, the share of pairs
in which the other picture has the larger score, for likelihood alone, typicality, complexity by a
compressor, the ratio to the same model fitted to MNIST with a fifth of the pixels drawn anew
(Ren et al. 2019), and the Mahalanobis distance. 1 is a perfect separation, 0.5 is chance, and 0 a
score that prefers every one of the other pictures.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import monge

from .clock import measured, record
from .results import keep

MUTATED = 0.2
"""Share of the pixels that the background model sees drawn anew."""


def others(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Pictures that are no digits, uint8 (N, 1, 28, 28)."""
    rng = np.random.default_rng(seed)
    shape = (count, 1, 28, 28)
    colour = rng.integers(0, 256, (count, 1, 1, 1), np.uint8)
    digits = pictures("mnist", count)
    photographs = pictures("cifar", count)  # (N, 3, 32, 32)
    grey = photographs.mean(1, keepdims=True)[..., 2:30, 2:30].astype(np.uint8)
    return {
        "black": np.zeros(shape, np.uint8),
        "one colour": np.broadcast_to(colour, shape).copy(),
        "noise": rng.integers(0, 256, shape, np.uint8),
        "upside down": digits[:, :, ::-1, :].copy(),
        "photographs": grey,
    }


def pictures(data: str, count: int, split: str = "test") -> np.ndarray:
    """The first pictures of a split, (N, C, H, W)."""
    opened = monge.open(data)
    rows = opened.splits[split][:count]
    return np.asarray(opened.tensors[opened.main[0]][rows].numpy(), np.uint8)


def mutated(digits: np.ndarray, seed: int = 0) -> np.ndarray:
    """Pictures whose meaning is lost in noise, while what is common to all of them stays."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 256, digits.shape, np.uint8)
    return np.where(rng.random(digits.shape) < MUTATED, drawn, digits)


def compare(model: str, folder: Path, budget: str, count: int) -> None:
    """One model and its background: AUROC of every score on every kind of pictures."""
    run = monge.fit(model, "mnist", budget=budget, out=folder / model)
    noisy = mutated(pictures("mnist", 20000, "train"))
    background = monge.fit(model, noisy, budget=budget, out=folder / f"{model}-background")
    for name, rows in others(count).items():
        found = run.detect(rows, background)
        values = {score: found.auroc(score).value for score in found.names}
        shown = "  ".join(f"{score} {value:.3f}" for score, value in values.items())
        print(f"{model:10}{name:14}{shown}", flush=True)
        for score, value in values.items():
            record(f"{model} {name} {score}", value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=["vae", "glow"])
    parser.add_argument("--budget", default="4m", help="of each fit")
    parser.add_argument("--rows", type=int, default=500)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in asked.models:
            compare(model, Path(folder), asked.budget, asked.rows)
    keep("detection", measured)


if __name__ == "__main__":
    main()
