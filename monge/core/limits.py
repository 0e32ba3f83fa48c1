"""Limits that a model declares as literals of its class (`needs_given`, `max_codes`,
`max_label_combinations`), so that the registry knows without importing it which data it takes."""

from __future__ import annotations

import math
from typing import Any

from .space import Space


def exceeded(name: str, limits: Any, space: Space) -> str | None:
    """Why these data are beyond the limits of a model, or of its entry in the registry; None if
    they are not."""
    if limits.needs_given and not space.given:
        return (
            f"{name} predicts from conditions, and there are none; name the field to predict with "
            "--target"
        )
    if limits.max_codes:
        bins = default_bins(space)
        total = sum(code_count(part, bins) for part in space.parts)
        if total > limits.max_codes:
            return too_many_codes(limits, space, total)
    if limits.max_label_combinations:
        found = label_combinations(space)
        if found > limits.max_label_combinations:
            return (
                f"expected at most {limits.max_label_combinations} combinations of labels, found "
                f"{found} of {', '.join(space.given)}; give fewer"
            )
    return None


def too_many_codes(limits: Any, space: Space, total: int) -> str:
    return (
        f"expected at most {limits.max_codes} codes in all, found {total} in {space}; use "
        "baseline.independent or baseline.mixture"
    )


def default_bins(space: Space) -> int:
    """Few enough bins that a table of two entries has far fewer cells than there are rows."""
    return min(max(round(1.2 * space.rows ** (1 / 3)), 4), 64)


def label_combinations(space: Space) -> int:
    """How many combinations of labels the conditions can take."""
    return math.prod(part.size**part.dims for part in space.given.values())


def is_binned(part: Space, bins: int) -> bool:
    return part.kind in ("real", "counts") or (part.kind == "levels" and part.size > bins)


def code_count(part: Space, bins: int) -> int:
    """How many codes an entry has: an optional label has that of the empty cell in its size."""
    empty = part.optional and part.kind != "label"
    return base_count(part, bins) + len(part.atoms) + empty


def base_count(part: Space, bins: int) -> int:
    """How many codes an entry has besides its atoms and the empty cell."""
    if is_binned(part, bins):
        return bins
    return 2 if part.kind == "binary" else part.size
