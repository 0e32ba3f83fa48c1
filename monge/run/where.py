"""Samples of a table that satisfy conditions on its columns: sex=female, age>60, pclass=1,2.

Rows are sampled and kept where every condition holds: exactly the distribution of the model given
the conditions, at the cost of the rows that are thrown away. Where few rows are kept and the model
can complete rows, columns that are fixed to one value are set, and the others are completed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.abilities import CanComplete
from ..core.batch import Batch
from ..core.errors import DataError, UsageError, nearest
from ..data.codecs.scalar import MISSING, Categorical, listed
from ..data.dataset import View

Comparison = Literal["=", "!=", "<", "<=", ">", ">="]
CONDITION = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>!=|<=|>=|=|<|>)\s*(?P<value>.*?)\s*$", re.S)
FIRST_TRY = 2000
"""Rows sampled to see how often the conditions hold."""
MAX_TRIES = 200_000
"""Rows sampled before conditions that never hold are given up."""
RARE = 0.02
"""Share of kept rows below which fixed columns are set and the rest is completed."""

Where = Mapping[str, Any] | Sequence[str] | str


@dataclass(frozen=True)
class ColumnCondition:
    """A comparison of a column with one or, for = and !=, several values. An empty cell satisfies
    none."""

    name: str
    sign: Comparison
    codes: tuple[float, ...]  # as the column is encoded
    text: str

    def holds(self, column: Tensor) -> Tensor:  # (n,) -> (n,)
        values = torch.tensor(self.codes, dtype=column.dtype, device=column.device)
        match self.sign:
            case "=":
                return torch.isin(column, values)
            case "!=":
                return ~torch.isin(column, values) & ~column.isnan()
            case "<":
                return column < values[0]
            case "<=":
                return column <= values[0]
            case ">":
                return column > values[0]
            case ">=":
                return column >= values[0]

    @property
    def fixed(self) -> float | None:
        return self.codes[0] if self.sign == "=" and len(self.codes) == 1 else None


@dataclass(frozen=True)
class ConditionalSamples:
    """Samples given conditions, and how they were made."""

    x: Tensor  # (n, D)
    tried: int
    kept: int
    method: str

    @property
    def acceptance(self) -> float:
        return self.kept / self.tried if self.tried else 1.0


def parse_where(view: View, where: Where) -> list[ColumnCondition]:
    """Conditions on the columns of the event, each given as "age>60" or as {"age": ">60"},
    {"sex": "female"}, {"pclass": [1, 2]}."""
    if isinstance(where, str):
        where = [where]
    texts = [as_text(*pair) for pair in where.items()] if isinstance(where, Mapping) else where
    conditions = [parse_condition(view, text) for text in texts]
    refuse_contradictions(conditions)
    return conditions


def as_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{name}{value}" if value[:1] in "<>!" else f"{name}={value}"
    if isinstance(value, list | tuple | set | np.ndarray):
        return f"{name}=" + ",".join(map(str, value))
    return f"{name}={value}"


def parse_condition(view: View, text: str) -> ColumnCondition:
    names = [field.name for field in view.event.fields]
    found = CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--where: expected a condition such as {names[0]}=VALUE or {names[0]}>VALUE, "
            f"found {text!r}"
        )
    name, sign, value = found["name"], found["sign"], found["value"]
    if name not in names:
        if name in view.given:
            raise UsageError(f"{name} is given to this model; use --given {name}={value}")
        raise UsageError(f"--where: {view.selection.schema.name} has no column {name!r}"
                         f"{nearest(name, names)}")  # fmt: skip
    codec = view.event.fields[names.index(name)].codec
    several = sign in ("=", "!=") and not (isinstance(codec, Categorical) and value in codec.names)
    values = [part.strip() for part in value.split(",")] if several else [value]
    if sign not in ("=", "!=") and isinstance(codec, Categorical):
        raise UsageError(f"--where: {name} holds names, which have no order; use {name}=VALUE")
    for one in values:
        if isinstance(codec, Categorical) and (one not in codec.names or one == MISSING):
            known = [known for known in codec.names if known != MISSING]
            raise UsageError(
                f"--where: {name}={one} does not occur in the data; choose from "
                f"{listed(known, 30)}{nearest(one, known) if len(known) > 30 else ''}"
            )
        if not one:
            raise UsageError(f"--where: expected a value of {name}, found none in {text!r}")
    codes = codec.encode(np.array(values, object), lambda _: f"--where {text}")
    assert isinstance(codes, Tensor), "a column of a table is one number per row"
    return ColumnCondition(name, sign, tuple(codes.double().tolist()), text.strip())  # type: ignore[arg-type]


def refuse_contradictions(conditions: Sequence[ColumnCondition]) -> None:
    """A UsageError about conditions on one column that no value satisfies."""
    for i, one in enumerate(conditions):
        for other in conditions[:i]:
            if one.name == other.name and not compatible(one, other):
                raise UsageError(
                    f"--where: no value satisfies both {other.text!r} and {one.text!r}; "
                    "remove one of them"
                )


def compatible(one: ColumnCondition, other: ColumnCondition) -> bool:
    """Whether some number satisfies two conditions: one of their values, or one beside these."""
    ends = torch.tensor([*one.codes, *other.codes], dtype=torch.float64).sort().values
    middles = (ends[1:] + ends[:-1]) / 2
    candidates = torch.cat([ends, middles, ends[:1] - 1, ends[-1:] + 1])
    return bool((one.holds(candidates) & other.holds(candidates)).any())


def sample_where(
    model: Any,
    view: View,
    conditions: Sequence[ColumnCondition],
    n: int,
    sample: Callable[[int, torch.Generator], Tensor],
    complete: Callable[[Batch, torch.Generator], Tensor],
    generator: torch.Generator,
) -> ConditionalSamples:
    """n rows that satisfy the conditions; `sample` and `complete` are the model's own."""
    names = [field.name for field in view.event.fields]

    def holds(x: Tensor) -> Tensor:
        table = x.reshape(len(x), -1)
        every = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for condition in conditions:
            every &= condition.holds(table[:, names.index(condition.name)])
        return every

    def keep(draw: Callable[[int], Tensor], most: int, method: str) -> ConditionalSamples:
        parts: list[Tensor] = []
        tried = kept = 0
        while kept < n and tried < most:
            share = kept / tried if kept else 1 / max(tried, 1)
            size = FIRST_TRY if not tried else int(1.2 * (n - kept) / share) + 1
            x = draw(min(size, MAX_TRIES // 4, most - tried))
            good = x[holds(x)]
            parts, tried, kept = [*parts, good], tried + len(x), kept + len(good)
        return ConditionalSamples(torch.cat(parts)[:n], tried, kept, method)

    fixed = {c.name: c.fixed for c in conditions if c.fixed is not None}
    first = keep(lambda size: sample(size, generator), FIRST_TRY, "rejection")
    if first.kept < n and first.acceptance < RARE and fixed and isinstance(model, CanComplete):
        seen = torch.tensor([name in fixed for name in names])
        row = torch.tensor([fixed.get(name) or 0.0 for name in names])
        blank = torch.where(seen, row, view.event.filling())

        def draw(size: int) -> Tensor:
            x = blank.to(torch.get_default_dtype()).repeat(size, 1)
            return complete(Batch(x, observed=seen.repeat(size, 1)), generator)

        found = keep(draw, MAX_TRIES, "completion of the other columns")
    else:
        found = keep(lambda size: sample(size, generator), MAX_TRIES, "rejection")
    if found.kept < n:
        what = " and ".join(repr(condition.text) for condition in conditions)
        raise DataError(
            f"only {found.kept} of {found.tried} sampled rows satisfy {what}, where {n} are asked "
            "for; ask for fewer rows, or for less"
        )
    return found
