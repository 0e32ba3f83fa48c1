"""Metrics: a value with its kind, so that different kinds are never compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

MetricKind = Literal["exact", "bound", "estimate", "distance", "loss"]


@dataclass(frozen=True)
class Metric:
    """A mean over rows with its standard error. Log-likelihoods (nats) are better when higher, a
    distance and a loss are better when lower.

    Examples
    --------
    >>> import monge
    >>> monge.Metric(-2.0, "exact").better_than(monge.Metric(-3.0, "exact"))
    True
    """

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
        """Whether weights with this metric replace the best so far. A distance below its own error
        is not distinguishable from 0; then the later weights, trained for longer, are taken."""
        found = self.better_than(best)
        return found or (self.kind == "distance" and self.value < self.stderr)

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "kind": self.kind, "unit": self.unit, "stderr": self.stderr}
