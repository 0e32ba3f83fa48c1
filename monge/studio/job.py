"""One job of the studio as a process of its own: waits for a free slot, then runs `monge`.

    python -P -m monge.studio.job FOLDER

The process outlives the studio. It holds the lock of its folder for as long as it lives, takes one
of as many slots as there are cores, oldest job first, and becomes `monge`, which saves its state
when it is asked to stop; nothing is left of it when it is killed. The slots are locks too, so that
two studios share one queue.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from ..core.files import replacing
from ..run.storage import is_locked

RECORD, LOCK, STARTED, ENDED, OUTPUT = "job.json", "lock", "started", "ended.json", "output.txt"
"""The files of a job: what was asked, its lock, that it runs, how it ended, what it printed."""
SLOT = "slot-{}"
WAIT = 0.3
"""Seconds between two looks at the queue."""


def cores() -> int:
    """Number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_first(folder: Path) -> bool:
    """Whether no older job waits for a slot."""
    for other in folder.parent.iterdir():
        if other.name >= folder.name or not (other / RECORD).exists():
            continue
        if not (other / STARTED).exists() and is_locked(other / LOCK):
            return False
    return True


def take_slot(folder: Path) -> FileLock:
    """Wait for a slot; it is free again when this process ends."""
    while True:
        for number in range(cores()):
            lock = FileLock(folder.parent / SLOT.format(number), blocking=False)
            if not is_first(folder):
                break
            try:
                lock.acquire()
            except Timeout:
                continue
            return lock
        time.sleep(WAIT)


def run_monge(args: list[str]) -> int:
    """The exit code of a command line in this process, which SIGTERM stops."""
    from ..train.loop import terminable  # imports torch, which a job that waits does not need

    sys.argv[:] = ["monge", *args]
    try:
        with terminable():
            runpy.run_module("monge", run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:  # before there was anything to save
        return 128 + signal.SIGTERM
    return 0


def main(args: list[str]) -> int:
    folder = Path(args[0])
    hold = FileLock(folder / LOCK)
    hold.acquire(timeout=10)
    about = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    slot = take_slot(folder)
    (folder / STARTED).touch()
    code = run_monge(about["args"])
    with replacing(folder / ENDED) as fresh:
        fresh.write_text(json.dumps({"code": code, "time": time.time()}), encoding="utf-8")
    slot.release()
    hold.release()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
