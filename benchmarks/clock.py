"""What benchmarks measure with: CPU time of this process, told as a median with its spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def timed(work: Callable[[], object]) -> float:
    """Seconds of CPU time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def told(times: list[float], digits: int = 1) -> str:
    """Median and, in brackets, lowest and highest."""
    low, middle, high = (1e3 * t for t in (min(times), statistics.median(times), max(times)))
    return f"{middle:10.{digits}f} ms ({low:.{digits}f} to {high:.{digits}f})"
