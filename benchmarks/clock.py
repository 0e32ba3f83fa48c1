"""Timing for benchmarks: CPU times of functions that alternate in one process, as medians with
their range, as ratios, and as the exponent by which a time grows with a size."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Work = Callable[[], object]
Times = dict[str, list[float]]
measured: dict[str, float] = {}
"""The ratios that were shown under a name, which a benchmark keeps at its end."""


def timed(work: Work) -> float:
    """Seconds of CPU time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def alternate(works: Mapping[str, Work], rounds: int, warm: int = 1, again: bool = False) -> Times:
    """CPU times of functions run alternately (A/B/A/B), after `warm` unmeasured rounds. With
    `again` each runs once more right before every measured run, so that the system has handed out
    the memory it takes: of tens of megabytes that can cost more than what is computed."""
    times: Times = {name: [] for name in works}
    for number in range(warm + rounds):
        for name, work in works.items():
            if again:
                work()
            spent = timed(work)
            if number >= warm:
                times[name].append(spent)
    return times


def format_times(times: Sequence[float], digits: int = 1) -> str:
    """The median and, in brackets, the range."""
    low, middle, high = (1e3 * t for t in (min(times), statistics.median(times), max(times)))
    return f"{middle:10.{digits}f} ms ({low:.{digits}f} to {high:.{digits}f})"


def ratios(times: Times) -> dict[str, float]:
    """The median of each divided by that of the first."""
    first = statistics.median(next(iter(times.values())))
    return {name: statistics.median(each) / first for name, each in times.items()}


def show(
    times: Times,
    notes: Mapping[str, str] | None = None,
    digits: int = 1,
    head: str = "  ",
    name: str = "",
    shared: str = "",
) -> None:
    """Print one line each: its time, its ratio to the first, and a note. Under a name the ratios
    are measured values. `shared` is the side that does only what all of them have to do: the time
    of a peer over its time is the largest ratio that any code could reach, kept as its limit."""
    found = ratios(times)
    for side in list(times)[1:] if name else ():
        record(f"{name} {side}", found[side])
        if shared in found and side != shared:
            record(f"{name} {side} limit", found[side] / found[shared])
    wide = max(map(len, times)) + 1
    for name, ratio in found.items():
        line = f"{head}{name:{wide}}{format_times(times[name], digits)}  ratio {ratio:.2f}"
        if shared in found and name != shared:
            line += f"  limit {ratio / found[shared]:.2f}"
        print(f"{line}  {(notes or {}).get(name, '')}".rstrip(), flush=True)


def record(name: str, value: float) -> None:
    """A value to be kept: `measured["log_prob_zuko"]`."""
    measured[re.sub(r"\W+", "_", name).strip("_")] = value


def power(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The exponent of the power law that times follow over sizes, by least squares."""
    logs = [[math.log(value) for value in values] for values in (sizes, times)]
    return statistics.linear_regression(*logs).slope
