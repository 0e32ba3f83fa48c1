"""."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.config import Config
from ..core.errors import UsageError, nearest
from ..core.space import Space
from .codecs.scalar import listed
from .dataset import Schema

if TYPE_CHECKING:
    pass


COLUMNS = "columns"
"""What an event of several columns is called."""
INPUTS = "inputs"
"""The condition that the columns beside a target form together."""


class Selection(Config):
    """How a run reads data: their schema, and which fields are the event and its conditions."""

    tag = "data/selection"
    schema: Schema
    """The fields with their codecs."""
    event: tuple[str, ...]
    """One field, or columns side by side."""
    given: Mapping[str, tuple[str, ...]]
    """Each condition: one field of that name, or columns side by side."""
    predicted: bool = False
    """Whether the event is a target, which other data need not have."""


def select(
    schema: Schema, event: str | None, given: Sequence[str], target: str | Sequence[str] | None
) -> Selection:
    """The words of a run made whole: what is not said is the schema's default."""
    known = [field.name for field in schema.fields]
    targets = parse_targets(target, known)
    for name in [event, *targets, *given]:
        if name is not None and name not in known:
            raise UsageError(f"{schema.name} has no field {name!r}{nearest(name, known)}")
    if event and targets and (event,) != targets:
        raise UsageError(
            f"event {event!r} and target {listed(targets)!r} are two names for one "
            "thing; give one of them"
        )
    usual = schema.main if {*schema.main} - {*given} else (schema.target or "",)
    chosen = targets or (
        (event,) if event else tuple(name for name in usual if name and name not in given)
    )
    if not chosen or set(chosen) & set(given):
        raise UsageError(
            f"{listed(given)} cannot be both the event and given; leave something to model"
        )
    shaped = [name for name in chosen if schema.field(name).space.shape]
    if shaped and len(chosen) > 1:
        raise UsageError(
            f"{shaped[0]} is not a single value and cannot be a target beside others; "
            "give one target"
        )
    others = schema.inputs if targets == (schema.target,) and schema.inputs else known
    beside = [name for name in others if name not in chosen] if targets and not given else given
    return Selection(
        schema=schema,
        event=chosen,
        predicted=bool(targets),
        given=conditions(schema, targets, given, beside),
    )


def parse_targets(target: str | Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """The targets that were named one by one or with commas between them."""
    words = [target] if isinstance(target, str) else target or []
    return tuple(
        dict.fromkeys(
            name for word in words for name in ([word] if word in known else word.split(","))
        )
    )


def conditions(
    schema: Schema, targets: Sequence[str], given: Sequence[str], beside: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Each a field of its own, but for the columns beside a target, which stand together."""
    if targets and not beside:
        raise UsageError(
            f"{schema.name} has nothing beside {listed(targets)!r} to predict it from"
        )
    if targets and not given and schema.table:  # but for text, which is given where it is named
        return {
            INPUTS: tuple(name for name in beside if schema.field(name).space.kind != "tokens")
        }
    return {name: (name,) for name in beside}


def is_class(space: Space) -> bool:
    return not space.shape and space.kind in ("label", "binary")
