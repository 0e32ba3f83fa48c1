"""Configuration as frozen values that check themselves and build what they describe.

A `Config` is a frozen dataclass whose annotations are its rules: a type, a `Range`, a choice
(`Literal`), a tuple, a mapping, another `Config`. It survives JSON unchanged, is changed by words
(`net.width=64`), and, nested in a class, builds its owner. The string beneath a field is its help.
In a saved file it is named by its `tag`, never by its module or class.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from . import tags
from .error import WordError, nearest, shown


@dataclass(frozen=True)
class Range:
    """Limits of a number: `low` <= value <= `high`, the low end excluded where `open`."""

    low: float | None = None
    high: float | None = None
    open: bool = False

    def admits(self, value: float) -> bool:
        above = self.low is None or (value > self.low if self.open else value >= self.low)
        return above and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = [] if self.low is None else [f"{'above' if self.open else 'at least'} {self.low:g}"]
        high = [] if self.high is None else [f"at most {self.high:g}"]
        return " and ".join(low + high)


@dataclass(frozen=True)
class Part:
    """Another run, named by its folder; the built model is handed to the owner's constructor."""

    run: str


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Config:
    """A frozen value checked by its own annotations."""

    owner: ClassVar[type]
    tag: ClassVar[str] = ""
    """What saved files call this class: `role/name`, or `role/` where it is not saved itself."""
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        tags.register(cls)

    def __post_init__(self) -> None:
        for name, kind in hints(type(self)).items():  # type: ignore[arg-type]
            object.__setattr__(self, name, check(name, kind, getattr(self, name)))

    def build(self, *args: Any) -> Any:
        """The object this value describes."""
        return self.owner(self, *args)

    def to_dict(self) -> dict[str, Any]:
        if not tags.is_saved(type(self)):
            raise TypeError(f"{type(self).__qualname__} declares no tag, so it cannot be saved")
        body = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        return {"is": self.tag} | body

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote; every other tree is refused in a sentence, and imports nothing but
        the library's own modules that declare its tags."""
        try:
            return check("config", cls, tree)
        except RecursionError:
            raise WordError("the configuration is nested too deeply to be read; it was not "
                            "written by Monge") from None

    def override(self, *words: str) -> Self:
        """A copy changed by words such as `net.width=64`; shallow words first, so that
        `net.width=64 net=unet` means the same in either order."""
        from .change import put  # which stands on Config

        def depth(word: str) -> int:
            path = word.partition("=")[0]
            return path.count(".") + (path.partition(".")[0] not in self.__dataclass_fields__)

        changed = self
        for word in sorted(words, key=depth):
            path, equals, text = word.partition("=")
            if not (path and equals):
                raise WordError(f"{word!r} is not of the form name=value")
            changed = put(changed, path.split("."), text, path)
        return changed


class Configured:
    """A class with a nested `Config` that learns whom it builds."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if isinstance(config := cls.__dict__.get("Config"), type):
            config.owner = cls  # type: ignore[attr-defined]


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    """The annotation of each field, with its limits."""
    known = typing.get_type_hints(kind, include_extras=True)
    return {field.name: known[field.name] for field in fields(kind)}


def plain(value: Any) -> Any:
    """`value` as JSON would hold it."""
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, Part):
        return {"part": value.run}
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def check(name: str, kind: Any, value: Any) -> Any:
    """`value` as a `kind`, or one sentence why it is none; JSON's lists, dicts and whole floats
    are taken back, nothing else is converted."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = check(name, args[0], value)
        for limit in args[1:]:
            if value is not None and not limit.admits(value):
                raise WordError(f"{name}={value} must be {limit}")
        return value
    if origin in (Union, UnionType):
        return check_union(name, args, value)
    if origin is Literal:
        if value not in args:
            text = value if isinstance(value, str) and len(value) < 80 else shown(value)
            raise WordError(f"{name}={text} is not a choice{nearest(text, map(str, args))}")
        return value
    if origin is tuple:
        return check_tuple(name, args, value)
    if origin in (Mapping, dict):
        if not isinstance(value, Mapping):
            raise WordError(f"{name}={shown(value)} must be a mapping")
        return {key: check(f"{name}.{key}", args[1], entry) for key, entry in value.items()}
    if kind is Part and isinstance(value, Mapping) and set(value) == {"part"}:
        return Part(check(f"{name}.part", str, value["part"]))
    if isinstance(kind, type) and issubclass(kind, Config):
        return check_config(name, kind, value)
    if kind is float and type(value) is int and abs(value) < 1e300:
        return float(value)
    if type(value) is not kind:
        raise WordError(f"{name}={shown(value)} must be {spell(kind)}")
    return value


def check_union(name: str, args: tuple, value: Any) -> Any:
    if value is None and NoneType in args:
        return None
    choices = [choice for choice in args if choice is not NoneType]
    for choice in choices[:-1]:
        try:
            return check(name, choice, value)
        except WordError:
            continue
    return check(name, choices[-1], value)


def check_tuple(name: str, args: tuple, value: Any) -> tuple:
    if not isinstance(value, (tuple, list)):
        raise WordError(f"{name}={shown(value)} must be a list")
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
    if len(kinds) != len(value):
        raise WordError(f"{name}={shown(value)} must have {len(kinds)} entries")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(check(f"{name}[{place}]", kind, entry) for place, (kind, entry) in pairs)


def check_config(name: str, kind: type[Config], value: Any) -> Config:
    if isinstance(value, Mapping):
        value = read(value)
    if not isinstance(value, kind):
        found = value.tag if isinstance(value, Config) else shown(value)
        raise WordError(f"{name}: expected {expected(kind)}, found {found}")
    return value


def expected(kind: type[Config]) -> str:
    """Which tags a configuration of this kind may have."""
    if tags.is_saved(kind):
        return kind.tag
    return f"one of {kind.tag}..." if kind.tag else "a configuration with a tag"


def spell(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")


def read(tree: Mapping[str, Any]) -> Config:
    """The Config that `to_dict` wrote."""
    kind = tags.find(tree.get("is"))
    known = kind.__dataclass_fields__
    given = {key: entry for key, entry in tree.items() if key != "is"}
    for key in given:
        if key not in known:
            raise WordError(f"{kind.tag} has no field {shown(key)}{nearest(key, known)}")
    lacking = [field.name for field in fields(kind) if field.name not in given
               and field.default is MISSING and field.default_factory is MISSING]
    if lacking:
        raise WordError(f"{kind.tag} lacks {', '.join(lacking)}; the configuration is incomplete")
    return kind(**given)
