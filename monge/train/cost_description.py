"""The cost of a fit in one line: parameters, memory, time per epoch and what the budget allows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cost_estimate import Cost


UNITS = ("B", "kB", "MB", "GB", "TB")


def describe_cost_dict(saved: dict[str, Any], budget: str) -> str:
    """`describe_cost` of a cost that another process wrote as JSON."""
    from .cost_estimate import Cost

    return describe_cost(Cost.from_dict(saved), budget)


def describe_cost(cost: Cost, budget: str) -> str:
    """Parameters, memory and, if steps were timed, time per epoch and what the budget allows."""
    described = f"{cost.parameters} parameters, {size(cost.weights)} for weights"
    if cost.working:
        least = "at least " * cost.is_lower_bound
        described += f" and optimiser state ({least}{size(cost.memory)} with a step)"
    if cost.seconds_per_step is None or cost.epoch is None:
        return described
    return (
        f"{described}, {duration(cost.seconds_per_step)} per step, {duration(cost.epoch)} per "
        f"epoch of {cost.epoch_steps} step{'s' * (cost.epoch_steps > 1)}; "
        f"{describe_budget(cost, budget, cost.seconds_per_step)}"
    )


def describe_budget(cost: Cost, budget: str, seconds_per_step: float) -> str:
    """How many epochs and steps the budget allows."""
    from .budget import Budget

    limit = Budget.read(budget)
    steps = cost.steps(limit)
    if steps == cost.limit:
        noun = "step takes" if steps == 1 else "steps take"
        return f"its {steps} {noun} about {duration(steps * seconds_per_step)}"
    if math.isfinite(limit.seconds):
        epochs = steps / cost.epoch_steps
        noun = "step" if round(steps) == 1 else "steps"
        return f"budget {budget} is about {epochs:.3g} epochs ({steps:.0f} {noun})"
    return f"budget {budget} takes about {duration(steps * seconds_per_step)}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def size(count: float) -> str:
    """Bytes with a decimal prefix."""
    place = min(int(math.log(max(count, 1), 1000)), len(UNITS) - 1)
    return f"{count / 1000**place:.3g} {UNITS[place]}"
