"""The rate as a function of the step alone, so that a resumed fit needs no state for it.

    constant  1
    cosine    (1 + cos(pi step / horizon)) / 2
    linear    1 - step / horizon
    inverse   sqrt(warmup / step) once the warm-up is over (Vaswani et al. 2017)

each times a linear warm-up.
"""

from __future__ import annotations

import math

from ..core.error import WordError
from ..core.recipe import Recipe


def factor(recipe: Recipe, step: int, horizon: float) -> float:
    """What multiplies the rate at this step."""
    rise = min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else 1.0
    if recipe.schedule == "constant":
        return rise
    if recipe.schedule == "inverse":
        return rise * min(1.0, math.sqrt(max(recipe.warmup, 1) / (step + 1)))
    done = min(step / horizon, 1.0)
    return rise * (1 - done if recipe.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def horizon(recipe: Recipe, steps: float) -> float:
    """Steps over which the schedule runs, given the steps of the budget."""
    length = recipe.horizon or steps
    if recipe.schedule in ("cosine", "linear") and not math.isfinite(length):
        raise WordError(f"train.schedule={recipe.schedule} needs its length: give the budget in "
                        "steps or epochs, or add train.horizon=5000")
    return length
