"""Metrics: a value with its kind, so that different kinds are never compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, get_args

from .errors import shown

MetricKind = Literal["exact", "bound", "estimate", "distance", "loss"]
FIELDS = ("value", "kind", "stderr", "unit")


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
        """Whether it is finite and better than another, or than none."""
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

    @classmethod
    def from_dict(cls, saved: Any) -> Metric:
        """What `to_dict` returned; ValueError if it cannot be that."""
        found = cls(**saved) if isinstance(saved, dict) and {*saved} <= {*FIELDS} else None
        if (
            found is None
            or found.kind not in get_args(MetricKind)
            or not isinstance(found.unit, str)
            or not all(type(number) in (int, float) for number in (found.value, found.stderr))
        ):
            raise ValueError(f"expected a metric, found {shown(saved)}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Its parts as values that JSON can hold."""
        return {"value": self.value, "kind": self.kind, "unit": self.unit, "stderr": self.stderr}


def with_error(stderr: float | None, digits: int = 0) -> str:
    """The standard error after a value, with four decimals or so many significant digits; nothing
    if there is none, as of a single row."""
    if stderr is None or not math.isfinite(stderr):
        return ""
    if not digits:
        return f" ± {stderr:.4f}"
    return f" ± {float(f'{stderr:.{digits}g}'):g}" if stderr else ""


class Metrics(dict[str, Metric]):
    """Metrics by name, shown as a table.

    Examples
    --------
    >>> Metrics(energy=Metric(0.25, "distance", 0.01, "energy"))
    energy  0.25 ± 0.01  energy  distance
    """

    @property
    def lines(self) -> list[tuple[str, str, str, str]]:
        """The name, the value with its error, the unit and the kind of each."""
        return [
            (
                name,
                f"{each.value:.4g}" + (f" ± {each.stderr:.2g}" if each.stderr > 0 else ""),
                each.unit,
                each.kind,
            )
            for name, each in self.items()
        ]

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in self.lines)

    def _repr_html_(self) -> str:
        rows = (
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
            for line in self.lines
        )
        return f"<table>{''.join(rows)}</table>"
