"""Forms made from a configuration: an input for each field, with its help, range and default.

The names of the inputs are the names of the settings on the command line. What a form returns are
the overrides of those fields alone whose text differs from the default, as one would type them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from ..core.config import Config, Range, RunRef, fillers, hints, name_of
from ..core.config_help import choices_of, help_of


@dataclass(frozen=True)
class Input:
    """One setting as an input of a form."""

    name: str  # as on the command line
    value: str  # its default for the data
    help: str
    kind: str  # choice, flag, whole, number, text or run
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    limits: str = ""  # the range in words
    group: str = ""  # the part that it belongs to: "", "net", "prior"

    @property
    def label(self) -> str:
        return self.name.rpartition(".")[2].replace("_", " ")


def written(value: Any) -> str:
    """A value as one types it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple | list):
        return ",".join(map(written, value))
    if isinstance(value, Config):
        return name_of(type(value))
    if isinstance(value, RunRef):
        return value.run
    return str(value)


def inputs(config: Config, head: str = "", group: str = "") -> Iterator[Input]:
    """The inputs of a configuration and of its parts."""
    kind: Any = type(config)
    helps, choices = help_of(kind), choices_of(kind)
    for name, hint in hints(kind).items():
        value = getattr(config, name)
        if isinstance(value, Mapping):
            continue
        if isinstance(value, Config):
            options = tuple(sorted({name_of(each) for each in fillers(hint_class(hint))}))
            chosen = name_of(type(value))
            if len(options) > 1 and chosen in options:
                yield Input(head + name, chosen, helps[name], "choice", options, group=group)
            yield from inputs(value, f"{head}{name}.", name)
            continue
        limit = range_of(hint)
        yield Input(
            head + name,
            written(value),
            helps[name],
            kind_of(hint, bool(choices[name])),
            (*(("none",) if optional(hint) and choices[name] else ()), *choices[name]),
            None if limit is None else limit.low,
            None if limit is None else limit.high,
            "" if limit is None else str(limit),
            group,
        )


def hint_class(hint: Any) -> Any:
    """The class of configurations that a field takes."""
    if get_origin(hint) is Annotated:
        return hint_class(get_args(hint)[0])
    if get_origin(hint) in (typing.Union, types.UnionType):
        return next(
            hint_class(part)
            for part in get_args(hint)
            if isinstance(part, type) and issubclass(part, Config)
        )
    return hint


def optional(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return optional(get_args(hint)[0])
    return type(None) in get_args(hint)


def range_of(hint: Any) -> Range | None:
    if get_origin(hint) is Annotated:
        return next((limit for limit in get_args(hint)[1:] if isinstance(limit, Range)), None)
    if get_origin(hint) in (typing.Union, types.UnionType):
        return next((r for part in get_args(hint) if (r := range_of(part))), None)
    return None


def kind_of(hint: Any, has_choices: bool) -> str:
    if has_choices:
        return "choice"
    plain = hint
    while get_origin(plain) is Annotated:
        plain = get_args(plain)[0]
    if get_origin(plain) in (typing.Union, types.UnionType):
        parts = [part for part in get_args(plain) if part is not type(None)]
        return "text" if optional(plain) else kind_of(parts[0], False)
    names = {bool: "flag", int: "whole", float: "number", RunRef: "run"}
    return names.get(plain, "text")


def overrides(fields: list[Input], form: Mapping[str, str], head: str = "") -> list[str]:
    """The settings of a form that differ from the defaults."""
    found = []
    for field in fields:
        text = form.get(f"set.{head}{field.name}")
        if text is not None and text.strip() != field.value and (text.strip() or field.value):
            found.append(f"{head}{field.name}={text.strip()}")
    return found
