"""A number that judges a fit, with what it is, so that no two kinds are ever compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

ScoreKind = Literal["exact", "bound", "estimate", "distance", "loss"]


@dataclass(frozen=True)
class Score:
    """A mean over rows with its standard error. Log-likelihoods (nats) are better when higher, a
    distance and a loss are better when lower."""

    value: float
    kind: ScoreKind
    stderr: float = 0.0
    unit: str = "nats"

    def better_than(self, other: Score | None) -> bool:
        if not math.isfinite(self.value):
            return False
        if other is None:
            return True
        lower = self.kind in ("distance", "loss")
        return self.value < other.value if lower else self.value > other.value

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "kind": self.kind, "unit": self.unit, "stderr": self.stderr}
