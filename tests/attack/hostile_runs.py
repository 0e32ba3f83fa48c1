"""Folders of runs and comparisons whose files were damaged or written to deceive: each is used or
refused in one sentence.

    python tests/attack/hostile_runs.py --tries 5000 --seed 7

A try copies a good run or comparison, changes one of its files (wrong types, odd values, missing
and foreign keys, deep nesting, flipped bits, a truncated or swapped file, a pickle, a link that
leads out) and then loads it, samples, scores, reads its log and checkpoint, or ranks the models;
some are resumed, reported and listed. Anything but success or an error of ours counts as failed,
and so does a file that appears outside the folder.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from attacking import Seed, main

import monge
from monge.cli.runs import describe_run
from monge.comparison.leaderboard import Leaderboard
from monge.comparison.plan import ComparisonPlan
from monge.comparison.runner import Comparison
from monge.core.errors import MongeError
from monge.core.metric import Metric
from monge.report.run import write_report
from monge.run import storage
from monge.run.diagnostics import saved_findings

GOOD = Path(__file__).parents[1] / "fixtures" / "format-2" / "run"
JSON = ("run.json", "fields.json", "findings.json")
BINARY = ("best.safetensors", "last.safetensors", "log.jsonl", *JSON)
MODELS = ("autoregressive.made", "baseline.gaussian")
COMPARED_JSON = (
    "compare.json",
    *(f"{name}/metrics.json" for name in MODELS),
    f"{MODELS[0]}/run.json",
)
COMPARED_BINARY = (*COMPARED_JSON, f"{MODELS[0]}/rows.npy")


FURTHER = 0.2
"""The share of runs that are also resumed, reported and listed, which takes longer."""


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


ODD: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 10**30,
    lambda: 2**63,
    lambda: 1e308,
    lambda: float("nan"),
    lambda: float("-inf"),
    lambda: "",
    lambda: "x",
    lambda: "../../../outside",
    lambda: "monge.__main__:main",
    lambda: "\0",
    lambda: "x" * 100_000,
    list,
    dict,
    lambda: [None],
    lambda: {"is": "model/ensemble"},
    lambda: {"is": "no/such"},
    lambda: {"run": "/"},
    lambda: [[[[[]]]]],
    lambda: list(range(10_000)),
)


def places(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path to every value of a JSON tree."""
    yield path
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, (*path, key))


def put(tree: Any, path: tuple, value: Any) -> Any:
    if not path:
        return value
    (key, *rest), copy = path, (dict(tree) if isinstance(tree, dict) else list(tree))
    copy[key] = put(tree[key], tuple(rest), value)
    return copy


def change_json(folder: Path, chance: random.Random, names: Sequence[str]) -> str:
    """Replace, remove or add one value in a JSON file, or nest it deeply."""
    name = chance.choice(names)
    file = folder / name
    tree = json.loads(file.read_text(encoding="utf-8"))
    path = chance.choice(list(places(tree)))
    way = chance.random()
    if way < 0.05:
        file.write_text(deep(100_000), encoding="utf-8")
        return f"{name} nested deeply"
    if way < 0.2 and path:
        inner = tree
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        file.write_text(json.dumps(tree), encoding="utf-8")
        return f"{name} without {path}"
    value = chance.choice(ODD)()
    file.write_text(json.dumps(put(tree, path, value)), encoding="utf-8")
    return f"{name} {path} = {str(value)[:40]!r}"


