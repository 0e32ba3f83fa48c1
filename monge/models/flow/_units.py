"""Standardised coordinates of flows: reals standardised, levels by a logit or standardised."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.space import Space
from ...prob.bijections.base import Bijection, Blockwise
from ...prob.bijections.elementwise import Logit, Standardise

MIN_DISCRETE_SCALE = 0.3
"""Smallest scale of discrete entries: that of uniform noise of width one."""


def level_counts(space: Space) -> Tensor:
    """The number of levels of each entry, (D,); 0 for reals and counts, which are unbounded."""
    known = {"binary": 2, "levels": space.size}
    if space.kind != "columns":
        return torch.full((space.dims,), known.get(space.kind, 0))
    finite = ("binary", "levels", "label")
    return torch.tensor(
        [
            2 if part.kind == "binary" else part.size if part.kind in finite else 0
            for part in space.columns
        ]
    )


def discrete_mask(space: Space) -> Tensor:
    """Which entries are discrete, (D,)."""
    kinds = [part.kind for part in space.columns] or [space.kind] * space.dims
    return torch.tensor([kind != "real" for kind in kinds])


def value_limits(space: Space) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each discrete entry, NaN for reals, each (D,)."""
    size, whole = level_counts(space).to(torch.get_default_dtype()), discrete_mask(space)
    low = torch.where(size > 0, 0.0, -torch.inf)
    high = torch.where(size > 0, size - 1, torch.inf)
    return torch.where(whole, low, math.nan), torch.where(whole, high, math.nan)


def data_units(space: Space, margin: float) -> Bijection:
    """The map from standardised coordinates to the units of the data, (B, D)."""
    size, whole = level_counts(space), discrete_mask(space)
    mean, scale = space.spread("mean").flatten(), space.spread("scale").flatten()
    mean = torch.where(whole, mean + 0.5, mean)
    scale = torch.where(whole, scale.clamp_min(MIN_DISCRETE_SCALE), scale)
    squashed = (size > 0) & (margin > 0)
    entries = [places.nonzero()[:, 0] for places in (~squashed, squashed)]
    plain, ended = entries
    parts: list[Bijection] = [
        Standardise(mean[plain], scale[plain]),
        Logit(size[ended].to(mean.dtype), margin),
    ]
    used = [number for number in (0, 1) if len(entries[number])]
    if len(used) == 1:
        return parts[used[0]]
    return Blockwise([parts[k] for k in used], [entries[k] for k in used])
