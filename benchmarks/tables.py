"""Generation of tables: how samples of runs compare with real rows, training rows beside them.

    monge fit made adult --budget 10m
    python -m benchmarks.tables made-adult vae-adult --target income
    python -m benchmarks.tables made-titanic --target survived --rows 2000

As many rows are sampled as there are training rows, at most `--rows`, and compared with the test
rows of the run; training rows in place of samples are the first line. f1: boosted trees fitted to
the rows predict the rarer class of the target in test rows (train on synthetic, test on real).
marginals, pairs: mean total variation, per cent, numbers in ten bins of training quantiles.
detection: area under the ROC curve of trees that separate the rows from test rows, five folds.
empty: largest difference of the rates of empty cells, points. copies: rows that equal a training
row in every cell, per cent; test rows stand in the first line, since training rows are copies of
themselves. Errors in brackets are standard errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import torch
from sklearn.metrics import f1_score
from torch import Tensor

import monge
from monge.core.batch import Batch
from monge.core.metric import Metric
from monge.core.space import Space
from monge.evaluate.coverage import share
from monge.evaluate.privacy import copies
from monge.evaluate.samples import spread
from monge.evaluate.tabular import NAMES, Coding, cells, columns_of, detection, table_metrics
from monge.evaluate.tstr import divided, fit_and_predict
from monge.run.run import Run

RESAMPLED = 200
"""Bootstrap samples of the error of F1."""
HEAD = ("f1", "marginals", "pairs", "detection", "empty", "copies")


def tables(run: Run, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Space]:
    """Samples, training rows and test rows of a run as tables (n, D), and their columns."""
    columns = columns_of(run.space, run.view.columns)
    if columns is None or run.space.given:
        raise SystemExit(f"{run.title}: expected a run of whole table rows, found {run.space}")
    train, test = (cells(run.split(None, name).whole(), run.space) for name in ("train", "test"))
    sampled = run.sample_tensor(min(rows, len(train)), seed=seed)
    return cells(Batch(sampled), run.space), train, test, columns


def f1(rows: Tensor, test: Tensor, columns: Space, target: int) -> Metric:
    """F1 of the rarer class of test rows, predicted by trees fitted to rows."""
    (x, y), (inputs, truth) = (divided(side, target, columns) for side in (rows, test))
    others = [part for i, part in enumerate(columns.columns) if i != target]
    predicted = fit_and_predict(x, y, inputs, others, True, 0)
    names, counts = truth.unique(return_counts=True)
    rare = float(names[counts.argmin()])
    right, found = (truth == rare).numpy(), (predicted == rare).numpy()
    generator, again = torch.Generator().manual_seed(0), []
    for _ in range(RESAMPLED):
        pick = torch.randint(len(right), (len(right),), generator=generator).numpy()
        again.append(f1_score(right[pick], found[pick], zero_division=0.0))
    error = float(torch.tensor(again).std())
    return Metric(float(f1_score(right, found, zero_division=0.0)), "estimate", error, "F1")


def scores(
    rows: Tensor, train: Tensor, test: Tensor, columns: Space, target: int, copied: Tensor
) -> dict[str, Metric]:
    """The figures of one line; `copied` are the rows that may be copies of training rows."""
    found: Mapping[str, Metric] = table_metrics(rows, test, Coding.of(train, columns))
    line = {"f1": f1(rows, test, columns, target)}
    line |= {name: per_cent(found[name]) for name in ("marginals", "pairs")}
    line["detection"] = detection(spread(rows, len(test)), test, columns)
    if "empty_cells" in found:
        line["empty"] = found["empty_cells"]
    return line | {"copies": per_cent(share(copies(copied, train)))}


def per_cent(score: Metric) -> Metric:
    return Metric(100 * score.value, score.kind, 100 * score.stderr, "per cent")


def show(name: str, line: Mapping[str, Metric]) -> None:
    shown = [
        f"{line[key].value:8.4g} ({line[key].stderr:.2g})" if key in line else "" for key in HEAD
    ]
    print(f"{name:28}" + "".join(f"{text:>20}" for text in shown), flush=True)


def target_of(columns: Space, name: str | None) -> int:
    """The place of the target: by default the last column of names."""
    known = [part.name for part in columns.columns]
    if name is None:
        return max(i for i, part in enumerate(columns.columns) if part.kind in NAMES)
    if name not in known:
        raise SystemExit(f"expected a column as --target, found {name}; choose from {known}")
    return known.index(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--target", help="column of names to predict; by default the last")
    parser.add_argument("--rows", type=int, default=50_000, help="most samples")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(f"{'':28}" + "".join(f"{name:>20}" for name in HEAD))
    for place, name in enumerate(asked.runs):
        sampled, train, test, columns = tables(monge.load(name), asked.rows, asked.seed)
        target = target_of(columns, asked.target)
        if not place:
            real = spread(train, asked.rows)
            show("training rows", scores(real, train, test, columns, target, test))
        show(name[-27:], scores(sampled, train, test, columns, target, sampled))


if __name__ == "__main__":
    main()
