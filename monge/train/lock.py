"""One writer a folder: a lock that the system releases when its process ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..core.error import RunError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for as long as the block lasts."""
    try:
        file = open(folder / ".lock", "a+")  # noqa: SIM115 - held open for the lock's life
    except OSError as error:
        raise RunError(f"cannot write in {folder} ({error.strerror}); choose another with --out "
                       "or MONGE_RUNS") from error
    with file:
        if not take(file):
            raise RunError(f"{folder} is being trained by another process; wait for it, or start "
                           "a run of its own with --out")
        yield


def take(file: IO[str]) -> bool:
    """Whether the lock was free; it lasts until the file is closed."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
