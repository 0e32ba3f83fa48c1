"""Faults of the surroundings: commands work, or end in one sentence, and lose nothing.

    python tests/attack/surroundings.py [--tries 30] [--seed 0]

Full disks, memory limits, folders that cannot be written or were deleted, closed streams, names
that are not UTF-8, a bare environment, many processes that ask one run at once, two comparisons in
one folder, columns with the names of arguments. With fewer tries than cases, some are drawn.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from attacking import end, fork, main

from monge.cli.main import attempt

GOOD = Path(__file__).parents[1] / "fixtures" / "format-2" / "run"
MONGE = [sys.executable, "-P", "-m", "monge"]
FIT = ["fit", "made", "iris", "--budget", "2steps", "--threads", "1", "width=4"]
GIGABYTE = 2**30


def run(args: list[str], folder: Path, **named: Any) -> subprocess.CompletedProcess[bytes]:
    """The outcome of a command in a folder, a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MONGE_RUNS": str(folder / "runs")}
    options: dict[str, Any] = {"cwd": folder, "env": environment, "timeout": 300} | named
    options |= {k: subprocess.PIPE for k in ("stdout", "stderr") if k not in options}
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([*MONGE, *args], check=False, **options)


def wrong_end(done: subprocess.CompletedProcess[bytes], *codes: int) -> list[str]:
    """What is wrong with how a command ended: it has one of these exit codes and, if it failed,
    says why in one sentence."""
    said = (done.stderr or b"").decode(errors="replace").strip()
    wrong = [] if done.returncode in codes else [f"exit code {done.returncode}: {said[-200:]}"]
    if any(sign in said for sign in ("Traceback", "internal error", "Warning:", "terminate")):
        wrong.append(f"says {said[-300:]!r}")
    if done.returncode and done.stderr is not None:
        lines = [line for line in said.splitlines() if line.startswith("monge: ")]
        if len(lines) != 1:
            wrong.append(f"expected one sentence, found {said[-300:]!r}")
    return wrong


