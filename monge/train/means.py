"""Values noted step by step as tensors and read all at once, since each reading stalls."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def means(noted: list[tuple[int, str, Tensor]]
          ) -> tuple[dict[str, float], tuple[int, str, float] | None]:
    """The mean of what was noted under each name, and the first value that is not finite."""
    values = torch.stack([value.float() for *_, value in noted]).tolist() if noted else []
    sums: dict[str, list[float]] = {}
    for (step, name, _), value in zip(noted, values, strict=True):
        if not math.isfinite(value):
            return {}, (step, name, value)
        sums.setdefault(name, []).append(value)
    return {name: sum(entries) / len(entries) for name, entries in sums.items()}, None
