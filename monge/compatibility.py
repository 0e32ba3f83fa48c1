"""Whether a model supports a dataset, and which models do; every error names an alternative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .core.abilities import CanSample, HasLikelihood
from .core.errors import DataError
from .core.model import Model
from .core.space import Space
from .registry import entries

GENERATIVE = {CanSample.ability, HasLikelihood.ability}
"""A model of the event's distribution has at least one of these abilities."""


def check_compatible(name: str, owner: type[Model], space: Space) -> None:
    """Raise a DataError if the model does not support the data; it names models that do."""
    if space.kind not in owner.events:
        expected = " or ".join(sorted(owner.events))
        if owner.is_predictor and owner.events & {part.kind for part in space.given.values()}:
            raise DataError(
                f"{name} predicts {expected}, the target of these data is {space}; choose it with "
                "--target, or pair images by adding +edges or +low2 to the data name"
            )
        raise DataError(
            f"{name}: expected {expected}, found {space}; {suggest_models(space, owner)}"
        )
    for field, part in space.given.items():
        if part.kind not in owner.givens:
            expected = " or ".join(sorted(owner.givens)) or "no condition"
            raise DataError(
                f"{name} expects {expected} as a condition, {field!r} is {part}; "
                f"remove it from --given, or {suggest_models(space, owner)}"
            )
    if space.missing and not owner.supports_missing:
        raise DataError(
            f"{name} cannot train on rows with missing values; drop such rows with "
            "data.missing=drop, fill them in with `monge complete`, or "
            f"{suggest_models(space, owner)}"
        )
    varying = next(variable_length_parts(space), None)
    if varying and not owner.supports_variable_length:
        raise DataError(
            f"{name} needs rows of equal length, those of {varying.name} differ ({varying}); "
            f"{suggest_models(space, owner)}"
        )
    if reason := owner.unsupported_reason(space):
        raise DataError(reason)


def variable_length_parts(space: Space) -> Iterator[Space]:
    """The event and the conditions whose rows differ in length; conditions that are text may
    always do."""
    conditions = (part for part in space.given.values() if part.kind != "tokens")
    return (part for part in (space, *conditions) if part.varies)


def join_with_or(names: Sequence[str]) -> str:
    """Alternatives in a sentence: a, b or c."""
    return " or ".join([", ".join(names[:-1]), names[-1]][len(names) < 2 :])


def suggest_models(space: Space, instead_of: type[Model]) -> str:
    """The end of an error message: the models that support this data; predictors are suggested
    only in place of a predictor."""
    kinds = {part.kind for part in space.given.values()}
    names = [
        entry.name
        for entry in entries()
        if space.kind in entry.events
        and kinds <= set(entry.givens)
        and (entry.supports_missing or not space.missing)
        and (entry.supports_variable_length or not any(variable_length_parts(space)))
        and (instead_of.is_predictor or not entry.is_predictor)
        and GENERATIVE & set(entry.abilities)
    ]
    return f"use {join_with_or(names)}" if names else "no model supports such data yet"
