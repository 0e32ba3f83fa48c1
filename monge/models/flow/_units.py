"""Standardised coordinates of flows: reals standardised, levels by a logit or standardised.

Tables have coordinates of their own (`_tables.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.space import Space
from ...prob.bijections.base import Bijection
from ...prob.bijections.elementwise import Logit, Standardise

MIN_DISCRETE_SCALE = 0.3
"""Smallest scale of discrete entries: that of uniform noise of width one."""


def value_count(space: Space) -> int:
    """The number of levels of an entry; 0 for reals and counts, which are unbounded."""
    return {"binary": 2, "levels": space.size}.get(space.kind, 0)


def value_limits(space: Space) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each discrete entry, each (D,); NaN for reals and
    columns."""
    size, whole = value_count(space), space.kind not in ("real", "columns")
    low = math.nan if not whole else 0.0 if size else -math.inf
    high = math.nan if not whole else size - 1.0 if size else math.inf
    return torch.full((space.dims,), low), torch.full((space.dims,), high)


def data_units(space: Space, margin: float) -> Bijection:
    """The map from standardised coordinates to the units of the data, (B, D)."""
    size = value_count(space)
    mean, scale = space.spread("mean").flatten(), space.spread("scale").flatten()
    if size and margin > 0:
        return Logit(torch.full((space.dims,), float(size)), margin)
    if space.kind != "real":
        mean, scale = mean + 0.5, scale.clamp_min(MIN_DISCRETE_SCALE)
    return Standardise(mean, scale)
