"""Repeat a published table: fit, score, and keep what was measured beside what others published.

Each fit is a run folder below `reproduce-TABLE`, in which `metrics.json` appears once it is
scored: what was interrupted goes on from its checkpoint, and what is done is not done again. The
name of a folder ends in a digest of all that defines the fit, so that other budgets or settings
are other fits. `write` keeps the figures, with the curve of each fit over its seconds, in one file
of JSON.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd
import sklearn.datasets
import torch

from ..core.abilities import HasLikelihood
from ..core.config import apply_overrides
from ..core.errors import RunError
from ..core.machine import processor_name
from ..core.metric import Metric
from ..evaluate.likelihood import chunks, row_likelihoods
from ..evaluate.predictions import predict, prediction_metrics
from ..plot.learning_curves import write_race
from ..run import storage
from ..run.forecast import forecast_metrics
from ..run.run import Run, load, start
from ..run.saved import ComputeConfig
from ..run.text import text_metrics
from .published import SOURCES, Fit, Table, short
from .runner import RESULTS, read_results

PACKAGES = ("monge", "torch", "numpy", "scipy", "scikit-learn")
NORMAL = 1.96
"""Standard errors on each side of a 95 % interval."""
DRAWS = 100
"""Completions of a row whose median fills a cell in."""
LIKELIHOOD = {"log_likelihood", "bits_per_dim"}
FORECAST = {"mse", "mae", "mase", "crps", "coverage_0.8"}
TEXT = {"nats_per_token", "bits_per_character", "bleu", "chrf"}
PREDICTION = {"rmse", "accuracy"}
CURVE_POINTS = 60
"""Points of a curve that are kept at most."""


@dataclass(frozen=True)
class FitResult:
    """The figures of one fit, or of its `repeats` together."""

    fit: Fit
    metrics: dict[str, Metric]
    seconds: float
    repeat: int | None = None
    """Its number; None for all together."""
    commits: tuple[str, ...] = ()

    def interval(self, metric: str) -> tuple[float, float]:
        """95 %, over test rows, or over repeats if there are several."""
        found = self.metrics[metric]
        return found.value - NORMAL * found.stderr, found.value + NORMAL * found.stderr


def reproduce(
    table: Table,
    only: Sequence[str] = (),
    budget: str | None = None,
    repeats: int | None = None,
    threads: int = 1,
    jobs: int = 1,
    home: Path | None = None,
) -> Iterator[FitResult]:
    """Each fit of a table as soon as it is scored, and after the last repeat of a line all of them
    together; `home` is the folder of the runs."""
    home = home or storage.home() / f"reproduce-{table.name}"
    fits = [
        replace(
            fit,
            budget=budget or fit.budget,
            repeats=min(repeats or fit.repeats, fit.repeats) if fit.repeats > 1 else repeats or 1,
        )
        for fit in table.here(only)
    ]
    wanted = [(fit, k) for fit in fits for k in range(fit.repeats)]
    done: dict[Fit, list[FitResult]] = {fit: [] for fit in fits}
    for found in measure_all(wanted, home, threads, jobs):
        done[found.fit].append(found)
        yield found
        if len(done[found.fit]) == found.fit.repeats:
            yield together(found.fit, done[found.fit])


def measure_all(
    wanted: Sequence[tuple[Fit, int]], home: Path, threads: int, jobs: int
) -> Iterator[FitResult]:
    if jobs == 1:
        for fit, k in wanted:
            yield measure(fit, k, home, threads)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        tasks = [pool.submit(measure, fit, k, home, threads) for fit, k in wanted]
        for task in as_completed(tasks):
            yield task.result()


def together(fit: Fit, found: Sequence[FitResult]) -> FitResult:
    """The mean over repeats with its standard error; one fit keeps its own."""
    if len(found) == 1:
        return replace(found[0], repeat=None)
    metrics = {}
    for name in found[0].metrics:
        values = [each.metrics[name].value for each in found]
        error = stdev(values) / len(values) ** 0.5
        metrics[name] = replace(found[0].metrics[name], value=mean(values), stderr=error)
    commits = sorted({commit for each in found for commit in each.commits})
    return FitResult(fit, metrics, mean(each.seconds for each in found), None, tuple(commits))


def folder_of(fit: Fit, k: int, home: Path) -> Path:
    """Where a fit is: its name with a digest of all that defines it but the published figures."""
    about = {
        key: value for key, value in asdict(fit).items() if key not in ("published", "repeats")
    }
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:6]
    return home / f"{fit.name}-{digest}-{k}"


def measure(fit: Fit, k: int, home: Path, threads: int = 1) -> FitResult:
    """Start or resume one fit and score it, unless that is done."""
    folder = folder_of(fit, k, home)
    if not (folder / RESULTS).exists():
        run = open_run(fit, k, folder, threads)
        for _ in run.train(fit.budget):
            pass
        if run.result["stopped"] == "asked":
            raise RunError(
                f"stopped after {run.result['step']} steps of {fit.name}; run the same command to "
                "continue"
            )
        metrics = scores(run, fit, k)
        content = {
            "metrics": {name: metrics[name].to_dict() for name in fit.metrics},
            "seconds": max(line["seconds"] for line in run.log),
            "steps": run.result["step"],
            "commit": commit(),
            "threads": threads,
            "date": datetime.date.today().isoformat(),
            "processor": processor_name(),
        }
        text = json.dumps(storage.with_format(content), indent=1) + "\n"
        storage.write(folder / RESULTS, text)
    saved = read_results(folder)
    commits = tuple(filter(None, [saved.get("commit")]))
    return FitResult(fit, saved["metrics"], saved["seconds"], k, commits)


def open_run(fit: Fit, k: int, folder: Path, threads: int) -> Run:
    compute = ComputeConfig(threads=threads)
    if (folder / "run.json").exists():
        return load(folder, compute)
    folder.parent.mkdir(parents=True, exist_ok=True)
    split = any("{k}" in word for word in fit.settings)
    return start(
        fit.model,
        str(hidden_cells(fit, k, folder.parent)) if fit.hidden else fit.data,
        *(word.replace("{k}", str(k)) for word in fit.settings),
        *(("data.space=plain", "data.missing=ignore") if fit.hidden else ()),
        target=fit.target,
        ensemble=fit.ensemble,
        seed=0 if split or fit.hidden else k,
        out=folder,
        compute=compute,
        budget=fit.budget,
    )


# what is scored


def scores(run: Run, fit: Fit, k: int) -> dict[str, Metric]:
    """The metrics that a line asks for, on test rows."""
    asked = set(fit.metrics)
    found: dict[str, Metric] = {}
    if fit.hidden:
        return {"absolute_error": completion_error(run, fit, k)}
    if asked & PREDICTION:
        model = run.require(HasLikelihood)
        options = apply_overrides(model.LikelihoodConfig(), fit.scoring, "score")
        found |= prediction_metrics(predict(run.model, chunks(run.split()), options=options))
    if asked & LIKELIHOOD:
        found |= likelihoods(run, fit)
    if asked & FORECAST:
        found |= forecast_metrics(run)
    if asked & TEXT:
        found |= text_metrics(run)
    if asked - set(found):
        found = dict(run.evaluate()) | found
    if missing := asked - set(found):
        raise RunError(
            f"expected {', '.join(sorted(missing))} of {fit.name}, found "
            f"{', '.join(sorted(found))}; change what the table asks for"
        )
    return found


def likelihoods(run: Run, fit: Fit) -> dict[str, Metric]:
    """Nats per row and bits per dimension of the test rows, or of the first of them."""
    rows = run.split()
    rows.index = rows.index[: fit.rows]
    model = run.require(HasLikelihood)
    options = apply_overrides(model.LikelihoodConfig(), fit.scoring, "score")
    found = row_likelihoods(model, chunks(rows), run.space.dims, options, pad=True)
    bits = found.bits_per_dim
    error = abs(bits / (found.mean.value or 1)) * found.mean.stderr
    return {
        "log_likelihood": found.mean,
        "bits_per_dim": Metric(bits, "loss", error, "bits/dim"),
    }


def scaled(fit: Fit) -> np.ndarray:
    """The numbers of a table of scikit-learn, each column from 0 to 1."""
    x = getattr(sklearn.datasets, f"load_{fit.data}")().data
    return (x - x.min(0)) / (x.max(0) - x.min(0))


def hidden_mask(fit: Fit, k: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(k).random(shape) < fit.hidden


def hidden_cells(fit: Fit, k: int, home: Path) -> Path:
    """A folder of the table with some cells empty; every row is trained on."""
    x = scaled(fit)
    frame = pd.DataFrame(x).add_prefix("x").mask(hidden_mask(fit, k, x.shape))
    folder = home / f"{fit.data}-hidden-{k}"
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        storage.write(folder / f"{split}.csv", frame.to_csv(index=False))
    return folder


def completion_error(run: Run, fit: Fit, k: int) -> Metric:
    """The mean absolute error of the median of draws over the hidden cells."""
    truth = scaled(fit)
    hidden = hidden_mask(fit, k, truth.shape)
    filled = run.complete(None, by="median", draws=DRAWS, split="train").to_numpy(float)
    gap = np.abs(filled - truth)[hidden]
    return Metric(float(gap.mean()), "loss", float(gap.std() / len(gap) ** 0.5), "of the range")


# what is kept


def write(table: Table, found: Sequence[FitResult], out: Path, home: Path | None = None) -> Path:
    """Keep the figures of a table and its curves in `out`/TABLE.json, and the curves of each
    dataset as a picture in `out`/curves; lines that are kept already and were not measured now
    stay."""
    home = home or storage.home() / f"reproduce-{table.name}"
    path = out / f"{table.name}.json"
    lines = kept_lines(path)
    lines |= {each.fit.name: line_of(each, home) for each in found}
    values = {
        re.sub(r"\W", "_", f"{name}-{metric}"): score["value"]
        for name, line in lines.items()
        for metric, score in line["metrics"].items()
    }
    record = about_this_machine(values, range(max(each.fit.repeats for each in found)))
    record |= {
        "table": table.name,
        "departs": table.departs,
        "sources": {
            each["source"]: SOURCES[each["source"]]
            for line in lines.values()
            for each in line["published"]
        },
        "lines": [lines[name] for name in sorted(lines)],
    }
    out.mkdir(parents=True, exist_ok=True)
    storage.write(path, json.dumps(record, indent=1) + "\n")
    (out / "curves").mkdir(exist_ok=True)
    for data in {each.fit.data for each in found}:
        curves = {name: line["curve"] for name, line in lines.items() if line["data"] == data}
        write_race(out / "curves" / f"{table.name}-{short(data)}.png", curves)
    return path


LINE_KEYS = {"name", "data", "metrics", "published", "curve"}


def kept_lines(path: Path) -> dict[str, dict[str, Any]]:
    """The lines that a file keeps, by name, each with its own day and processor or the file's."""
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        common = {"date": record["date"], "processor": record["machine"]["processor"]}
        lines = {line["name"]: common | line for line in record["lines"]}
        complete = all(line.keys() >= LINE_KEYS for line in lines.values())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        complete = False
    if not complete:
        raise RunError(
            f"{path}: expected lines of a table as `monge reproduce` keeps them, found another or "
            "a damaged file; move it away, or name another folder with --out"
        )
    return lines


