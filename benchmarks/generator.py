"""The Sinkhorn generator on toys: how far its samples are from data, in units of how far two
samples of the data are from each other.

The sliced distance between n samples and n fresh rows of the toy, over that between two sets of n
fresh rows, both means over the same pairs of sets.

    python -m benchmarks.generator [--budget 2m] [DATA ...]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor

import monge
from monge.core.rng import make_generator
from monge.data import loading as data
from monge.solve.transport.exact import sliced

ROWS, PAIRS = 4000, 10


def mean_distance(left: Callable[[int], Tensor], right: Callable[[int], Tensor]) -> float:
    """The sliced distance between sets from two sources, mean over pairs."""
    return statistics.mean(
        float(sliced(left(k), right(k), generator=make_generator(k))) for k in range(PAIRS)
    )


def rows_of(name: str) -> Callable[[int], Tensor]:
    """Fresh rows of a toy for each number."""

    def rows(k: int) -> Tensor:
        view = data.open(name, f"seed={k}").view()
        return torch.cat([view.split(part).whole().x for part in ("train", "valid", "test")])[
            :ROWS
        ]

    return rows


def ratio(name: str, budget: str) -> tuple[float, float]:
    """The distance of samples from data, and that of data from data."""
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit("transport.sinkhorn_generator", name, budget=budget, out=f"{folder}/run")
        rows = rows_of(name)
        return (
            mean_distance(lambda k: run.sample_tensor(ROWS, seed=k), lambda k: rows(k + 1)),
            mean_distance(lambda k: rows(k + 100), lambda k: rows(k + 1)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="*", default=["eight_gaussians", "moons"])
    parser.add_argument("--budget", default="2m")
    chosen = parser.parse_args()
    for name in chosen.data:
        found, known = ratio(name, chosen.budget)
        print(f"{name}: samples {found:.4f}, data {known:.4f}, ratio {found / known:.2f}")


if __name__ == "__main__":
    main()
