"""Reading csv files compared with pandas.read_csv: ratio of processor time, and peak memory.

    python -m benchmarks.csv_reading                # 200 000 rows; seconds
    python -m benchmarks.csv_reading --rows 1000000

Monge also finds the line of every row and rejects rows of another width, which pandas does not.
Each measurement runs in a separate process. Time is the shortest of five reads; memory is the
growth of the peak (the resulting table included) as a multiple of the size of the file, for the
first read. Memory needs Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

MEASURE = """
import sys, time
from pathlib import Path
import pandas as pd
from monge.data.options import Options
from monge.data.readers import delimited
path, ours = Path(sys.argv[1]), sys.argv[2] == "ours"

def resident(which):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(which + ":"))

def read(path):
    start = time.process_time()
    delimited.read(path, Options()) if ours else pd.read_csv(path)
    return time.process_time() - start

small = path.with_name("small.csv")
small.write_text("a,b\\n1,x\\n2,y\\n")
read(small)  # whatever is imported or allocated once
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = resident("VmRSS")
seconds = [read(path)]
memory = resident("VmHWM") - before
print(min(seconds + [read(path) for _ in range(4)]), memory / path.stat().st_size)
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
        f"{'':10}{'pandas s':>10}{'monge s':>10}{'ratio':>8}{'pandas memory':>16}"
        f"{'monge memory':>15}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, line in COLUMNS.items():
            path = Path(folder) / f"{name}.csv"
            path.write_text("a,b,c,d\n" + "\n".join(map(line, range(rows))) + "\n")
            theirs, ours = (measure(path, which) for which in ("pandas", "ours"))
            print(
                f"{name:10}{theirs[0]:10.3f}{ours[0]:10.3f}{ours[0] / theirs[0]:8.2f}"
                f"{theirs[1]:15.1f}x{ours[1]:14.1f}x",
                flush=True,
            )


def measure(path: Path, which: str) -> tuple[float, float]:
    """Seconds, and memory as a multiple of the size of the file, of one reader."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), which],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory


if __name__ == "__main__":
    main()
