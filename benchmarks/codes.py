"""Sequences with codes at every frame: what vrnn and stcn gain from them.

    MONGE_DATA=path python -m benchmarks.codes [strokes sines speech sunspots] [--single]

Log-likelihoods of test rows in nats per row. Each model is fitted by default settings; `without`
is the same network in the same number of steps with its codes held at 0, which is an exact density
of the same class without codes; `frame=1` has a code at every step. Bounds are importance-weighted
as by default; `codes` is the KL term per frame; `gain` is the difference from `without`, with its
standard error. `ar` predicts a step from the p steps before it by least squares, with a covariance
of its channels (each of the first p steps has its own regression) and p the best on validation
rows; `linear_ar` is the model of that name, if rows have one length. Sound is too long for a code
at each sample and for these regressions.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

import monge
from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.models.latent._frames import StepCodes
from monge.models.latent._sequential import SequentialLatentModel
from monge.run.run import Run
from monge.run.saved import ComputeConfig

from .clock import measured, record
from .results import keep

SPOTS = ("data.lookback=36", "data.horizon=12")
TASKS: dict[str, tuple[str, tuple[str, ...], int]] = {  # data, their settings, steps of a fit
    "strokes": ("strokes", (), 600),
    "sines": ("sines", (), 600),
    "speech": ("speech", (), 150),
    "sunspots": ("series/monthly-sunspots.csv", SPOTS, 600),
}
FILES = ("speech", "sunspots")
"""Those that are no part of the library."""
ORDERS = (1, 2, 4, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="|".join(TASKS))
    parser.add_argument("--models", nargs="*", default=["vrnn", "stcn"])
    parser.add_argument("--settings", nargs="*", default=[], help="settings of the models")
    parser.add_argument("--budget", default="", help="of each fit, if not its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--single", action="store_true", help="also with a code at every step")
    chosen = parser.parse_args()
    print(f"{'':24}{'nats':>10}{'gain':>9}{'±':>7}{'codes':>8}{'steps':>8}{'CPU s':>8}")
    for name in chosen.tasks:
        if name in FILES and not os.environ.get("MONGE_DATA"):
            print(f"{name}: left out, since MONGE_DATA names no folder of data")
            continue
        print(name)
        for model in chosen.models:
            compare(name, model, chosen)
    keep("codes", measured, seeds=(chosen.seed,))


def compare(name: str, model: str, chosen: argparse.Namespace) -> None:
    """One model of one dataset, with its codes, without them and beside regressions."""
    what, settings, steps = TASKS[name]
    sides: dict[str, tuple[str, ...]] = {"without": (), "": ()}
    if chosen.single and name != "speech":
        sides["frame=1"] = ("frame=1", "components=3")
    best: np.ndarray | None = None
    for side, own in sides.items():
        with tempfile.TemporaryDirectory() as folder, no_codes(side == "without"):
            start = time.process_time()
            run = monge.fit(
                model,
                what,
                *settings,
                *chosen.settings,
                *own,
                budget=chosen.budget or f"{steps}steps",
                seed=chosen.seed,
                out=f"{folder}/run",
                compute=ComputeConfig("cpu", threads=1),
            )
            spent, kl = time.process_time() - start, mean_kl(run)
            nats = run.log_likelihood().value
            print_row(f"{model} {side}", nats, best, kl, run.result["step"], spent)
            if best is None:
                best = nats
                if name != "speech" and model == chosen.models[0]:
                    baselines(run, what, settings)
            title = f"{name} {model} {side}"
            record(title, float(nats.mean()))
            if side != "without":
                record(f"{title} gain", float((nats - best).mean()))
                record(f"{title} kl", kl)


@contextmanager
def no_codes(wanted: bool) -> Iterator[None]:
    """Codes held at 0 in every model that is fitted meanwhile; their networks get no gradient."""
    own = SequentialLatentModel.step_codes

    def zeros(
        self: SequentialLatentModel,
        before: Sequence[Tensor],
        after: Sequence[Tensor] | None,
        noise: Tensor | None,
        z: Tensor | None = None,
    ) -> StepCodes:
        weights = [*self.priors.parameters(), *self.posteriors.parameters()]
        made = noise if z is None else z
        assert made is not None, "expected codes or noise"
        zero = torch.zeros_like(made) + sum(0 * each.sum() for each in weights)
        return StepCodes(*[zero] * 5)

    if wanted:
        SequentialLatentModel.step_codes = zeros  # type: ignore[method-assign]
    try:
        yield
    finally:
        SequentialLatentModel.step_codes = own  # type: ignore[method-assign]


def baselines(run: Run, what: str, settings: tuple[str, ...]) -> None:
    """Print what autoregressions reach on the test rows."""
    splits = [pieces(run.split(None, split).whole()) for split in ("train", "valid", "test")]
    regressions = {order: Regression(splits[0], order) for order in ORDERS}
    order = max(ORDERS, key=lambda p: regressions[p].scores(splits[1]).mean())
    print_row(f"ar({order})", regressions[order].scores(splits[2]))
    if not run.space.varies:
        with tempfile.TemporaryDirectory() as folder:
            plain = monge.fit("sequence.linear_ar", what, *settings, out=f"{folder}/run")
            print_row("linear_ar", plain.log_likelihood().value)


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
    """Mean KL term of a frame of test rows."""
    rows = run.split(None, "test").whole()
    batch = rows[torch.arange(min(len(rows), 256))]
    model = run.model
    assert isinstance(model, SequentialLatentModel)
    frames = model.to_frames(batch)
    noise = torch.randn(1, *frames.exist.shape, model.latent.shape[1], generator=make_generator(0))
    z = model.infer(batch, noise)
    return float(model.level_kls(batch, z).sum() / frames.exist.sum())


def print_row(
    name: str,
    nats: np.ndarray,
    best: np.ndarray | None = None,
    kl: float | None = None,
    steps: int = 0,
    spent: float = 0.0,
) -> None:
    line = f"  {name:22}{nats.mean():10.2f}"
    if best is not None:
        gain = nats - best
        line += f"{gain.mean():9.2f}{gain.std() / len(gain) ** 0.5:7.2f}"
    elif kl is not None:
        line += f"{'':16}"
    if kl is not None:
        line += f"{kl:8.2f}{steps:8}{spent:8.0f}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
