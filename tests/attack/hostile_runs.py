"""Run folders whose files were damaged or written to deceive: each is used or refused in one
sentence.

    python tests/attack/hostile_runs.py --tries 5000 --seed 7

A try copies a good run, changes one of its files (wrong types, odd values, missing and foreign
keys, deep nesting, flipped bits, a truncated or swapped file) and then loads it, samples, scores
and reads its log. Anything but success or an error of ours counts as failed, and so does a file
that appears outside the folder.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import monge
from monge.core.errors import MongeError

GOOD = Path(__file__).parents[1] / "fixtures" / "format-2" / "run"
JSON = ("run.json", "fields.json")
BINARY = ("best.safetensors", "log.jsonl", *JSON)


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


def change_json(folder: Path, chance: random.Random) -> str:
    """Replace, remove or add one value in a JSON file, or nest it deeply."""
    name = chance.choice(JSON)
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


def change_bytes(folder: Path, chance: random.Random) -> str:
    """Flip bits, cut, empty or exchange a file."""
    name = chance.choice(BINARY)
    file, way = folder / name, chance.random()
    content = bytearray(file.read_bytes())
    if way < 0.6:
        for _ in range(chance.choice((1, 1, 3, 30))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        what = "flipped"
    elif way < 0.85:
        content = content[: chance.randrange(len(content))]
        what = "cut"
    elif way < 0.95:
        content = bytearray((folder / chance.choice(BINARY)).read_bytes())
        what = "exchanged"
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
    sampled = run.sample(2, seed=0)
    run.log_likelihood(sampled)


def attack(tries: int, seed: int, limit: float = 60.0) -> list[str]:
    """The tries that failed, each in a line; a try that takes longer than `limit` seconds too."""
    failed = []
    for number in range(tries):
        chance = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "inside" / "run"
            shutil.copytree(GOOD, folder)
            change = change_json if chance.random() < 0.7 else change_bytes
            what, started = change(folder, chance), time.monotonic()
            try:
                use(folder)
            except MongeError as error:
                if not str(error).strip() or "\n" in str(error):
                    failed.append(f"{number} {what}: not one sentence: {error!r}")
            except Exception as error:  # what this script looks for
                place = traceback.extract_tb(error.__traceback__)[-1]
                failed.append(f"{number} {what}: {error!r:.200} at {place.name}:{place.lineno}")
            if (spent := time.monotonic() - started) > limit:
                failed.append(f"{number} {what}: took {spent:.0f} s")
            if sorted(path.name for path in Path(scratch).iterdir()) != ["inside"]:
                failed.append(f"{number} {what}: wrote outside the run folder")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = attack(options.tries, options.seed)
    print("\n".join(failed))
    print(f"seed {options.seed}: {options.tries} tried, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
