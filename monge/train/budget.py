"""How long to train: seconds, steps or epochs, in all or (with a plus) on top of what was done."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..core.errors import UsageError

SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
}
COUNTS = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}


@dataclass(frozen=True)
class Budget:
    """The end of training; what is infinite does not end it."""

    seconds: float = math.inf
    steps: float = math.inf
    epochs: float = math.inf
    more: bool = False  # on top of what a resumed run has used

    @classmethod
    def read(cls, text: str) -> Budget:
        text = str(text)  # Python's users may forget the unit
        match = re.fullmatch(r"(\+?)(\d+(?:\.\d+)?)\s*(.*)", text.strip().lower())
        if match is None:
            raise UsageError(
                f"expected a number with a unit as budget, found {text!r}; write 90s, "
                "5m, 500steps or 3epochs"
            )
        unit, amount, more = match[3], float(match[2]), bool(match[1])
        if unit not in SECONDS and unit not in COUNTS:
            raise UsageError(
                f"expected budget {text!r} to end in one of the units s, m, h, steps "
                f"and epochs, found {unit or 'none'}; write 90s, 5m, 500steps or "
                "3epochs"
            )
        if not math.isfinite(amount):
            raise UsageError(f"budget {text!r} has no end; write a smaller number")
        if amount <= 0:
            raise UsageError(f"budget {text!r} leaves no time to train; give it more than 0")
        if COUNTS.get(unit) == "steps" and amount < 1:
            raise UsageError(f"budget {text!r} is too small for one step; give 1step or more")
        if unit in COUNTS:
            return cls(more=more, **{COUNTS[unit]: amount})
        return cls(more=more, seconds=amount * SECONDS[unit])

    def end(self, steps_an_epoch: int, step: int, seconds: float, limit: int) -> Budget:
        """The step and the second at which training ends; `limit` is the recipe's own end."""
        steps = min(self.steps, self.epochs * steps_an_epoch)
        if self.more:
            seconds, steps = self.seconds + seconds, steps + step
        else:
            seconds = self.seconds
        return Budget(seconds, min(steps, limit or math.inf))

    def fraction(self, step: int, seconds: float) -> float:
        """How much of it is used."""
        return max(step / self.steps, seconds / self.seconds)