def in_shell(words: str, *codes: int) -> Callable[[Path], list[str]]:
    """A case: this command line in a shell, where MONGE is the command."""

    def case(folder: Path) -> list[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MONGE_RUNS": str(folder / "runs")}
        command = " ".join(MONGE)
        done = subprocess.run(
            ["sh", "-c", words.replace("MONGE ", f"{command} ")],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=300,
        )
        wrong = wrong_end(done, *codes)
        closed = "2>&-" in words or "2>/dev/full" in words
        return [each for each in wrong if not (closed and "one sentence" in each)]

    return case


def limited(limit: int, size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(limit, (size, size))


def disk_is_full(folder: Path) -> list[str]:
    """No file may grow beyond some kilobytes."""
    shutil.copytree(GOOD, folder / "run")
    old = folder / "old.csv"
    old.write_text("kept")
    full = limited(resource.RLIMIT_FSIZE, 4096)
    done = run([*FIT, "--out", "new"], folder, preexec_fn=full)
    wrong = wrong_end(done, 1)
    done = run(["sample", "run", "-n", "3000", "-o", "old.csv"], folder, preexec_fn=full)
    wrong += wrong_end(done, 1)
    if old.read_text() != "kept":
        wrong.append("the old output is lost")
    if (folder / "new" / "run.json").exists():
        wrong += wrong_end(run(["fit", "--resume", "new", "--budget", "2steps"], folder), 0)
    left = [path.name for path in folder.rglob(".*") if path.name not in (".lock",)]
    return wrong + [f"left {name}" for name in left]


def export_fails(folder: Path) -> list[str]:
    """On a full disk; a graph is written by C++."""
    made = ["fit", "ddpm", "moons", "--budget", "1step", "data.rows=50", "--out", "run"]
    wrong = wrong_end(run(made, folder), 0)
    old = folder / "x.pt2"
    old.write_text("kept")
    full = limited(resource.RLIMIT_FSIZE, 4096)
    wrong += wrong_end(run(["export", "run", "-o", "x.pt2"], folder, preexec_fn=full), 1)
    return wrong + ([] if old.read_text() == "kept" else ["the old output is lost"])


def memory_is_limited(size: int) -> Callable[[Path], list[str]]:
    def case(folder: Path) -> list[str]:
        limit = limited(resource.RLIMIT_AS, size)
        done = run(["fit", "gpt", "digits", "--budget", "1step"], folder, preexec_fn=limit)
        return wrong_end(done, 0, 1)

    return case


def folder_is_read_only(folder: Path) -> list[str]:
    """As a user who may read a run and not write it."""
    where = folder / "runs"
    assert attempt([*FIT, "-q", "--out", str(where / "run")]) == 0  # imports what it needs
    for path in (*where.rglob("*"), where):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in (folder, folder.parent):
        path.chmod(0o755)

    def as_another(args: list[str]) -> int:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return attempt(args)

    cases = {
        ("sample", str(where / "run"), "-n", "1"): (0,),
        ("fit", "--resume", str(where / "run"), "--budget", "5steps"): (1,),
        (*FIT, "--out", str(where / "new")): (1,),
        ("sample", str(where / "run"), "-o", str(where / "run" / "x.csv")): (1,),
    }
    wrong = []
    for args, codes in cases.items():
        code = end(fork(lambda args=args: as_another(list(args))))
        wrong += [] if code in codes else [f"{args[0]}: exit code {code}"]
    for path in (where, *where.rglob("*")):
        path.chmod(0o755)
    return wrong


def many_ask(folder: Path) -> list[str]:
    """Twenty processes sample one run at once."""
    shutil.copytree(GOOD, folder / "run")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*MONGE, "sample", "run", "-n", "3", "--seed", "5"]
    each = [
        subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)
        for _ in range(20)
    ]
    found = {(process.communicate(timeout=600)[0], process.returncode) for process in each}
    return [] if len(found) == 1 and next(iter(found))[1] == 0 else [f"answers differ: {found}"]


def two_compare(folder: Path) -> list[str]:
    """One of two comparisons in a folder works, the other says so; neither harms the other."""
    args = ["compare", "iris", "gaussian", "--budget", "3steps", "--out", str(folder / "both")]
    first = fork(lambda: attempt(args))
    while not (folder / "both" / "baseline.gaussian" / "run.json").exists():
        if os.waitpid(first, os.WNOHANG)[0]:
            return ["the first comparison ended before its first fit"]
        time.sleep(0.05)
    codes = (end(fork(lambda: attempt(args))), end(first))
    wrong = [] if codes == (1, 0) else [f"exit codes of the second and the first: {codes}"]
    board = json.loads(run(["compare", *args[1:], "--json"], folder).stdout)
    return wrong + ([] if board["rows"] else ["there are no results"])


def columns_are_arguments(folder: Path) -> list[str]:
    """Columns with names that numpy.savez takes as arguments, and with names of paths."""
    names = ("file", "allow_pickle", "a/b", "../up")
    rows = [",".join(names), *(f"{n},{n % 3},{n % 5},{n % 7}" for n in range(40))]
    (folder / "t.csv").write_text("\n".join(rows))
    wrong = wrong_end(run(["fit", "independent", "t.csv", "--out", "run"], folder), 0)
    wrong += wrong_end(run(["sample", "run", "-n", "5", "-o", "x.npz"], folder), 0)
    with np.load(folder / "x.npz") as found:
        lost = {*names} - {*found.keys()}
    return wrong + [f"{name} is not in the output" for name in lost]


def folder_is_deleted(folder: Path) -> list[str]:
    gone = folder / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", f"rmdir '{gone}'; {' '.join(MONGE)} fit made iris --budget 1step"],
        cwd=gone,
        capture_output=True,
        check=False,
    )
    return wrong_end(done, 1)


