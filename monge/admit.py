"""Whether a model takes some data, and which models do; every refusal names the way out."""

from __future__ import annotations

from collections.abc import Iterator

from . import registry
from .core.error import DataError
from .core.model import Model
from .core.space import Space


def admit(name: str, owner: type[Model], space: Space) -> None:
    """Refuse data the model cannot take, in a sentence that names those that can."""
    if space.kind not in owner.events:
        takes = " or ".join(sorted(owner.events))
        raise DataError(f"{name} needs {takes}, got {space}; {accepting(space)}")
    for field, part in space.given.items():
        if part.kind not in owner.givens:
            takes = " or ".join(sorted(owner.givens)) or "no condition"
            raise DataError(f"{name} takes {takes} as a condition, and {field!r} is {part}; "
                            f"leave it out of --given, or {accepting(space)}")
    if space.missing and not owner.missing:
        raise DataError(f"{name} cannot train on rows with missing values; {accepting(space)}, or "
                        "leave such rows out with data.missing=drop, or (in columns of names) "
                        "make it a name with data.missing=category")
    uneven = next(unequal(space), None)
    if uneven and not owner.lengths:
        raise DataError(f"{name} takes rows of one length, and those of {uneven.name} differ "
                        f"({uneven}); {accepting(space)}")
    if reason := owner.refuses(space):
        raise DataError(reason)


def unequal(space: Space) -> Iterator[Space]:
    """The event and the conditions whose rows differ in length; whatever takes a text as a
    condition takes it as long as it is."""
    read = (part for part in space.given.values() if part.kind != "tokens")
    return (part for part in (space, *read) if part.varies)


def accepting(space: Space) -> str:
    """The end of a sentence: the models that would take this data."""
    kinds = {part.kind for part in space.given.values()}
    names = [entry.name for entry in registry.entries()
             if space.kind in entry.events and kinds <= set(entry.givens)
             and (entry.missing or not space.missing)
             and (entry.lengths or not any(unequal(space)))]
    return f"use {' or '.join(names)}" if names else "no model takes such data yet"
