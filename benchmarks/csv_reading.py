"""Reading csv files beside pandas.read_csv: ratios of time and of peak memory.

    python -m benchmarks.csv_reading                # 200 000 rows; seconds
    python -m benchmarks.csv_reading --rows 1000000

Ours finds the line of every row and refuses rows of another width, which pandas does not. Each
measurement is a process of its own; time is the shorter of two, memory is the growth of the peak.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

MEASURE = """
import resource, sys, time
from pathlib import Path
import pandas as pd
from monge.data.options import Options
from monge.data.readers import delimited
path, ours = Path(sys.argv[1]), sys.argv[2] == "ours"
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, seconds = peak(), []
for _ in range(2):
    start = time.perf_counter()
    found = delimited.read(path, Options()).frame if ours else pd.read_csv(path)
    seconds.append(time.perf_counter() - start)
    del found
print(min(seconds), max(peak() - before, 1e-3))
"""
COLUMNS = {
    "numbers": lambda i: f"{i * 0.37 % 5:.6f},{i % 1000},{i * 1.1:.3f},{-i * 0.01:.4f}",
    "mixed": lambda i: f"{i * 0.37 % 5:.6f},{'xyz'[i % 3]},{i % 1000},{'yes' if i % 2 else 'no'}",
    "missing": lambda i: f"{'' if i % 9 == 0 else i},{i * 0.5},{'ab' if i % 7 else ''},{i % 3}",
    "dates": lambda i: f"20{i % 90 + 10}-{i % 12 + 1:02}-01,{i},{i * 0.1:.1f},{i % 5}",
    "quoted": lambda i: f'"a, b {i % 50}",{i},{i * 0.1:.1f},"c ""d"""',
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    print(
        f"{'':10}{'pandas s':>10}{'ours s':>10}{'ratio':>8}{'pandas MB':>12}{'ours MB':>10}"
        f"{'ratio':>8}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, line in COLUMNS.items():
            path = Path(folder) / f"{name}.csv"
            path.write_text("a,b,c,d\n" + "\n".join(map(line, range(rows))) + "\n")
            theirs, ours = (measure(path, which) for which in ("pandas", "ours"))
            print(
                f"{name:10}{theirs[0]:10.3f}{ours[0]:10.3f}{ours[0] / theirs[0]:8.2f}"
                f"{theirs[1]:12.1f}{ours[1]:10.1f}{ours[1] / theirs[1]:8.2f}",
                flush=True,
            )


def measure(path: Path, which: str) -> tuple[float, float]:
    """Seconds and megabytes of one reader, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), which],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


if __name__ == "__main__":
    main()
