"""A crash at every operation on files of a fit: whatever prefix of them was done, the run resumes.

    python tests/attack/save_crashes.py [--tries 1000] [--seed 0]

A fit makes its folder, trains and saves its log, checkpoints, card and findings. One try does the
first k of its operations (open, write, flush, rename, remove, make a folder), then nothing reaches
the disk any more, and the file written last is torn. The folder must then be readable, and
resuming must end with the weights of an unbroken fit, with no half-written file left.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from attacking import main
from kills import differences, left_behind, state

import monge
from monge.run import session, storage
from monge.run.run import start
from monge.train import checkpoint

STEPS = 4
DATA, OFTEN = "moons", ("train.batch_size=16", "train.eval_every=1")


class Crash(BaseException):
    """Not an error that anything handles."""


class Disk:
    """Counts the operations on files below a folder; from number `at` on, none is done."""

    def __init__(self, folder: Path, at: float = float("inf"), torn: float = 1.0) -> None:
        self.folder, self.at, self.torn, self.count = str(folder), at, torn, 0
        self.last: tuple[str, int] | None = None  # the file written last, and its size before

    def operate(self, path: Any = None) -> None:
        if path is not None and not str(path).startswith(self.folder):
            return
        if self.count >= self.at:
            if self.last and os.path.isfile(self.last[0]):  # keeps a part of what it was given
                name, before = self.last
                size = os.stat(name).st_size
                os.truncate(name, min(size, before + int(self.torn * max(size - before, 0))))
            self.last = None
            raise Crash
        self.count += 1

    def write(self, path: Any, anew: bool = True) -> None:
        """A file is about to be written, anew or after what it holds."""
        self.operate(path)
        kept = os.stat(path).st_size if not anew and os.path.isfile(path) else 0
        self.last = (str(path), kept)

    @contextlib.contextmanager
    def faulty(self) -> Iterator[None]:
        """Every operation on a file inside the block is counted, and refused after the crash."""

        def opening(real: Callable, writes: Callable[..., bool]) -> Callable:
            def opened(path: Any, *args: Any, **named: Any) -> Any:
                if isinstance(path, str | os.PathLike) and writes(*args, **named):
                    self.write(path, anew="w" in str(args[:1]))
                return real(path, *args, **named)

            return opened

        def before(real: Callable, path: int | None = 0, ends: bool = False) -> Callable:
            def called(*args: Any, **named: Any) -> Any:
                self.operate(None if path is None else args[path])
                found = real(*args, **named)
                self.last = None if ends else self.last  # what is flushed is not torn
                return found

            return called

        def saving(tensors: Any, path: Path, *rest: Any) -> None:
            self.write(path)
            save_file(tensors, path, *rest)

        def is_mode(mode: str = "r", *_: Any, **__: Any) -> bool:
            return not {*mode}.isdisjoint("wax+")

        def is_flag(flags: int, *_: Any, **__: Any) -> bool:
            return bool(flags & (os.O_WRONLY | os.O_RDWR))

        save_file = checkpoint.save_file
        with contextlib.ExitStack() as stack:
            for where, name, fake in (
                (builtins, "open", opening(builtins.open, is_mode)),
                (io, "open", opening(io.open, is_mode)),
                (os, "open", opening(os.open, is_flag)),
                (os, "fsync", before(os.fsync, None, ends=True)),
                (os, "replace", before(os.replace)),
                (os, "rename", before(os.rename)),
                (os, "unlink", before(os.unlink)),
                (os, "mkdir", before(os.mkdir)),
                (os, "rmdir", before(os.rmdir)),
                (os, "chmod", before(os.chmod)),
                (checkpoint, "save_file", saving),
                (session, "SAVE_EVERY", 0.0),
            ):
                stack.enter_context(mock.patch.object(where, name, fake))
            yield


def fit(folder: Path) -> None:
    """Start or resume a fit, as the command line does."""
    if (folder / "run.json").exists():
        run = monge.load(folder)
    else:
        settings = ("width=4", "depth=1", "data.rows=60", *OFTEN)
        run = start("made", DATA, *settings, out=folder)
    for _ in run.train(f"{STEPS}steps"):
        pass
    run.diagnose()


def count(folder: Path) -> int:
    """How many operations the whole fit takes."""
    disk = Disk(folder.parent)
    with disk.faulty():
        fit(folder)
    return disk.count


def crash(folder: Path, at: int, torn: float, expected: dict) -> list[str]:
    """What is wrong with a run whose fit crashed at this operation."""
    with Disk(folder.parent, at, torn).faulty(), contextlib.suppress(Crash, Exception):
        fit(folder)
    try:
        if folder.exists():
            monge.load(folder)
        fit(folder)
    except Exception as error:  # what this script looks for
        return [f"{error!r:.200}"]
    wrong = [f"differs in {name}" for name in differences(expected, state(folder))]
    wrong += [f"left {name}" for name in left_behind(folder)]
    return wrong + (["is locked"] if storage.is_locked(folder / ".lock") else [])


def attack(tries: int, seed: int) -> list[str]:
    """The crashes from which the run did not recover, each in a line: all operations in order if
    there are at least as many tries as operations, else some of them."""
    chance, failed = random.Random(seed), []
    with tempfile.TemporaryDirectory() as scratch:
        operations = count(Path(scratch) / "whole" / "run")
        expected = state(Path(scratch) / "whole" / "run")
        each = [number % operations for number in range(tries)]
        if tries < operations:
            each = chance.sample(range(operations), tries)
        for number, at in enumerate(each):
            folder = Path(scratch) / str(number) / "run"
            wrong = crash(folder, at, chance.choice((0.0, chance.random(), 1.0)), expected)
            failed += [f"operation {at} of {operations}: {each}" for each in wrong]
            shutil.rmtree(folder.parent, ignore_errors=True)
    return failed


if __name__ == "__main__":
    main(__doc__, attack, 1000)
