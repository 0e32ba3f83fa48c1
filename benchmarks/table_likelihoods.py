"""Tables: held-out log-likelihood of a Gaussian, a mixture of ten and flows, side by side.

    python -m benchmarks.table_likelihoods                       # iris, wine, breast_cancer
    MONGE_DATA=path python -m benchmarks.table_likelihoods wine/winequality-white.csv
    python -m benchmarks.table_likelihoods iris --models coupling maf --splits 5 --budget 60s

Every model has its default settings but for the ten components. Figures are nats per row of the
test split, the mean over as many random splits as asked for, with the standard error of that mean;
with several splits, in brackets, how many of them the model won against both references.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence

import monge
from monge.run.saved import ComputeConfig

REFERENCES = {"gaussian": (), "mixture": ("components=10",)}


def score(
    model: str, data: str, split: int, budget: str, threads: int, settings: Sequence[str]
) -> float:
    """Nats per test row of one fit."""
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(
            model,
            data,
            *settings,
            f"data.seed={split}",
            budget=budget,
            out=f"{folder}/run",
            compute=ComputeConfig("cpu", threads=threads),
        )
        return run.log_likelihood().mean.value


def format_mean(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):10.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="*", default=["iris", "wine", "breast_cancer"])
    parser.add_argument("--models", nargs="*", default=["coupling", "maf"])
    parser.add_argument("--settings", nargs="*", default=[], help="settings of the flows")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--threads", type=int, default=0)
    chosen = parser.parse_args()
    for data in chosen.data:
        found: dict[str, list[float]] = {}
        for model in [*REFERENCES, *chosen.models]:
            started, settings = time.perf_counter(), REFERENCES.get(model, chosen.settings)
            found[model] = [
                score(model, data, split, chosen.budget, chosen.threads, settings)
                for split in range(chosen.splits)
            ]
            best = [
                max(found[name][split] for name in REFERENCES if name in found)
                for split in range(chosen.splits)
            ]
            won = sum(mine > other for mine, other in zip(found[model], best, strict=True))
            ahead = "" if model in REFERENCES else f"  won {won} of {chosen.splits}"
            print(
                f"{data:28}{model:12}{format_mean(found[model])}{ahead}"
                f"  {time.perf_counter() - started:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
