"""Regression on four UCI tables over their 20 canonical splits, beside Monte-Carlo dropout.

    MONGE_DATA=path python -m benchmarks.uci                     # all of it, minutes on two cores
    MONGE_DATA=path python -m benchmarks.uci yacht --splits 3 --settings net.width=50

Folders uci/boston, concrete, energy and yacht (data.txt with index files) are not part of the
project. Each split is a fit of an ensemble of predict.mlp, whose members are thinned by dropout
in prediction too; settings are the same for all tables and the test rows are read once. Figures
are means over splits with their standard errors, in the units of the target. Published: Gal &
Ghahramani (2016), from the authors' logs. With --keep FILE, splits that FILE already tells of are
not run again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from monge.comparison.published import DROPOUT as PUBLISHED
from monge.comparison.published import TUNED as SETTINGS

HELD, EPOCHS, STEPS = 0.02, 500, 4000
"""Share of the training rows that is held out; epochs of training, and steps at least."""
PASSES = "passes=20"
"""Dropout masks over which the predictions of each member are averaged."""
Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--splits", type=int, default=20, help="how many, from the first")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--settings", nargs="*", default=[], help="other settings")
    parser.add_argument("--keep", type=Path, help="file of results, one a line")
    chosen = parser.parse_args()
    started = time.perf_counter()
    found = list(results(chosen))
    print(
        f"{'data':10}{'splits':>6}  {'rmse':>15}  {'published':>13}  {'log-likelihood':>16}  "
        f"{'published':>15}{'s per split':>12}"
    )
    for name in chosen.tables:
        print_row(name, [each for each in found if each["name"] == name])
    print(f"{time.perf_counter() - started:.0f} s")


def results(chosen: argparse.Namespace) -> Iterator[Found]:
    """Every split of every table, those that are known already first."""
    wanted = [(name, split) for split in range(chosen.splits) for name in chosen.tables]
    known = chosen.keep.read_text() if chosen.keep and chosen.keep.exists() else ""
    for each in map(json.loads, known.splitlines()):
        if (each["name"], each["split"]) in wanted:
            wanted.remove((each["name"], each["split"]))
            yield each
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        jobs = [pool.submit(measure, *job, chosen.members, chosen.settings) for job in wanted]
        for job in as_completed(jobs):
            if chosen.keep:
                with chosen.keep.open("a") as file:
                    file.write(json.dumps(job.result()) + "\n")
            yield job.result()


def measure(name: str, split: int, members: int, settings: Sequence[str]) -> Found:
    """One fit, and its error and log-likelihood on the test rows."""
    import monge
    from monge.core.abilities import HasLikelihood
    from monge.data import loading as data
    from monge.evaluate.likelihood import chunks
    from monge.evaluate.predictions import predict, prediction_metrics
    from monge.run.saved import ComputeConfig

    started = time.perf_counter()
    source = data.open(f"uci/{name}", f"split={split}", f"valid={HELD}")
    steps = max(EPOCHS * (len(source.rows_of("train")) // 64), STEPS)
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(
            "predict.mlp",
            source,
            *SETTINGS,
            *settings,
            budget=f"{steps}steps",
            ensemble=members,
            out=f"{folder}/run",
            compute=ComputeConfig("cpu", threads=1),
        )
        options = run.require(HasLikelihood).LikelihoodConfig().override(PASSES)
        rmse = prediction_metrics(predict(run.model, chunks(run.split()), options=options))[
            "rmse"
        ].value
        score = run.log_likelihood(None, PASSES).mean.value
    return {
        "name": name,
        "split": split,
        "rmse": rmse,
        "log_likelihood": score,
        "seconds": time.perf_counter() - started,
    }


def print_row(name: str, found: Sequence[Found]) -> None:
    rmse, rmse_error, score, score_error = PUBLISHED[name]
    seconds = mean(each["seconds"] for each in found)
    print(
        f"{name:10}{len(found):6}  {spread(found, 'rmse'):>15}  {rmse:6.2f} ± {rmse_error:.2f}"
        f"  {spread(found, 'log_likelihood'):>16}  {score:8.2f} ± {score_error:.2f}"
        f"{seconds:11.1f}",
        flush=True,
    )


def spread(found: Sequence[Found], what: str) -> str:
    values = [each[what] for each in found]
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean(values):.3f} ± {error:.3f}"


if __name__ == "__main__":
    main()
