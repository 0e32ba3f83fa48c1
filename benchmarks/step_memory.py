"""The memory of a training step: stated before a fit against measured, for every model.

Each model has its default and its smallest settings on the first built-in dataset it supports.
Measured is the peak of what torch's allocator holds during the third and fourth step
(`torch.profiler`), the first two of fits to the whole split, above what it held before them
without gradients; every update is due in the third, one more step follows if the fourth has the
few rows that an epoch leaves, and rows that differ in length are the longest ones. Both sides
leave out weights, EMA and optimiser state, which are known exactly.

    python -m benchmarks.step_memory [--only made vae] [--rows 1000] [--keep]
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from monge import registry
from monge.core.errors import MongeError
from monge.run.run import Run, start
from monge.train.cost_estimate import FirstRows
from monge.train.step_memory import step_memory, widest
from monge.train.trainer import Trainer

from .results import keep

DATASETS: list[tuple[str, dict[str, str]]] = [
    ("digits", {}),
    ("digits+binarise", {}),
    ("iris", {}),
    ("sines", {}),
    ("digits", {"given": "label"}),
    ("digits", {"target": "label"}),
    ("digits+edges", {}),
    ("digits+low2", {}),
    ("sentences.tsv", {"target": "target"}),
    ("series.csv", {}),
]
"""Datasets and the field that a model of them is conditioned on, or predicts."""
SENTENCES = "source\ttarget\n" + "".join(
    f"{' '.join('abcdefgh'[k % 8] for k in range(n, n + n % 5 + 2))}\t"
    f"{' '.join('ABCDEFGH'[k % 8] for k in range(n, n + n % 5 + 2))}\n"
    for n in range(600)
)


SERIES = "date,sales\n" + "".join(
    f"{date(2020, 1, 1) + timedelta(days=day)},{100 + 20 * math.sin(day / 7) + day % 5}\n"
    for day in range(600)
)
WITHIN = 0.2
"""The part of what is measured by which the statement may be off."""


def begin(model: str, rows: int, folder: Path) -> Iterator[tuple[str, str, Run]]:
    """Runs of the model by default and with its smallest settings, on the first dataset that it
    supports."""
    refused: list[str] = []
    for place, (data, fields) in enumerate(DATASETS):
        settings = [f"data.rows={rows}"]
        if data.endswith(".tsv"):
            (folder / data).write_text(SENTENCES)
            data, settings = str(folder / data), ["data.sentences=source,target"]
        elif data.endswith(".csv"):
            (folder / data).write_text(SERIES)
            data, settings = str(folder / data), []
        given = [fields["given"]] if "given" in fields else []
        about: dict[str, Any] = {"given": given, "target": fields.get("target")}
        try:
            run = start(model, data, *settings, **about, out=folder / f"{model}-{place}")
        except MongeError as error:
            refused.append(str(error))
            continue
        title = " ".join([Path(data).name, *(f"{k} {v}" for k, v in fields.items())])
        yield title, "default", run
        smallest = run.model_class.smallest_config(run.space)
        yield title, "smallest", start(smallest, data, *settings, **about, out=folder / "smallest")
        return
    raise SystemExit(f"no dataset for {model}: {refused}")


def measured(trainer: Trainer) -> int:
    """Peak bytes of a step by the records of torch's allocator, which knows the size of nothing
    that was there before it began to record."""
    for _ in range(0 if in_closed_form(trainer) else 2):
        trainer.train_step(1.0)
    if trainer.step:
        trainer.step = 2 * math.lcm(*(update.every for update in trainer.updates))
    for param in trainer.model.parameters():
        param.grad = None
    per_epoch = math.ceil(len(trainer.rows) / trainer.batch_size)
    second_is_last = (trainer.step + 2) % per_epoch == 0  # and has fewer rows
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(3 if second_is_last else 2):
            trainer.train_step(1.0)
    assert profiler.profiler is not None
    records = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for record in sorted(records, key=lambda record: record.start_ns()):
        now += record.nbytes()
        peak = max(peak, now)
    return peak


def on_longest(trainer: Trainer) -> Trainer:
    """The trainer, on the rows of the batch that needs most: the longest, if rows differ."""
    if trainer.rows.lengths is None:
        return trainer
    rows = FirstRows(trainer.rows, trainer.batch_size)
    rows.index = widest(trainer.rows, trainer.batch_size)
    return Trainer(trainer.model, rows, trainer.train_config)


def in_closed_form(trainer: Trainer) -> bool:
    """Whether the first step, which reads the whole split, is all that there is."""
    return all(update.whole for update in trainer.updates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="models")
    parser.add_argument("--rows", type=int, default=1000, help="rows of each dataset")
    parser.add_argument("--keep", action="store_true", help="write results/step_memory.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    head = f"{'model':28} {'settings':9} {'data':22}"
    print(f"{head} {'stated':>10} {'measured':>10}  ratio  CPU s")
    for entry in registry.entries():
        if options.only and entry.name.partition(".")[2] not in options.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            for data, size, run in begin(entry.name, options.rows, Path(scratch)):
                trainer = run.trainer
                assert trainer is not None
                started = time.process_time()
                found = step_memory(
                    trainer.model, trainer.rows, trainer.updates, trainer.batch_size, "fp32"
                )
                spent = time.process_time() - started
                peak = measured(on_longest(trainer))
                ratio = ratios[f"{entry.name} {size}"] = found.peak / peak
                print(
                    f"{entry.name:28} {size:9} {data:22} {found.peak / 1e6:7.2f} MB "
                    f"{peak / 1e6:7.2f} MB {ratio:6.2f} {spent:6.2f}"
                    f"{'  off' * (abs(ratio - 1) > WITHIN)}{'  at least' * found.is_lower_bound}",
                    flush=True,
                )
    values = [*ratios.values()]
    within = sum(abs(value - 1) <= WITHIN for value in values)
    print(
        f"ratios from {min(values):.2f} to {max(values):.2f}, median "
        f"{statistics.median(values):.2f}; {within} of {len(values)} within {WITHIN:.0%}"
    )
    if options.keep:
        keep(
            "step_memory",
            {
                "lowest": min(values),
                "highest": max(values),
                "within": float(within),
                "runs": float(len(values)),
            },
        )


if __name__ == "__main__":
    main()
