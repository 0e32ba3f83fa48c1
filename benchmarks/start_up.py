"""CPU seconds of short commands in new processes, beside those of importing torch and pandas.

    python -m benchmarks.start_up [--rounds 5] [--beside CHECKOUT] [--keep]

`import monge`, `monge --help`, `monge fit` of four models to built-in sets up to the end of the
first step, and 16 samples of the last of them; then `monge data` on a table (titanic, found by
MONGE_DATA), a Chow-Liu fit to it, and 1000 samples of the fit as csv. User and system time of each
process, commands in turn, medians; those of `import torch` are also subtracted. Bytecode is kept
in a folder of its own and written by a round that does not count, as it is where a package is
installed. With --beside the same commands run in turn with the code of another checkout.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .first_hour import TABLES, found
from .results import ROOT, keep

ALONE = ("import torch", "import pandas")
WITHOUT_END = "import os, torch; os._exit(0)"
"""What a process that ends with its first step is compared with: the end of Python takes a while
too."""
FIRST_STEPS = (("coupling", "moons"), ("vae", "digits"), ("ddpm", "digits"), ("made", "digits"))
UP_TO_FIRST_STEP = """
import os, sys
from monge.train.trainer import Trainer
step = Trainer.train_step
Trainer.train_step = lambda self, scale: (step(self, scale), os._exit(0))
sys.argv[0] = "monge"
from monge.cli.main import main
main()
"""
GOALS = {"import monge": 0.03, "help": 0.12}
"""Seconds of processes that do not import torch."""
BEYOND_TORCH = {"first step": 1.5, "few samples": 0.5}
"""Seconds beyond `import torch`."""


def cpu_seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    """User and system time of a process; its output goes nowhere."""
    with subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {said.decode()}")
    return used.ru_utime + used.ru_stime


def measure(table: Path, checkouts: dict[str, Path], rounds: int) -> dict[str, list[float]]:
    """The seconds of each command, under its name, after a round that does not count."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(rounds + 1):
            for title, root in checkouts.items():
                plain = {
                    name: value
                    for name, value in os.environ.items()
                    if name != "PYTHONDONTWRITEBYTECODE"
                }
                environment = plain | {
                    "PYTHONPATH": str(root),
                    "PYTHONPYCACHEPREFIX": f"{scratch}/bytecode",
                    "OMP_NUM_THREADS": "1",
                }
                run = f"{scratch}/run-{title.strip('/ ')}-{number}"
                commands = {
                    f"import monge{title}": ["-c", "import monge"],
                    f"help{title}": ["-m", "monge", "--help"],
                }
                for model, data in FIRST_STEPS:
                    commands[f"first step, {model}{title}"] = [
                        *("-c", UP_TO_FIRST_STEP, "fit", model, data),
                        *("--out", f"{run}-{model}-first"),
                    ]
                small = f"{run}-small"
                commands |= {
                    f"one step{title}": [
                        *("-m", "monge", "fit", *FIRST_STEPS[-1]),
                        *("--budget", "1steps", "--out", small),
                    ],
                    f"few samples{title}": [
                        *("-m", "monge", "sample", small, "-n", "16"),
                        *("-o", f"{scratch}/few.npz"),
                    ],
                    f"data{title}": ["-m", "monge", "data", str(table)],
                    f"fit{title}": ["-m", "monge", "fit", "chow_liu", str(table), "--out", run],
                    f"sample{title}": [
                        *("-m", "monge", "sample", run),
                        *("-n", "1000", "-o", f"{scratch}/new.csv"),
                    ],
                }
                for name, command in commands.items():
                    times.setdefault(name, []).append(cpu_seconds(command, environment))
            for name in (*ALONE, WITHOUT_END):
                times.setdefault(name, []).append(cpu_seconds(["-c", name], environment))
    return {name: found[1:] for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--keep", action="store_true", help="write results/start_up.json")
    args = parser.parse_args()
    table = found(TABLES["titanic"])
    if table is None:
        raise SystemExit(
            f"expected {TABLES['titanic']} in MONGE_DATA, found none; name its folder"
        )
    checkouts = {"": ROOT}
    if args.beside is not None:
        checkouts |= {" beside": args.beside.resolve()}
    times = measure(table, checkouts, args.rounds)
    middle = {name: statistics.median(found) for name, found in times.items()}
    torch_seconds = middle["import torch"]
    for name, found_times in times.items():
        low, high = min(found_times), max(found_times)
        print(
            f"{name:30}{middle[name]:6.3f} s ({low:.3f} to {high:.3f})"
            f"{middle[name] / torch_seconds:8.2f} of torch{middle[name] - torch_seconds:+8.2f} s"
        )
    first = max(middle[f"first step, {model}"] for model, _ in FIRST_STEPS) - middle[WITHOUT_END]
    found_seconds = {
        "import monge": middle["import monge"],
        "help": middle["help"],
        "first step": first,
        "few samples": middle["few samples"] - torch_seconds,
    }
    for name, goal in (GOALS | BEYOND_TORCH).items():
        beyond = "beyond `import torch` " * (name in BEYOND_TORCH)
        print(f"{name}: {found_seconds[name]:.3f} s {beyond}(goal {goal})")
    if args.keep:
        ratios = {name: middle[name] / torch_seconds for name in ("data", "fit", "sample")}
        seconds = {name.replace(" ", "_"): value for name, value in found_seconds.items()}
        keep("start_up", ratios | seconds | {"torch_seconds": torch_seconds})


if __name__ == "__main__":
    main()
