"""Training budget: seconds, steps or epochs, in total or (with a plus) on top of earlier use."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..core.errors import UsageError

SECONDS_PER_UNIT = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
}
COUNT_UNITS = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}


@dataclass(frozen=True)
class Budget:
    """Limits of training; infinity means no limit."""

    seconds: float = math.inf
    steps: float = math.inf
    epochs: float = math.inf
    more: bool = False  # in addition to what a resumed run has used

    @classmethod
    def read(cls, text: str) -> Budget:
        text = str(text)  # a number without a unit, from Python
        match = re.fullmatch(r"(\+?)(\d+(?:\.\d+)?)\s*(.*)", text.strip().lower())
        if match is None:
            raise UsageError(
                f"expected a number with a unit as budget, found {text!r}; write 90s, "
                "5m, 500steps or 3epochs"
            )
        unit, amount, more = match[3], float(match[2]), bool(match[1])
        if unit not in SECONDS_PER_UNIT and unit not in COUNT_UNITS:
            raise UsageError(
                f"expected budget {text!r} to end in one of the units s, m, h, steps "
                f"and epochs, found {unit or 'none'}; write 90s, 5m, 500steps or "
                "3epochs"
            )
        if not math.isfinite(amount):
            raise UsageError(f"expected a finite budget, found {text!r}; write a smaller number")
        if amount <= 0:
            raise UsageError(
                f"expected a budget above 0, found {text!r}; write 90s, 5m, 500steps or 3epochs"
            )
        if COUNT_UNITS.get(unit) == "steps" and amount < 1:
            raise UsageError(f"budget {text!r} is too small for one step; give 1step or more")
        if unit in COUNT_UNITS:
            return cls(more=more, **{COUNT_UNITS[unit]: amount})
        return cls(more=more, seconds=amount * SECONDS_PER_UNIT[unit])

    @staticmethod
    def check(text: str, epoch_steps: int) -> None:
        """Raise UsageError if a budget in epochs is less than one step. A budget in seconds always
        allows one: how long a step takes is not known before."""
        if Budget.read(text).epochs * epoch_steps < 1:
            raise UsageError(
                f"budget {text!r} is too small for one step of {epoch_steps} per epoch; "
                "give at least 1step"
            )

    def end(self, steps_per_epoch: int, step: int, seconds: float, limit: int) -> Budget:
        """The step and the second at which training ends; `limit` is train.max_steps (0: none)."""
        steps = min(self.steps, self.epochs * steps_per_epoch)
        if self.more:
            seconds, steps = self.seconds + seconds, steps + step
        else:
            seconds = self.seconds
        return Budget(seconds, min(steps, limit or math.inf))

    def fraction(self, step: int, seconds: float) -> float:
        """The fraction of the budget that is used."""
        return max(step / self.steps, seconds / self.seconds)

    def used(self, step: int, seconds: float, epoch: float) -> float:
        """The fraction of a budget as it was given that a fit has used."""
        return max(step / self.steps, seconds / self.seconds, epoch / self.epochs)
