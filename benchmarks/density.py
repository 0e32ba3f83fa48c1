"""Held-out likelihoods of autoregressive models, flows and baselines, measured beside published.

    MONGE_DATA=path python -m benchmarks.density nltcs plants --models made nade --budget 5m
    MONGE_DATA=path python -m benchmarks.density digits greys --models coupling glow cnf \\
        --budget 20m --rows 500                        # bits/dim of flows on images
    python -m benchmarks.density digits                # every model that takes the data

nltcs, plants, jester, dna (folders of train, valid and test files below debd/), mnist (idx files,
binarised afresh in every epoch), greys (the same with their 256 levels) and speech (wav files,
mu-law) are not part of the project. Every model has its default settings; valid rows are for early
stopping only.

Published: independent and Chow-Liu as reproduced by many, ID-SPN of Rooshenas & Lowd (2014), one
MADE of 500 units on one thread; mnist: pytorch-generative on a GPU; greys: Dinh, Krueger & Bengio
(2015), and multi-scale flows on a GPU; digits and speech: plain scripts of a few minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass

import monge
from monge import registry
from monge.core.abilities import HasLikelihood
from monge.evaluate.likelihood import chunks, row_likelihoods


@dataclass(frozen=True)
class Task:
    """Data, the unit of their figures, and published figures."""

    data: str
    unit: str
    published: dict[str, float]


def table(independent: float, tree: float, made: float, strong: float) -> dict[str, float]:
    return {"independent": independent, "chow_liu": tree, "made": made, "ID-SPN": strong}


TASKS = {
    "nltcs": Task("debd/nltcs", "nats", table(-9.23, -6.76, -5.99, -6.02)),
    "plants": Task("debd/plants", "nats", table(-31.27, -16.52, -12.33, -12.54)),
    "jester": Task("debd/jester", "nats", table(-63.88, -58.23, -51.55, -52.86)),
    "dna": Task("debd/dna", "nats", table(-100.39, -87.66, -83.31, -81.21)),
    "mnist": Task(
        "mnist+binarise", "nats", {"fvsbn": -96.6, "nade": -85.7, "made": -84.9, "pixelcnn": -81.5}
    ),
    "digits": Task("digits", "bits/dim", {"independent": 2.43, "made": 2.07, "pixelcnn": 1.74}),
    "greys": Task("mnist", "bits/dim", {"NICE": 4.34, "multi-scale": 1.1}),
    "speech": Task(
        "speech+mulaw", "bits/dim", {"independent": 7.48, "order-1 table": 5.92, "wavenet": 5.15}
    ),
}
FITTING = {"speech": ["wavenet", "gpt"], "greys": ["coupling", "glow", "cnf"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--models", nargs="*", help="by default all that take the data")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--rows", type=int, help="test rows that are scored, at most")
    chosen = parser.parse_args()
    print(f"{'data':8}{'model':14}{'measured':>10}{'±':>8}{'published':>11}  {'unit':9}{'s':>6}")
    for name in chosen.tasks:
        others = dict(TASKS[name].published)
        for model in chosen.models or fitting(name):
            measure(name, model, chosen.budget, chosen.rows, others.pop(model, None))
        for model, value in others.items():
            print(f"{name:8}{model:14}{'':18}{value:>11}  {TASKS[name].unit}", flush=True)


def fitting(name: str) -> list[str]:
    """The models with exact likelihoods that suit such data."""
    if name in FITTING:
        return FITTING[name]
    known = [
        entry.name.partition(".")[2]
        for entry in registry.entries()
        if entry.family in ("baseline", "autoregressive")
    ]
    wide = {"count_table", "mixture", "gaussian"} if name != "nltcs" else {"gaussian"}
    flat = {"pixelcnn", "pixelrnn"} if name in ("nltcs", "plants", "jester", "dna") else set()
    return [model for model in known if model not in wide | flat]


def measure(name: str, model: str, budget: str, most: int | None, known: float | None) -> None:
    task, started = TASKS[name], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(model, task.data, budget=budget, out=f"{folder}/run")
        rows = run.split()
        rows.index = rows.index[:most]
        found = row_likelihoods(run.require(HasLikelihood), chunks(rows), run.space.dims)
    value, error = found.mean.value, found.mean.stderr
    if task.unit == "bits/dim":
        value, error = found.bits_per_dim, abs(found.bits_per_dim / value) * error
    print(
        f"{name:8}{model:14}{value:10.3f}{error:8.3f}{'' if known is None else known:>11}  "
        f"{task.unit:9}{time.perf_counter() - started:6.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