def environment_is_bare(folder: Path) -> list[str]:
    """No HOME and no locale, with names that are not ASCII."""
    rows = ["größe,b", *(f"{n},{'ä' if n % 2 else 'b'}" for n in range(30))]
    (folder / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    bare = {"LC_ALL": "C", "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    wrong = wrong_end(run(["fit", "independent", "t.csv", "--out", "r"], folder, env=bare), 0)
    done = run(["sample", "r", "-n", "20"], folder, env=bare)
    named = "größe" in done.stdout.decode()
    return wrong + wrong_end(done, 0) + ([] if named else ["the name of a column is lost"])


def name_is_not_utf8(folder: Path) -> list[str]:
    name = os.fsdecode(b"a\xffb")
    wrong = wrong_end(run([*FIT, "--out", name], folder), 0, 2)
    wrong += wrong_end(run(["compare", "iris", "gaussian", "--out", name], folder), 0, 2)
    wrong += wrong_end(run(["data", f"{name}.csv"], folder), 1)
    return wrong + (["left a folder behind"] if (folder / name).exists() else [])


FIT_WORDS = " ".join(FIT)
CASES: dict[str, Callable[[Path], list[str]]] = {
    "a full disk": disk_is_full,
    "a full disk under export": export_fails,
    "1.5 GB of memory": memory_is_limited(3 * GIGABYTE // 2),
    "1 GB of memory": memory_is_limited(GIGABYTE),
    "0.4 GB of memory": memory_is_limited(2 * GIGABYTE // 5),
    "a folder that is read only": folder_is_read_only,
    "twenty processes": many_ask,
    "two comparisons": two_compare,
    "columns named as arguments": columns_are_arguments,
    "a deleted folder": folder_is_deleted,
    "a bare environment": environment_is_bare,
    "a name that is not UTF-8": name_is_not_utf8,
    "closed stderr": in_shell(f"MONGE {FIT_WORDS} 2>&-", 0),
    "closed stdout": in_shell(f"MONGE {FIT_WORDS} >&-", 0),
    "closed stdin": in_shell(f"MONGE {FIT_WORDS} <&-", 0),
    "closed streams": in_shell(f"MONGE {FIT_WORDS} <&- >&- 2>&-", 0),
    "an error with closed streams": in_shell("MONGE nothing <&- >&- 2>&-", 2),
    "models on a full device": in_shell("MONGE models > /dev/full", 1),
    "models as JSON on a full device": in_shell("MONGE models --json > /dev/full", 1),
    "an error on a full device": in_shell("MONGE nothing --json > /dev/full", 2),
    "an error on two full devices": in_shell("MONGE nothing --json > /dev/full 2>/dev/full", 2),
    "a fit on a full device": in_shell(f"MONGE {FIT_WORDS} > /dev/full", 1),
    "a pipe that ends": in_shell("MONGE models | head -1", 0),
    "no file to translate": in_shell("MONGE translate nowhere - <&-", 1, 2),
    "a file of runs": in_shell(f"touch f; MONGE_RUNS=f MONGE {FIT_WORDS}", 1),
    "no place for runs": in_shell(f"MONGE_RUNS=/proc/none MONGE {FIT_WORDS}", 1),
}


SLOW = (
    "a full disk under export",
    "a folder that is read only",
    "twenty processes",
    "two comparisons",
)
"""Cases that take long, or fork a process that has threads."""


def attack(tries: int, seed: int, names: list[str] | None = None) -> list[str]:
    """The cases that failed, each in a line."""
    names = list(CASES) if names is None else names
    if tries < len(names):
        names = random.Random(seed).sample(names, tries)
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "here"
            folder.mkdir()
            failed += [f"{name}: {wrong}" for wrong in CASES[name](folder)]
    return failed


if __name__ == "__main__":
    main(__doc__, attack, len(CASES))
