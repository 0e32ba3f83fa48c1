"""Mean, scale and range of training rows, without a second copy of them."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

LOWEST = {torch.uint8: 0, torch.int16: -(2**15)}
"""The types whose values are counted, with the lowest of each."""
PIECE = 2**22
"""Numbers counted at once."""


class Moments(TypedDict):
    """What a Space says of values, one number for each group of entries."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class Statistics(Moments):
    """What it says of rows."""

    rows: int
    missing: bool


def statistics(x: Tensor, groups: int) -> Statistics:
    """Of rows x (N, groups * anything); NaN counts as not seen."""
    parts = [group.flatten() for group in x.reshape(len(x), groups, -1).unbind(1)]
    found = [of_levels(part) if x.dtype in LOWEST else of_numbers(part) for part in parts]
    mean, scale, low, high = (tuple(column) for column in zip(*found, strict=True))
    return Statistics(
        mean=mean,
        scale=scale,
        low=low,
        high=high,
        rows=len(x),
        missing=x.is_floating_point() and bool(x.isnan().any()),
    )


def of_numbers(x: Tensor) -> tuple[float, ...]:
    """mean, scale, low, high; those of zeros where nothing was seen."""
    seen = x[~x.isnan()].double()
    if not len(seen):
        return 0.0, 1.0, 0.0, 0.0
    low, high = seen.aminmax()
    scale = float(seen.std(correction=0)) if low < high else 1.0
    return float(seen.mean()), scale, float(low), float(high)


def of_levels(x: Tensor) -> tuple[float, ...]:
    """The same from how often each of 256 or 65536 values occurs."""
    low, size = LOWEST[x.dtype], 256 if x.dtype == torch.uint8 else 65536
    parts = x.split(PIECE) if len(x) else [x]
    count = torch.stack([torch.bincount(part.int() - low, minlength=size) for part in parts])
    count = count.sum(0).double()
    levels = torch.arange(size).double() + low
    mean = (count @ levels) / count.sum()
    scale = ((count @ (levels - mean) ** 2) / count.sum()).sqrt()
    seen = levels[count > 0]
    return float(mean), float(scale) or 1.0, float(seen[0]), float(seen[-1])
