"""Memory of the machine, and refusals of what does not fit into it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from .errors import UsageError

MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""File with the memory limit of a Linux container."""


def available() -> int:
    """Bytes of memory available."""
    try:
        listed = dict(
            line.split(":")
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        )
        free = 1024 * int(listed["MemAvailable"].removesuffix("kB"))
    except (OSError, ValueError, KeyError):  # not on Linux
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in MEMORY_LIMITS:
        if (
            os.path.isfile(path)
            and (bound := Path(path).read_text(encoding="ascii")).strip().isdigit()
        ):
            free = min(free, int(bound))
    return int(max(min(free, memory_limit() - used()), 0))


def memory_limit() -> float:
    """Bytes of addresses that this process may have (`ulimit -v`); infinity if there is no limit
    or the system has none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def used() -> int:
    """Bytes of addresses that this process has, on Linux; 0 elsewhere."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def require_memory(what: str, size: float, remedy: str) -> None:
    """Refuse a request that needs `size` bytes if the machine does not have them."""
    if size > (free := available()):
        raise UsageError(
            f"{what} needs {gigabytes(size)} of memory, found {gigabytes(free)}; {remedy}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the system gave no more memory; C++ libraries and torch have no
    class of their own for that."""
    signs = (
        "bad_alloc",
        "can't allocate memory",
        "Cannot allocate memory",
        "out of memory",
        "failed to map segment",
        "can't start new thread",
    )
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"
