"""Whether a model takes some data, and which models do; every refusal names the way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import registry
from .core.abilities import CanSample, HasLikelihood
from .core.errors import DataError
from .core.model import Model
from .core.space import Space

GENERATIVE = {CanSample.ability, HasLikelihood.ability}
"""Abilities of which a distribution of the event has one."""


def check_compatible(name: str, owner: type[Model], space: Space) -> None:
    """Refuse data the model cannot take, in a sentence that names those that can."""
    if space.kind not in owner.events:
        takes = " or ".join(sorted(owner.events))
        if owner.is_predictor and owner.events & {part.kind for part in space.given.values()}:
            raise DataError(
                f"{name} predicts {takes}, and the target of these data is {space}; "
                "pair pictures with +edges or +low2 after their name, or say --target"
            )
        raise DataError(f"{name} needs {takes}, got {space}; {accepting(space, owner)}")
    for field, part in space.given.items():
        if part.kind not in owner.givens:
            takes = " or ".join(sorted(owner.givens)) or "no condition"
            raise DataError(
                f"{name} takes {takes} as a condition, and {field!r} is {part}; "
                f"leave it out of --given, or {accepting(space, owner)}"
            )
    if space.missing and not owner.supports_missing:
        raise DataError(
            f"{name} cannot train on rows with missing values; leave them out with "
            "data.missing=drop, (in columns of names) make it a name with "
            "data.missing=category, fill them with `monge complete`, or "
            f"{accepting(space, owner)}"
        )
    uneven = next(unequal(space), None)
    if uneven and not owner.supports_variable_length:
        raise DataError(
            f"{name} takes rows of one length, and those of {uneven.name} differ "
            f"({uneven}); {accepting(space, owner)}"
        )
    if reason := owner.unsupported_reason(space):
        raise DataError(reason)


def unequal(space: Space) -> Iterator[Space]:
    """The event and the conditions whose rows differ in length; whatever takes a text as a
    condition takes it as long as it is."""
    read = (part for part in space.given.values() if part.kind != "tokens")
    return (part for part in (space, *read) if part.varies)


def either(names: Sequence[str]) -> str:
    """Names of which one is to be chosen: a, b or c."""
    return " or ".join([", ".join(names[:-1]), names[-1]][len(names) < 2 :])


def accepting(space: Space, asked: type[Model]) -> str:
    """The end of a sentence: the models that would take this data; only who asked for a law of
    targets is told of such."""
    kinds = {part.kind for part in space.given.values()}
    names = [
        entry.name
        for entry in registry.entries()
        if space.kind in entry.events
        and kinds <= set(entry.givens)
        and (entry.supports_missing or not space.missing)
        and (entry.supports_variable_length or not any(unequal(space)))
        and (asked.is_predictor or not entry.is_predictor)
        and GENERATIVE & set(entry.abilities)
    ]
    return f"use {either(names)}" if names else "no model takes such data yet"
