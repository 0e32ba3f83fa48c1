"""How long to train: seconds, steps or epochs, in all or (with a plus) on top of what was done."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..core.error import WordError

SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
COUNTS = ("step", "epoch")


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
        match = re.fullmatch(r"(\+?)(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
        unit = match[3] if match else ""
        single = unit.removesuffix("s") or unit
        if match is None or not (unit in SECONDS or single in (*SECONDS, *COUNTS)):
            raise WordError(f"budget {text!r} is not understood; "
                            "write 90s, 5m, 500steps or 3epochs")
        amount, more = float(match[2]), bool(match[1])
        if amount <= 0:
            raise WordError(f"budget {text!r} leaves no time to train; give it more than 0")
        if single == "step" and amount < 1:
            raise WordError(f"budget {text!r} is too small for one step; give 1step or more")
        if single in COUNTS:
            return cls(more=more, **{f"{single}s": amount})
        return cls(more=more, seconds=amount * SECONDS.get(unit, SECONDS.get(single, 1)))

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
