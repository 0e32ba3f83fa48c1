"""Real rows and synthetic rows mixed: what a classifier gains, and how far apart they are (L4).

A generative model is fitted to a few real rows of a table. Boosted trees then learn from these
rows and from r times as many samples, or from samples alone, and are tested on real rows that
neither has seen. Beside the curve over r stands the accuracy of a classifier that tells samples
from real rows (Lopez-Paz & Oquab 2017): 0.5 where there is no gap between the domains.

    python -m examples.mixing [-o mixing.png] [--model mixture] [--real 100] [--seeds 3]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_predict

import monge

RATIOS = (0.0, 0.5, 1.0, 2.0, 5.0)
ITERATIONS = 40
"""Trees of a classifier."""
TARGET = "target"


def boosted(iterations: int) -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(max_iter=iterations, min_samples_leaf=5, random_state=0)


def accuracy(
    train: pd.DataFrame, test: pd.DataFrame, target: str = TARGET, iterations: int = ITERATIONS
) -> float:
    """The accuracy on real rows of boosted trees that learned from `train`."""
    trees = boosted(iterations)
    trees.fit(train.drop(columns=target), train[target])
    return float((trees.predict(test.drop(columns=target)) == test[target]).mean())


def gap(real: pd.DataFrame, made: pd.DataFrame, iterations: int = ITERATIONS) -> float:
    """The accuracy of trees that tell samples from real rows, cross-validated."""
    both = pd.concat([real, made[: len(real)]])
    label = np.repeat([0, 1], [len(real), len(both) - len(real)])
    return float((cross_val_predict(boosted(iterations), both, label, cv=3) == label).mean())


def curve(
    model: str,
    real: int,
    seed: int,
    ratios: Sequence[float] = RATIOS,
    iterations: int = ITERATIONS,
) -> dict[str, float]:
    """Accuracy by the ratio of synthetic to real rows, of samples alone, and the gap."""
    table = load_breast_cancer(as_frame=True).frame
    order = np.random.default_rng(seed).permutation(len(table))
    known, test = table.iloc[order[:real]], table.iloc[order[real:]]
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(
            model,
            known,
            "data.names=target",
            out=Path(folder) / "run",
            budget="30s",
            seed=seed,
            progress=False,
        )
        made = run.sample(int(max(ratios) * real), seed=seed)[list(table)]
    made = made.astype(table.dtypes.to_dict())
    found = {
        f"{ratio:g}": accuracy(
            pd.concat([known, made[: int(ratio * real)]]), test, iterations=iterations
        )
        for ratio in ratios
    }
    alone = accuracy(made, test, iterations=iterations)
    return found | {"only samples": alone, "gap": gap(test, made, iterations)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("mixing.png"))
    parser.add_argument("--model", default="mixture")
    parser.add_argument("--real", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    rows = [curve(asked.model, asked.real, seed) for seed in range(asked.seeds)]
    table = pd.DataFrame(rows)
    summary = pd.DataFrame({"mean": table.mean(), "±": table.std() / len(table) ** 0.5})
    print(summary.rename_axis("synthetic / real").to_string(float_format="{:.4f}".format))
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    shown = summary.loc[[f"{ratio:g}" for ratio in RATIOS]]
    axes.errorbar(RATIOS, shown["mean"], shown["±"], fmt="o-", color="0.2")
    axes.axhline(summary.loc["only samples", "mean"], ls=":", color="0.5", label="only samples")
    axes.set(xlabel="synthetic rows per real row", ylabel="accuracy on real rows")
    axes.legend(frameon=False)
    figure.savefig(asked.out, dpi=120)
    print(asked.out)


if __name__ == "__main__":
    main()