def line_of(each: FitResult, home: Path) -> dict[str, Any]:
    """What is kept about one line of a table."""
    fit = each.fit
    saved = read_results(folder_of(fit, 0, home))
    metrics = {
        name: score.to_dict() | {"interval": list(each.interval(name))}
        for name, score in each.metrics.items()
    }
    return {
        "name": fit.name,
        "data": fit.data,
        "model": fit.model,
        "settings": [*fit.settings, *fit.scoring],
        "ensemble": fit.ensemble,
        "budget": fit.budget,
        "repeats": fit.repeats,
        "seconds": round(each.seconds, 2),
        "threads": saved.get("threads"),
        **{key: saved[key] for key in ("date", "processor") if key in saved},
        "metrics": metrics,
        "published": [asdict(figure) for figure in fit.published],
        "commits": list(each.commits),
        "curve": curve(folder_of(fit, 0, home)),
    }


def curve(folder: Path) -> list[dict[str, Any]]:
    """Seconds and held-out score of the first fit, thinned."""
    points = [
        {
            "seconds": round(line["seconds"], 2),
            "held_out": {
                "value": float(f"{line['held_out']['value']:.6g}"),
                "kind": line["held_out"]["kind"],
            },
        }
        for line in load(folder).log
        if line.get("held_out")
    ]
    every = max(-(-len(points) // CURVE_POINTS), 1)
    return [*points[:-1:every], *points[-1:]]


def about_this_machine(
    values: Mapping[str, float],
    seeds: Iterable[int] = (0,),
    packages: Iterable[str] = (),
) -> dict[str, Any]:
    """Measured values with the day, the machine, the versions, the commit and the seeds."""
    return {
        "date": datetime.date.today().isoformat(),
        "values": {key: float(value) for key, value in values.items()},
        "seeds": list(seeds),
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions([*PACKAGES, *packages]),
    }


def machine() -> dict[str, Any]:
    load = getattr(os, "getloadavg", None)  # Windows has none
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(load()[0], 1) if load else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of the source that runs, marked if files differ from it; empty if it is installed
    from a wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "monge"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said[0] + ", changed" * bool(said[1])
