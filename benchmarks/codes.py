"""Sequences with codes at every step beside Gaussian autoregressions: vrnn and stcn.

    MONGE_DATA=path python -m benchmarks.codes [strokes sines sunspots] [--budget 60s]

Test rows, nats a row. `ar` predicts a step from the p steps before it by least squares, with a
covariance of its channels (the first p steps have regressions of their own) and p the best on
validation rows; `linear_ar` is the law of that name, where rows have one length. Bounds of vrnn
and stcn are importance-weighted as they are by default; `codes` is the rate of a row, what its
codes hold; `gain` is what they lie above the better autoregression, with its standard error.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

import monge
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.run.run import Run
from monge.train.device import ComputeConfig

TASKS = {
    "strokes": ("strokes", ()),
    "sines": ("sines", ()),
    "sunspots": ("series/monthly-sunspots.csv", ("data.lookback=36", "data.horizon=12")),
}
ORDERS = (1, 2, 4, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="|".join(TASKS))
    parser.add_argument("--models", nargs="*", default=["vrnn", "stcn"])
    parser.add_argument("--words", nargs="*", default=[], help="settings of the models")
    parser.add_argument("--budget", default="60s", help="of each fit")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    print(f"{'':24}{'nats':>9}{'gain':>9}{'±':>7}{'codes':>8}{'steps':>8}")
    for name in chosen.tasks:
        compare(name, chosen)


def compare(name: str, chosen: argparse.Namespace) -> None:
    """All laws of one set of data."""
    what, words = TASKS[name]
    print(name)
    best: np.ndarray | None = None
    for model in chosen.models:
        with tempfile.TemporaryDirectory() as folder:
            run = monge.fit(
                model,
                what,
                *words,
                *chosen.words,
                budget=chosen.budget,
                seed=chosen.seed,
                out=f"{folder}/run",
                compute=ComputeConfig("cpu", threads=1),
            )
            if best is None:
                best = rivals(run, what, words)
            tell(model, run.score().value, best, held(run), run.result["step"])


def rivals(run: Run, what: str, words: tuple[str, ...]) -> np.ndarray:
    """The test rows' scores by the better autoregression."""
    splits = [pieces(run.rows(None, split).whole()) for split in ("train", "valid", "test")]
    laws = {order: Regression(splits[0], order) for order in ORDERS}
    order = max(ORDERS, key=lambda p: laws[p].scores(splits[1]).mean())
    found = {f"ar({order})": laws[order].scores(splits[2])}
    if not run.space.varies:
        with tempfile.TemporaryDirectory() as folder:
            plain = monge.fit("sequence.linear_ar", what, *words, out=f"{folder}/run")
            found["linear_ar"] = plain.score().value
    for name, nats in found.items():
        tell(name, nats)
    return max(found.values(), key=lambda nats: nats.mean())


def pieces(batch: Batch) -> list[Tensor]:
    """Each row's steps, (T, C) in float64."""
    lengths = [batch.x.shape[1]] * len(batch) if batch.length is None else batch.length.tolist()
    return [
        x[:steps].reshape(steps, -1).double() for x, steps in zip(batch.x, lengths, strict=True)
    ]


class Regression:
    """x_t ~ N(A x_{t-p..t-1} + b, S), with A, b, S of their own for each of the first p steps."""

    def __init__(self, rows: list[Tensor], order: int) -> None:
        self.order = order
        self.laws = [solved(*design) for design in self.designs(rows)]

    def designs(self, rows: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """What is read and what is foretold at step 0, 1, ... p - 1, and at all later ones."""
        for t in range(self.order):
            long = [row for row in rows if len(row) > t]
            yield (
                known(torch.stack([row[:t].flatten() for row in long])),
                torch.stack([row[t] for row in long]),
            )
        windows = torch.cat(
            [row.unfold(0, self.order + 1, 1).mT for row in rows if len(row) > self.order]
        )  # (N, p + 1, C)
        yield known(windows[:, :-1].flatten(1)), windows[:, -1]

    def scores(self, rows: list[Tensor]) -> np.ndarray:
        """log p of every row."""
        parts = [
            gaussian(*law, *design)
            for law, design in zip(self.laws, self.designs(rows), strict=True)
        ]
        lengths = torch.tensor([len(row) for row in rows])
        owners = [(lengths > t).nonzero()[:, 0] for t in range(self.order)]
        owners.append(
            torch.arange(len(rows)).repeat_interleave((lengths - self.order).clamp_min(0))
        )
        total = torch.zeros(len(rows), dtype=torch.float64)
        return total.index_add(0, torch.cat(owners), torch.cat(parts)).numpy()


def known(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def solved(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (inputs, C) by least squares, and the factor of the covariance that is left."""
    weights = torch.linalg.lstsq(x, y, driver="gelsd").solution
    rest = y - x @ weights
    return weights, torch.linalg.cholesky(rest.T @ rest / len(rest))


def gaussian(weights: Tensor, factor: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """log N(y; x weights, factor factor^T) of each row."""
    rest = torch.linalg.solve_triangular(factor, (y - x @ weights).T, upper=False)  # (C, N)
    flat = factor.diagonal().log().sum() + 0.5 * len(rest) * math.log(2 * math.pi)
    return -0.5 * rest.square().sum(0) - flat


@torch.no_grad()
def held(run: Run) -> float:
    """Mean rate of a test row."""
    rows = run.rows(None, "test").whole()
    batch = rows[torch.arange(min(len(rows), 256))]
    noise = torch.randn(
        1, len(batch), batch.x.shape[1], run.model.latent.shape[1], generator=make_generator(0)
    )
    z = run.model.infer(batch, noise)
    return float(run.model.level_rates(batch, z).sum(-1).mean())


def tell(
    name: str, nats: np.ndarray, best: np.ndarray | None = None, rate: float = 0.0, steps: int = 0
) -> None:
    line = f"  {name:22}{nats.mean():9.2f}"
    if best is not None:
        gain = nats - best
        error = gain.std() / len(gain) ** 0.5
        line += f"{gain.mean():9.2f}{error:7.2f}{rate:8.2f}{steps:8}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
