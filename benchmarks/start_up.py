"""CPU seconds of short commands in new processes, beside those of importing torch and pandas.

    python -m benchmarks.start_up [--rounds 5] [--beside CHECKOUT] [--keep]

`monge data` on a table (titanic, found by MONGE_DATA), a Chow-Liu fit to it, and 1000 samples of
the fit as csv. User and system time of each process, commands in turn, medians. Bytecode is kept
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
                    f"data{title}": ["-m", "monge", "data", str(table)],
                    f"fit{title}": ["-m", "monge", "fit", "chow_liu", str(table), "--out", run],
                    f"sample{title}": [
                        *("-m", "monge", "sample", run),
                        *("-n", "1000", "-o", f"{scratch}/new.csv"),
                    ],
                }
                for name, command in commands.items():
                    times.setdefault(name, []).append(cpu_seconds(command, environment))
            for name in ALONE:
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
    for name, found_times in times.items():
        ratio = middle[name] / middle["import torch"]
        low, high = min(found_times), max(found_times)
        print(f"{name:16}{middle[name]:6.2f} s ({low:.2f} to {high:.2f}){ratio:8.2f} of torch")
    if args.keep:
        ratios = {
            name: middle[name] / middle["import torch"] for name in ("data", "fit", "sample")
        }
        keep("start_up", ratios | {"torch_seconds": middle["import torch"]})


if __name__ == "__main__":
    main()