class Code:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def change_bytes(folder: Path, chance: random.Random, names: Sequence[str]) -> str:
    """Flip bits, cut, empty or exchange a file, or make it a pickle or a link."""
    name = chance.choice(names)
    file, way = folder / name, chance.random()
    content = bytearray(file.read_bytes())
    if way < 0.55:
        for _ in range(chance.choice((1, 1, 3, 30))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        what = "flipped"
    elif way < 0.75:
        content = content[: chance.randrange(len(content))]
        what = "cut"
    elif way < 0.85:
        content = bytearray((folder / chance.choice(names)).read_bytes())
        what = "exchanged"
    elif way < 0.9:
        file.unlink()
        file.symlink_to(chance.choice(("/etc/passwd", "/dev/zero", "nowhere", "../../outside")))
        return f"{name} linked"
    elif way < 0.95:
        content = bytearray(pickle.dumps(np.array([Code(folder.parents[1] / "ran")], object)))
        what = "pickled"
    else:
        content = bytearray(chance.randbytes(chance.randrange(1, 5000)))
        what = "random"
    file.write_bytes(content)
    return f"{name} {what}"


def use(folder: Path) -> None:
    """What the commands do with a run that is not trained any further."""
    run = monge.load(folder)
    _ = run.title, run.space, run.train_config, run.config
    _ = run.history, run.result, repr(run)
    saved_findings(folder, run.result["step"])
    run.latest_model()
    sampled = run.sample(2, seed=0)
    run.log_likelihood(sampled)


@cache
def resumable() -> Path:
    """A run whose data can be opened again; it is made once."""
    folder = Path(tempfile.mkdtemp()) / "run"
    atexit.register(shutil.rmtree, folder.parent)
    settings = ("width=4", "depth=1", "train.batch_size=64")
    monge.fit("made", "iris", *settings, budget="2steps", out=folder)
    return folder


def use_further(folder: Path) -> None:
    """What resuming, `monge report` and `monge runs` do with a run, each whatever the others
    found; the first error that is not ours."""
    for work in (resume, write_report, listed):
        try:
            work(folder)
        except MongeError as error:
            if "\n" in str(error):
                raise ValueError(f"not one sentence: {error}") from error


def resume(folder: Path) -> None:
    for _ in monge.load(folder).train("+1step"):
        pass


def listed(folder: Path) -> None:
    found = describe_run(folder)
    if not found["error"]:
        json.dumps(found)


def make_comparison(folder: Path) -> None:
    """A comparison as the library writes it, of copies of the good run."""
    for name in MODELS:
        shutil.copytree(GOOD, folder / name)
        np.save(folder / name / "rows.npy", np.arange(5.0))
        metrics = {"log_likelihood": Metric(2.0, "exact", 0.1).to_dict()}
        results = {"metrics": metrics, "seconds": 1.0, "steps": 3, "cost": {"parameters": 3}}
        write(folder / name / "metrics.json", results)
    write(
        folder / "compare.json",
        asdict(ComparisonPlan("moons", ("data.seed=1",), MODELS, "3steps")),
    )


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(storage.with_format(content)), encoding="utf-8")


def use_comparison(folder: Path) -> None:
    """What the commands do with the results of a comparison."""
    comparison = Comparison.read(folder)
    found = Leaderboard.of(comparison, comparison.outcomes)
    _ = json.dumps(found.to_dict()), repr(found), found.reference


def attack(tries: int, seed: Seed, limit: float = 60.0) -> list[str]:
    """The tries that failed, each in a line; a try that takes longer than `limit` seconds too."""
    failed = []
    for number in range(tries):
        chance = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as scratch:
            further = chance.random() < FURTHER
            folder, compared = Path(scratch) / "inside" / "run", chance.random() < 0.2
            if compared:
                make_comparison(folder)
            else:
                shutil.copytree(resumable() if further else GOOD, folder)
            texts, files = (COMPARED_JSON, COMPARED_BINARY) if compared else (JSON, BINARY)
            if chance.random() < 0.7:
                what = change_json(folder, chance, texts)
            else:
                what = change_bytes(folder, chance, files)
            started = time.process_time()
            try:
                if further and not compared:
                    use_further(folder)
                (use_comparison if compared else use)(folder)
            except MongeError as error:
                if not str(error).strip() or "\n" in str(error):
                    failed.append(f"{number} {what}: not one sentence: {error!r}")
            except Exception as error:  # what this script looks for
                place = traceback.extract_tb(error.__traceback__)[-1]
                failed.append(f"{number} {what}: {error!r:.200} at {place.name}:{place.lineno}")
            if (spent := time.process_time() - started) > limit:
                failed.append(f"{number} {what}: took {spent:.0f} s")
            if sorted(path.name for path in Path(scratch).iterdir()) != ["inside"]:
                failed.append(f"{number} {what}: wrote outside the run folder, or ran code")
    return failed


if __name__ == "__main__":
    main(__doc__, attack, 5000, 250)
