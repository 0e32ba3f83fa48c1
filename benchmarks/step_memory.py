"""The memory of a training step: estimated from shapes against measured, for every model.

Each model has its default settings on the first built-in dataset it supports. Measured is the peak
of what torch's allocator holds during the third step (`torch.profiler`), above what it held before
it, plus the gradients that the step before left. Both sides leave out weights, EMA and optimiser
state, which are known exactly.

    python -m benchmarks.step_memory [--only made vae] [--rows 1000]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from monge import registry
from monge.core.errors import MongeError
from monge.run.run import Run, start
from monge.train.step_memory import step_memory
from monge.train.trainer import Trainer

DATASETS: list[tuple[str, dict[str, str]]] = [
    ("digits", {}),
    ("iris", {}),
    ("sines", {}),
    ("digits", {"given": "label"}),
    ("digits", {"target": "label"}),
    ("digits+edges", {}),
    ("digits+low2", {}),
    ("sentences.tsv", {"target": "target"}),
]
"""Datasets and the field that a model of them is conditioned on, or predicts."""
SENTENCES = "source\ttarget\n" + "".join(
    f"{' '.join('abcdefgh'[k % 8] for k in range(n, n + n % 5 + 2))}\t"
    f"{' '.join('ABCDEFGH'[k % 8] for k in range(n, n + n % 5 + 2))}\n"
    for n in range(600)
)


def begin(model: str, rows: int, folder: Path) -> tuple[str, Run]:
    """A run of the model on the first dataset it supports."""
    refused: list[str] = []
    for place, (data, fields) in enumerate(DATASETS):
        settings = [f"data.rows={rows}"]
        if data.endswith(".tsv"):
            (folder / data).write_text(SENTENCES)
            data, settings = str(folder / data), ["data.sentences=source,target"]
        try:
            run = start(
                model,
                data,
                *settings,
                given=[fields["given"]] if "given" in fields else [],
                target=fields.get("target"),
                out=folder / f"{model}-{place}",
            )
        except MongeError as error:
            refused.append(str(error))
            continue
        return " ".join([Path(data).name, *(f"{k} {v}" for k, v in fields.items())]), run
    raise SystemExit(f"no dataset for {model}: {refused}")


def measured(trainer: Trainer) -> int:
    """Peak bytes of a step by the records of torch's allocator."""
    for _ in range(2):
        trainer.train_step(1.0)
    gradients = sum(
        param.grad.numel() * param.grad.element_size()
        for param in trainer.model.parameters()
        if param.grad is not None
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.train_step(1.0)
    records = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for record in sorted(records, key=lambda record: record.start_ns()):
        now += record.nbytes()
        peak = max(peak, now)
    return peak + gradients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="models")
    parser.add_argument("--rows", type=int, default=1000, help="rows of each dataset")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    print(f"{'model':34} {'data':22} {'estimated':>10} {'measured':>10}  ratio  CPU s")
    for entry in registry.entries():
        if options.only and entry.name.partition(".")[2] not in options.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            data, run = begin(entry.name, options.rows, Path(scratch))
            trainer = run.trainer
            assert trainer is not None
            started = time.process_time()
            found = step_memory(
                trainer.model, trainer.rows, trainer.updates, trainer.batch_size, "fp32"
            )
            spent = time.process_time() - started
            peak = measured(trainer)
        ratios.append(found.peak / peak)
        print(
            f"{entry.name:34} {data:22} {found.peak / 1e6:7.2f} MB {peak / 1e6:7.2f} MB "
            f"{ratios[-1]:6.2f} {spent:6.2f}{'  at least' * found.is_lower_bound}",
            flush=True,
        )
    print(
        f"ratios from {min(ratios):.2f} to {max(ratios):.2f}, median "
        f"{statistics.median(ratios):.2f}; {sum(0.5 <= r <= 2 for r in ratios)} of {len(ratios)} "
        "within a factor of two"
    )


if __name__ == "__main__":
    main()
