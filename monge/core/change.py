"""Configurations changed by words: `net.width=64` read as what the field at that path holds."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from . import tags
from .config import Config, Part, hints
from .error import WordError, nearest

TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def put(config: Any, path: list[str], text: str, full: str) -> Any:
    """`config` with the field at `path` read from `text`."""
    name, rest = path[0], path[1:]
    if isinstance(config, Mapping):
        if name not in config:
            raise WordError(f"{full}: there is no {name!r}{nearest(name, config)}")
        entry = put(config[name], rest, text, full) if rest else text
        return {**config, name: entry}
    kinds = hints(type(config)) if isinstance(config, Config) else {}  # type: ignore[arg-type]
    if name not in kinds:
        return put(config, [part_with(config, name, kinds), *path], text, full)
    here, kind = getattr(config, name), kinds[name]
    if rest and isinstance(here, Mapping):
        entry = get_args(kind)[1]
        if not (isinstance(entry, type) and issubclass(entry, Config)):
            return replace(config, **{name: {**here, ".".join(rest): parse(entry, text)}})
        here = here if rest[0] in here else {**here, rest[0]: first(entry, config)}
    if rest:
        return replace(config, **{name: put(here, rest, text, full)})
    value = choose(kind, text, full) if isinstance(here, Config) else parse(kind, text)
    return replace(config, **{name: value})


def part_with(config: Any, name: str, kinds: Mapping[str, Any]) -> str:
    """The one part of a configuration that has a field of this name, which need not be said."""
    parts = [part for part in kinds if isinstance(inner := getattr(config, part), Config)
             and name in inner.__dataclass_fields__]
    if len(parts) == 1:
        return parts[0]
    whose = getattr(type(config), "owner", type(config)).__name__
    if parts:
        raise WordError(f"{name!r} is a field of {' and of '.join(parts)}; write "
                        f"{' or '.join(f'{part}.{name}' for part in parts)}")
    inner = {field: f"{part}.{field}" for part in kinds
             if isinstance(within := getattr(config, part), Config)
             for field in within.__dataclass_fields__ if field not in kinds}
    close = difflib.get_close_matches(name, [*kinds, *inner], 1, 0.6)
    hint = f"; did you mean {inner.get(close[0], close[0])}?" if close else nearest(name, kinds)
    raise WordError(f"{whose} has no field {name!r}{hint}")


def first(kind: type[Config], owner: Config) -> Config:
    """A new entry of a mapping of `kind`: the owner's own settings where it is of that kind."""
    if not isinstance(owner, kind):
        return kind()
    return kind(**{field.name: getattr(owner, field.name) for field in fields(kind)})


def choose(kind: Any, text: str, full: str) -> Config:
    """The default configuration of the part that `text` names, by its name or its whole tag, among
    those of this `kind`."""
    known = list(tags.fillers(kind))
    found = [each for each in known if text.lower() in (tags.name_of(each), each.tag.lower())]
    if len(found) > 1:
        names = " and ".join(each.tag for each in found)
        raise WordError(f"{full}={text} is the name of {names}; write one of these in full")
    if not found:
        raise WordError(f"{full}={text} is not a part{nearest(text, map(tags.name_of, known))}")
    return found[0]()


def parse(kind: Any, text: str) -> Any:
    """`text` in the form `check` expects of a `kind`; what cannot be read stays text."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return parse(args[0], text)
    if origin in (Union, UnionType):
        if text.lower() == "none" and NoneType in args:
            return None
        return parse(next(choice for choice in args if choice is not NoneType), text)
    if origin is tuple:
        return [parse(args[0], entry.strip()) for entry in text.strip("[]()").split(",") if entry]
    if origin is Literal:
        return next((choice for choice in args if str(choice) == text), text)
    if kind is Part:
        return Part(text)
    if kind is bool:
        return TRUTH.get(text.lower(), text)
    if kind in (int, float):
        return number(kind, text)
    return text


def number(kind: type, text: str) -> Any:
    """1e3 is a whole number, 1e-3 is not; what is no number stays text."""
    try:
        value = float(text)
    except ValueError:
        return text
    if kind is float:
        return value
    try:
        return int(text)
    except ValueError:
        return int(value) if value.is_integer() else value
