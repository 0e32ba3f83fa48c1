"""A number that judges a fit, with what it is, so that no two kinds are ever compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

MetricKind = Literal["exact", "bound", "estimate", "distance", "loss"]


@dataclass(frozen=True)
class Metric:
    """A mean over rows with its standard error. Log-likelihoods (nats) are better when higher, a
    distance and a loss are better when lower."""

    value: float
    kind: MetricKind
    stderr: float = 0.0
    unit: str = "nats"

    def better_than(self, other: Metric | None) -> bool:
        if not math.isfinite(self.value):
            return False
        if other is None:
            return True
        lower = self.kind in ("distance", "loss")
        return self.value < other.value if lower else self.value > other.value

    def replaces(self, best: Metric | None) -> bool:
        """Whether weights with this score are kept instead of the best before them. A distance
        below its own error cannot be told from none: there the later weights, which have seen
        more, are kept."""
        found = self.better_than(best)
        return found or (self.kind == "distance" and self.value < self.stderr)

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "kind": self.kind, "unit": self.unit, "stderr": self.stderr}
