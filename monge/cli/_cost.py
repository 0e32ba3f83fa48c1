"""What a fit will cost, as a person reads it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..train.cost_estimate import Cost


UNITS = ("B", "kB", "MB", "GB", "TB")


def priced_row(told: dict[str, Any], budget: str) -> str:
    """The same of a cost that another process has told."""
    from ..train.cost_estimate import Cost

    return priced(Cost.from_dict(told), budget)


def priced(cost: Cost, budget: str) -> str:
    """Parameters, time, memory, and what the budget buys, in one line."""
    return (
        f"{cost.parameters} parameters, {duration(cost.epoch)} an epoch of "
        f"{cost.epoch_steps} step{'s' * (cost.epoch_steps > 1)}, {size(cost.memory)} of "
        f"memory ({size(cost.weights)} for weights and moments); {bought(cost, budget)}"
    )


def bought(cost: Cost, budget: str) -> str:
    """How far the budget reaches."""
    from ..train.budget import Budget

    limit = Budget.read(budget)
    steps = cost.steps(limit)
    if steps == cost.limit:
        takes = "step takes" if steps == 1 else "steps take"
        return f"its {steps} {takes} about {duration(steps * cost.step)}"
    if math.isfinite(limit.seconds):
        epochs = steps / cost.epoch_steps
        return f"{budget} buys at most {epochs:.3g} epochs ({steps:.0f} steps)"
    return f"{budget} takes about {duration(steps * cost.step)}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def size(count: float) -> str:
    """Bytes in the unit that suits them."""
    place = min(int(math.log(max(count, 1), 1000)), len(UNITS) - 1)
    return f"{count / 1000**place:.3g} {UNITS[place]}"
