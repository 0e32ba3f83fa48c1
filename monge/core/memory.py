"""Memory of the machine, and refusals of what does not fit into it."""

from __future__ import annotations

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
    return free


def require_memory(what: str, size: float, remedy: str) -> None:
    """Refuse a request that needs `size` bytes if the machine does not have them."""
    if size > (free := available()):
        raise UsageError(
            f"{what} needs {gigabytes(size)} of memory, found {gigabytes(free)}; {remedy}"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"
