"""One writer per folder: a lock that the system releases when its process ends, however it ends.

filelock takes the lock with flock (msvcrt on Windows). Its soft lock, a file that a killed process
would leave behind, is never used: a file system without locks is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..core.error import RunError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for as long as the block lasts."""
    lock = FileLock(folder / ".lock", blocking=False, fallback_to_soft=False)
    try:
        os.stat(os.path.join(folder, ""))  # filelock would make a folder that is not there
        hold = lock.acquire()
    except Timeout:
        raise RunError(f"{folder} is being trained by another process; wait for it, or start "
                       "a run of its own with --out") from None
    except OSError as error:
        raise RunError(f"cannot write in {folder} ({error.strerror}); choose another with --out "
                       "or MONGE_RUNS") from error
    with hold:
        yield
