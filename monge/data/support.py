"""The support of a column: may its cells be empty, which single values have a probability, and
between which natural bounds do its numbers lie.

All rows of all splits decide, so that every row of the data has a finite log-likelihood, and
every model of the data has the same support and the same dominating measure. Training rows alone
decide about statistics.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..core.space import Space

ATOM_SHARE = 0.03
"""Smallest share of the cells that an atom holds."""
ATOM_LEAD = 4.0
"""How many times as frequent as the next value an atom is: rounded numbers repeat, and no value
of them stands out."""
MAX_ATOMS = 3
"""Largest number of atoms of a column, apart from its bounds."""
LOWER_BOUND = 0.0
UPPER_BOUNDS = (1.0, 100.0)
"""Natural upper bounds of numbers that are not negative: a share and a percentage."""


def find_support(space: Space, x: Tensor, models_empty: bool) -> Space:
    """The space of a column of numbers x (N,), NaN where a cell is empty."""
    seen = x[~x.isnan()]
    if not len(seen):
        return space
    lower, upper = natural_bounds(seen, space.scale[0])
    atoms: list[float] = []
    if space.kind == "real":
        on_bounds = [
            end for end in (lower, upper) if end is not None and bool((seen == end).any())
        ]
        atoms = sorted({*frequent_values(seen), *on_bounds})
    return replace(
        space,
        optional=models_empty and len(seen) < len(x),
        atoms=tuple(atoms),
        lower=lower,
        upper=upper,
    )


def natural_bounds(seen: Tensor, scale: float) -> tuple[float | None, float | None]:
    """The natural bounds that all values obey and the nearest value is within `scale` of: farther
    away a bound excludes nothing that a model would sample."""
    low, high = (float(end) for end in seen.aminmax())
    if low < LOWER_BOUND:
        return None, None
    upper = next((end for end in UPPER_BOUNDS if end - scale < high <= end), None)
    lower = LOWER_BOUND if upper is not None or low - LOWER_BOUND < scale else None
    return lower, upper


def frequent_values(seen: Tensor) -> list[float]:
    """The values that hold a large share of the cells, far more than any other."""
    values, counts = seen.unique(return_counts=True)
    if len(values) <= MAX_ATOMS + 1:
        return []  # few values are levels of a scale
    counts, order = counts.sort(descending=True)
    shares, found = counts / len(seen), []
    for place in range(MAX_ATOMS):
        if shares[place] < ATOM_SHARE:
            break
        if shares[place] >= ATOM_LEAD * shares[place + 1]:
            found = values[order[: place + 1]].tolist()
    return found
