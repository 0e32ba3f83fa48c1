"""What the machine is."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


@functools.cache
def processor_lines() -> dict[str, str]:
    """What Linux says about the first processor; empty elsewhere."""
    about = Path("/proc/cpuinfo")
    if not about.exists():
        return {}
    first = about.read_text(encoding="utf-8").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def processor_name() -> str:
    """The processor, such as AMD EPYC; elsewhere than on Linux Python knows the name."""
    return processor_lines().get("model name") or platform.processor() or platform.machine()


def processor_maker() -> str:
    """The maker as the processor gives it, such as GenuineIntel; empty if it is not known."""
    found = processor_lines().get("vendor_id", "")
    return found or platform.processor().rpartition(", ")[2]
