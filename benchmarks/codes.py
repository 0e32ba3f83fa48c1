"""Sequences with codes at every step beside Gaussian autoregressions: vrnn and stcn.

    MONGE_DATA=path python -m benchmarks.codes [strokes sines sunspots] [--budget 60s]

Log-likelihoods of test rows in nats per row. `ar` predicts a step from the p steps before it by
least squares, with a covariance of its channels (each of the first p steps has its own regression)
and p the best on validation rows; `linear_ar` is the model of that name, if rows have one length.
Bounds of vrnn and stcn are importance-weighted as by default; `codes` is the KL term per row;
`gain` is the difference from the better autoregression, with its standard error.
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
from monge.run.saved import ComputeConfig

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
    parser.add_argument("--settings", nargs="*", default=[], help="settings of the models")
    parser.add_argument("--budget", default="60s", help="of each fit")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    print(f"{'':24}{'nats':>9}{'gain':>9}{'±':>7}{'codes':>8}{'steps':>8}")
    for name in chosen.tasks:
        compare(name, chosen)


def compare(name: str, chosen: argparse.Namespace) -> None:
    """All models of one dataset."""
    what, settings = TASKS[name]
    print(name)
    best: np.ndarray | None = None
    for model in chosen.models:
        with tempfile.TemporaryDirectory() as folder:
            run = monge.fit(
                model,
                what,
                *settings,
                *chosen.settings,
                budget=chosen.budget,
                seed=chosen.seed,
                out=f"{folder}/run",
                compute=ComputeConfig("cpu", threads=1),
            )
            if best is None:
                best = baselines(run, what, settings)
            print_row(model, run.log_likelihood().value, best, mean_kl(run), run.result["step"])


def baselines(run: Run, what: str, settings: tuple[str, ...]) -> np.ndarray:
    """Log-likelihoods of the test rows under the better autoregression."""
    splits = [pieces(run.split(None, split).whole()) for split in ("train", "valid", "test")]
    regressions = {order: Regression(splits[0], order) for order in ORDERS}
    order = max(ORDERS, key=lambda p: regressions[p].scores(splits[1]).mean())
    found = {f"ar({order})": regressions[order].scores(splits[2])}
    if not run.space.varies:
        with tempfile.TemporaryDirectory() as folder:
            plain = monge.fit("sequence.linear_ar", what, *settings, out=f"{folder}/run")
            found["linear_ar"] = plain.log_likelihood().value
    for name, nats in found.items():
        print_row(name, nats)
    return max(found.values(), key=lambda nats: nats.mean())


def pieces(batch: Batch) -> list[Tensor]:
    """Each row's steps, (T, C) in float64."""
    lengths = [batch.x.shape[1]] * len(batch) if batch.length is None else batch.length.tolist()
    return [
        x[:steps].reshape(steps, -1).double() for x, steps in zip(batch.x, lengths, strict=True)
    ]


class Regression:
    """x_t ~ N(A x_{t-p..t-1} + b, S), with separate A, b, S for each of the first p steps."""

    def __init__(self, rows: list[Tensor], order: int) -> None:
        self.order = order
        self.steps = [solved(*design) for design in self.designs(rows)]

    def designs(self, rows: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of the steps 0, 1, ... p - 1, and of all later ones together."""
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
            gaussian(*step, *design)
            for step, design in zip(self.steps, self.designs(rows), strict=True)
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
def mean_kl(run: Run) -> float:
    """Mean KL term of a test row."""
    rows = run.split(None, "test").whole()
    batch = rows[torch.arange(min(len(rows), 256))]
    noise = torch.randn(
        1, len(batch), batch.x.shape[1], run.model.latent.shape[1], generator=make_generator(0)
    )
    z = run.model.infer(batch, noise)
    return float(run.model.level_kls(batch, z).sum(-1).mean())


def print_row(
    name: str, nats: np.ndarray, best: np.ndarray | None = None, kl: float = 0.0, steps: int = 0
) -> None:
    line = f"  {name:22}{nats.mean():9.2f}"
    if best is not None:
        gain = nats - best
        error = gain.std() / len(gain) ** 0.5
        line += f"{gain.mean():9.2f}{error:7.2f}{kl:8.2f}{steps:8}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
