"""What benchmarks measure with: CPU time of works that take turns in one process, told as medians
with their spread, as ratios, and as the power of a size that a time grows with."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Work = Callable[[], object]
Times = dict[str, list[float]]


def timed(work: Work) -> float:
    """Seconds of CPU time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def turns(works: Mapping[str, Work], rounds: int, warm: int = 1) -> Times:
    """CPU times of works that take turns (A/B/A/B), after so many unmeasured rounds."""
    times: Times = {name: [] for name in works}
    for number in range(warm + rounds):
        for name, work in works.items():
            spent = timed(work)
            if number >= warm:
                times[name].append(spent)
    return times


def told(times: Sequence[float], digits: int = 1) -> str:
    """Median and, in brackets, lowest and highest."""
    low, middle, high = (1e3 * t for t in (min(times), statistics.median(times), max(times)))
    return f"{middle:10.{digits}f} ms ({low:.{digits}f} to {high:.{digits}f})"


def ratios(times: Times) -> dict[str, float]:
    """The median of each over that of the first."""
    first = statistics.median(next(iter(times.values())))
    return {name: statistics.median(each) / first for name, each in times.items()}


def show(
    times: Times, notes: Mapping[str, str] | None = None, digits: int = 1, head: str = "  "
) -> None:
    """A line of each: its time, how many times that of the first it is, and what else is known."""
    wide = max(map(len, times)) + 1
    for name, ratio in ratios(times).items():
        line = f"{head}{name:{wide}}{told(times[name], digits)}  ratio {ratio:.2f}"
        print(f"{line}  {(notes or {}).get(name, '')}".rstrip(), flush=True)


def power(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The exponent of the power law that times follow over sizes, by least squares."""
    logs = [[math.log(value) for value in values] for values in (sizes, times)]
    return statistics.linear_regression(*logs).slope
