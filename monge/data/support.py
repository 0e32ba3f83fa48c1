"""The support of a column: may its cells be empty, which single values have a probability, and
between which natural bounds do its numbers lie.

All rows of all splits decide, so that every row of the data has a finite log-likelihood, and
every model of the data has the same support and the same dominating measure. Training rows alone
decide about statistics.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..core.errors import DataError
from ..core.space import Space
from .codecs.base import Locator

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


MARGIN = 0.1
"""How close to 0 and to a natural upper bound numbers come, relative to it."""

Bounds = tuple[float | None, float | None]


def find_support(
    space: Space,
    x: Tensor,
    models_empty: bool,
    bounds: Bounds = (None, None),
    has_zero: bool = True,
) -> Space:
    """The space of a column of numbers x (N,), NaN where a cell is empty. `bounds` replace natural
    ones, which exist only if `has_zero`: the code 0 stands for the number 0."""
    seen = x[~x.isnan()]
    if not len(seen):
        return space
    natural = natural_bounds(seen, space.scale[0]) if has_zero else (None, None)
    lower, upper = (
        found if bound is None else bound for found, bound in zip(natural, bounds, strict=True)
    )
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


def refuse_outside(space: Space, x: Tensor, at: Locator) -> None:
    """DataError about the first number of a column x (N,) that is outside its bounds."""
    for end, sign, wrong in (
        (space.lower, "below the lower", x < (space.lower or 0.0)),
        (space.upper, "above the upper", x > (space.upper or 0.0)),
    ):
        if end is not None and bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise DataError(
                f"{at(row)}: {float(x[row]):.12g} is {sign} bound {end:g} of the data of the run; "
                "fix the cell, or refit with data.space=plain"
            )


def natural_bounds(seen: Tensor, scale: float) -> Bounds:
    """The natural bounds that all values obey and the nearest value is within `scale` of: farther
    away a bound excludes nothing that a model would sample."""
    low, high = (float(end) for end in seen.aminmax())
    if low < LOWER_BOUND:
        return None, None
    upper = next((end for end in UPPER_BOUNDS if is_share(low, high, end)), None)
    lower = LOWER_BOUND if upper is not None or low - LOWER_BOUND < scale else None
    return lower, upper


def is_share(low: float, high: float, end: float) -> bool:
    """Whether numbers from `low` to `high` are shares of `end`: they reach it, or come close to
    both 0 and it."""
    return high == end or (low <= MARGIN * end and (1 - MARGIN) * end <= high <= end)


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
