"""What identities are measured with: random numbers, and how far apart two sides are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def gap(left: Tensor, right: Tensor) -> float:
    """The largest difference of two entries."""
    return float((left - right).detach().abs().amax())


def most(*values: float | Iterable[float]) -> float:
    """The largest of several numbers; unlike `max`, it does not lose one that is no number."""
    each = [v for value in values for v in ([value] if isinstance(value, float | int) else value)]
    return float(torch.tensor(each, dtype=torch.float64).amax())
