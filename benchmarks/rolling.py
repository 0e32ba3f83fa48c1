"""Coverage of 80 % intervals of linear_ar, fitted anew at each of many origins of a series.

    MONGE_DATA=folder python -m benchmarks.rolling
    python -m benchmarks.rolling series.csv --column 2 --origins 16 --horizon 12

The test rows of one split of a short series are windows that overlap: of 144 months, the last 28.
Their coverage says little, since most windows hold the same months. Here the model is fitted to
all values before an origin, and the origins spread over the second half of the series. The
standard error is that over origins.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.sequence.linear_ar import LinearAR

ENDS = (0.1, 0.9)
DRAWS = 2000
KNOWN = (("airline-passengers.csv", 13), ("monthly-sunspots.csv", 24))
"""Series of a folder `series`, with the highest order: half of a default window."""


def inside(x: Tensor, origin: int, horizon: int, max_order: int) -> Tensor:
    """Which of the `horizon` values after the origin lie in their intervals, (horizon,)."""
    past = x[:origin]
    statistics = {"mean": (float(past.mean()),), "scale": (float(past.std()),)}
    fitted = LinearAR.Config(max_order=max_order).build(
        Space(kind="real", shape=(origin,), **statistics)
    )
    fitted.double().fit(Batch(past[None]))
    whole = LinearAR.Config(max_order=max_order).build(
        Space(kind="real", shape=(origin + horizon,), **statistics)
    )
    whole.double().load_state_dict(fitted.state_dict())
    rows = x[: origin + horizon].repeat(DRAWS, 1)
    seen = torch.arange(origin + horizon) < origin
    drawn = whole.complete(
        Batch(rows, observed=seen.expand_as(rows)), generator=make_generator(origin)
    )[:, origin:]
    low, high = (drawn.quantile(end, 0) for end in ENDS)
    return (low <= rows[0, origin:]) & (rows[0, origin:] <= high)


def coverage(x: Tensor, origins: int, horizon: int, max_order: int) -> tuple[float, float]:
    """The share of values in their intervals, and its standard error over origins."""
    places = torch.linspace(len(x) // 2, len(x) - horizon, origins).long().tolist()
    each = torch.stack([inside(x, place, horizon, max_order) for place in places]).double()
    return float(each.mean()), float(each.mean(1).std() / len(each) ** 0.5)


def read(path: Path, column: int) -> Tensor:
    with path.open() as lines:
        rows = list(csv.reader(lines))[1:]
    return torch.tensor([float(row[column - 1]) for row in rows], dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="csv file with a header")
    parser.add_argument("--column", type=int, default=2, help="number of the column of values")
    parser.add_argument("--origins", type=int, default=16)
    parser.add_argument("--horizon", type=int, default=12)
    parser.add_argument("--max-order", type=int, default=24)
    own = parser.parse_args()
    folder = Path(os.environ.get("MONGE_DATA", ".")) / "series"
    chosen = [(own.file, own.max_order)] if own.file else [(folder / n, p) for n, p in KNOWN]
    for path, most in chosen:
        share, error = coverage(read(path, own.column), own.origins, own.horizon, most)
        print(f"{path.stem:22} coverage of 80 % intervals {share:.3f} ± {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
