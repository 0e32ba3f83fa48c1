"""Completion: cells of small tables hidden at random, filled in by our models and by scikit-learn.

    python -m benchmarks.completion                              # 20 masks of each table
    python -m benchmarks.completion iris --masks 3
    python -m benchmarks.completion iris --candidates gaussian mixture:components=5 vae

Protocol: iris, wine (178 rows, 13 columns) and breast_cancer of scikit-learn without the class,
every column scaled to [0, 1], a fifth of the cells hidden completely at random, a mask for each
seed, the same for all. A model is fitted to all rows with the hidden cells unknown, and a hidden
cell is filled in with the median of draws given the cells that are seen. The error is the mean
absolute one over hidden cells. The model is chosen anew for each mask: a tenth of the seen cells
is hidden too, every candidate is fitted without them, and the one with the smallest error on these
is fitted again with them; cells of the test choose nothing. Peers see the same masks in the same
run: IterativeImputer with random forests and with linear regression, KNNImputer. A difference is
paired over masks, ours minus theirs, with its standard error. Published means of other masks are
printed as context.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.ensemble import RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

import monge
from monge.run.completion import in_chunks
from monge.train.device import ComputeConfig

TABLES = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer}
HIDDEN, CHOSEN_BY = 0.2, 0.1
"""Share of the cells that is hidden, and share of the others by which the model is chosen."""
DRAWS = 400
"""Completions whose median fills a cell in."""
CANDIDATES = (
    "gaussian",
    "chow_liu",
    *(f"mixture:components={count}" for count in (2, 3, 5, 8, 12, 20)),
)
PUBLISHED = {
    "iris": {"MissForest": 0.0716, "miceforest": 0.0823, "GAIN": 0.0927},
    "wine": {"MissForest": 0.1064, "miceforest": 0.1122, "GAIN": 0.1493},
    "breast_cancer": {"MissForest": 0.0364, "miceforest": 0.0398, "GAIN": 0.0490},
}
"""Means of 3 masks and 5 draws, from the documentation of other packages."""
PEERS: dict[str, Callable[[int], object]] = {
    "IterativeImputer, forests": lambda seed: IterativeImputer(
        RandomForestRegressor(n_estimators=100, n_jobs=1, random_state=seed),
        max_iter=10,
        random_state=seed,
    ),
    "IterativeImputer, linear": lambda seed: IterativeImputer(max_iter=30, random_state=seed),
    "KNNImputer": lambda seed: KNNImputer(),
}


def read(name: str) -> np.ndarray:
    x = TABLES[name]().data
    return (x - x.min(0)) / (x.max(0) - x.min(0))


def complete(
    candidate: str, x: np.ndarray, hidden: np.ndarray, budget: str, threads: int
) -> np.ndarray:
    """The table with its hidden cells filled in by a model fitted to the others."""
    model, *settings = candidate.split(":")
    frame = pd.DataFrame(np.where(hidden, np.nan, x), columns=[f"x{i}" for i in range(x.shape[1])])
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        for split in ("train", "valid", "test"):  # every row is fitted
            frame.to_csv(data / f"{split}.csv", index=False, na_rep="")
        run = monge.fit(
            model,
            str(data),
            *settings,
            "data.missing=ignore",
            "data.space=plain",
            budget=budget,
            out=f"{folder}/run",
            compute=ComputeConfig("cpu", threads=threads),
        )
        batch = run.split(None, "train").whole()
        if len(batch) != len(x):
            raise AssertionError(f"expected {len(x)} rows, found {len(batch)}")
        generator = torch.Generator().manual_seed(0)
        every = batch[torch.arange(len(batch)).repeat_interleave(DRAWS)]
        draws = in_chunks(lambda rows: run.model.complete(rows, None, generator), every)
        median = draws.reshape(len(batch), DRAWS, -1).median(1).values.double().numpy()
    return np.where(hidden, median, x)


def error(filled: np.ndarray, x: np.ndarray, hidden: np.ndarray) -> float:
    return float(np.abs(filled - x)[hidden].mean())


def choose(
    candidates: Sequence[str],
    x: np.ndarray,
    hidden: np.ndarray,
    seed: int,
    budget: str,
    threads: int,
) -> str:
    """The candidate with the smallest error on some of the seen cells."""
    if len(candidates) == 1:
        return candidates[0]
    more = ~hidden & (np.random.default_rng([seed, 1]).random(x.shape) < CHOSEN_BY)
    errors = {
        name: error(complete(name, x, hidden | more, budget, threads), x, more)
        for name in candidates
    }
    return min(errors, key=errors.__getitem__)


def format_mean(values: Sequence[float]) -> str:
    spread = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{np.mean(values):8.4f} ± {spread:.4f}"


def table(name: str, masks: int, candidates: Sequence[str], budget: str, threads: int) -> None:
    x, started = read(name), time.perf_counter()
    found: dict[str, list[float]] = {peer: [] for peer in ("ours", *PEERS)}
    chosen: Counter[str] = Counter()
    for seed in range(masks):
        hidden = np.random.default_rng(seed).random(x.shape) < HIDDEN
        best = choose(candidates, x, hidden, seed, budget, threads)
        chosen[best] += 1
        found["ours"].append(error(complete(best, x, hidden, budget, threads), x, hidden))
        holes = np.where(hidden, np.nan, x)
        for peer, maker in PEERS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # sweeps that have not converged
                filled = maker(seed).fit_transform(holes)
            found[peer].append(error(filled, x, hidden))
        line = "  ".join(f"{peer} {errors[-1]:.4f}" for peer, errors in found.items())
        print(f"  mask {seed}: {line}  ({best})", flush=True)
    print(f"{name}, {masks} masks, {time.perf_counter() - started:.0f} s")
    for peer, errors in found.items():
        apart = [ours - other for ours, other in zip(found["ours"], errors, strict=True)]
        ahead = "" if peer == "ours" else f"   ours minus this {format_mean(apart)}"
        print(f"  {peer:28}{format_mean(errors)}{ahead}")
    for peer, value in PUBLISHED[name].items():
        print(f"  {peer + ' (published)':28}{value:8.4f}")
    print(f"  chosen: {', '.join(f'{model} {count}' for model, count in chosen.most_common())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="*", default=[*TABLES], metavar="TABLE")
    parser.add_argument("--masks", type=int, default=20)
    parser.add_argument("--candidates", nargs="*", default=CANDIDATES)
    parser.add_argument("--budget", default="30s", help="of each fit that is not closed-form")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    for name in asked.data:
        table(name, asked.masks, asked.candidates, asked.budget, asked.threads)


if __name__ == "__main__":
    main()
