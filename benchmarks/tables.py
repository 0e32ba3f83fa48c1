"""Generation of tables: how samples compare with real rows, those of ctgan and TVAE beside them.

    python -m benchmarks.tables made-adult vae-adult --target c15              # runs
    python -m benchmarks.tables made ddpm --data adult --budget 10m --target c15   # models
    python -m benchmarks.tables made --data adult --budget 10m --target c15 --ctgan VENV/bin/python
    python -m benchmarks.tables made-titanic --target survived --samples 20000

`--ctgan` names the Python of an environment that has the package ctgan; its two models then see
the training rows of the first run for the same wall-clock time, with the settings of the package.

As many samples as there are training rows are compared with the test rows of the run; training
rows in place of samples are the first line, and the second is what chance alone leaves: training
and test rows together, divided anew at random into as many as are sampled and tested. f1: boosted
trees fitted to the rows predict the rarer class of the target in test rows (train on synthetic,
test on real). marginals, pairs: mean total variation, per cent, numbers in ten bins of training
quantiles, of all `--samples`. With as many samples as training rows of adult (29305 against 16281
test rows) real rows divided anew are 0.86 and 1.98 % apart, and 29305 draws from the training rows
themselves 0.85 and 2.11 % from test rows, so that 2 % asks for more samples, whose noise is less.
detection: area under the ROC curve of trees that separate the rows from test rows, five folds.
empty: largest difference of the rates of empty cells, points. copies: rows that equal a training
row in every cell, per cent; test rows stand in the first line, since training rows are copies of
themselves. Errors in brackets are standard errors.

Measured on adult, 4 minutes each on a shared core, f1 / marginals / pairs of 29305 samples /
detection: training rows 0.705 / 0.76 / 1.83 / 0.50, made 0.677 / 0.91 / 2.21 / 0.56 (of 100000
samples 0.76 / 1.92, with steps beside numbers 0.77 / 1.89), coupling 0.694 / 0.90 / 2.28 / 0.55,
cnf 0.684 / 1.02 / 2.37 / 0.54, ddpm 0.645 / 1.96 / 4.11 / 0.65, TVAE (53 epochs) 0.628 / 16.9 /
28.8 / 1.00, ctgan (9 epochs) 0.030 / 16.5 / 29.1 / 1.00. With five minutes on a core of their own:
ctgan (54 epochs) 0.512 / 13.5 / 22.0 / 1.00, TVAE (300 epochs) 0.621 / 12.5 / 22.2 / 0.98.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
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
from monge.run.saved import ComputeConfig
from monge.train.budget import Budget

RESAMPLED = 200
"""Bootstrap samples of the error of F1."""
PEERS = ("ctgan", "tvae")
HEAD = ("f1", "marginals", "pairs", "detection", "empty", "copies")


def tables(run: Run, samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Space]:
    """Samples, training rows and test rows of a run as tables (n, D), and their columns."""
    columns = columns_of(run.space, run.view.columns)
    if columns is None or run.space.given:
        raise SystemExit(f"{run.title}: expected a run of whole table rows, found {run.space}")
    train, test = (cells(run.split(None, name).whole(), run.space) for name in ("train", "test"))
    sampled = run.sample_tensor(max(samples, len(train)), seed=seed)
    return cells(Batch(sampled), run.space), train, test, columns


def peer_rows(
    peer: str, python: str, train: Tensor, columns: Space, rows: int, seconds: float, seed: int
) -> tuple[Tensor, int]:
    """Samples of ctgan or tvae fitted to training rows (n, D), and its number of epochs."""
    names = [part.name for part in columns.columns if part.kind in NAMES]
    frame = pd.DataFrame(train.numpy(), columns=[part.name for part in columns.columns])
    whole = [part.name for part in columns.columns if part.kind != "real"]
    frame = frame.astype(dict.fromkeys(whole, int)).astype(dict.fromkeys(names, str))
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/train.csv", f"{folder}/sampled.csv"]
        frame.to_csv(files[0], index=False)
        script = Path(__file__).with_name("ctgan_rows.py")
        options = ["--rows", f"{rows}", "--seed", f"{seed}", "--names", *names]
        said = subprocess.run(
            [python, script, peer, *files, f"{seconds}", *options],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return torch.tensor(pd.read_csv(files[1]).to_numpy(float)), int(said.stdout)


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
    """The figures of one line; `copied` are the rows that may be copies of training rows. All but
    marginals and pairs are of as many rows as there are training rows."""
    found: Mapping[str, Metric] = table_metrics(rows, test, Coding.of(train, columns))
    rows, copied = rows[: len(train)], copied[: len(train)]
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


def noise_floor(train: Tensor, test: Tensor, columns: Space, seed: int) -> dict[str, Metric]:
    """Marginals and pairs of real rows against others: what a perfect model has with as many
    samples as there are training rows."""
    rows = torch.cat([train, test])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    found = table_metrics(rows[: len(train)], rows[len(train) :], Coding.of(train, columns))
    return {name: per_cent(found[name]) for name in ("marginals", "pairs")}


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
    parser.add_argument("runs", nargs="+", help="runs, or models with --data")
    parser.add_argument("--target", help="column of names to predict; by default the last")
    parser.add_argument("--samples", type=int, default=100_000, help="at least the training rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="what to fit the models to; without it runs are loaded")
    parser.add_argument("--settings", nargs="*", default=[], help="of the fits: data.space=plain")
    parser.add_argument("--budget", default="10m", help="of each fit and of each peer")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--ctgan", metavar="PYTHON", help="Python that has the package ctgan")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(asked, folder)


def compare(asked: argparse.Namespace, folder: str) -> None:
    """Print a line for training rows, each run and each peer."""
    print(f"{'':28}" + "".join(f"{name:>20}" for name in HEAD), flush=True)
    for place, name in enumerate(asked.runs):
        run = (
            monge.load(name)
            if asked.data is None
            else monge.fit(
                name,
                asked.data,
                *asked.settings,
                budget=asked.budget,
                out=f"{folder}/{place}",
                compute=ComputeConfig("cpu", threads=asked.threads),
            )
        )
        sampled, train, test, columns = tables(run, asked.samples, asked.seed)
        target = target_of(columns, asked.target)
        if not place:
            first = (train, test, columns, target)
            show("training rows", scores(train, *first, test))
            show("real rows divided anew", noise_floor(train, test, columns, asked.seed))
        show(name[-27:], scores(sampled, train, test, columns, target, sampled))
    if asked.ctgan is None:
        return
    seconds = Budget.read(asked.budget).seconds
    for peer in asked.peers:
        n = max(asked.samples, len(first[0]))
        rows, epochs = peer_rows(peer, asked.ctgan, first[0], first[2], n, seconds, asked.seed)
        show(f"{peer}, {epochs} epochs", scores(rows, *first, rows))


if __name__ == "__main__":
    main()
