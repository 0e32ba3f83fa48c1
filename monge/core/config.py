"""Configurations: frozen dataclasses that validate themselves and build what they describe.

A `Config` is a frozen dataclass whose annotations are its rules: a type, a `Range`, a choice
(`Literal`), a tuple, a mapping, another `Config`. It is stored as JSON, changed by overrides
(`net.width=64`), and, nested in a class, builds its owner. The string below a field is its help.

In a saved file a config is identified by its tag, never by its module or class, since these may
move: a config that is saved declares `tag = "net/mlp"` in its body, a role and a name. A tag that
ends in a slash is the role alone: the class is not saved, those that fill the role are. A tag is
looked up among the literals in the library's own files, which are read as text, and only the
module that declares it is imported; a stored string is never a path to import. A class outside the
library needs no tag: it gets `user/<file>.<class>`, known once its file has been loaded.

Where a change of the code gives the weights of some settings another meaning, their
`weights_version` is raised. It is saved behind the tag, `model/latent.vae@2`, and what was saved
with another version is refused: it would load, and compute something else.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import math
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from .errors import UsageError, nearest, shown

PACKAGE = __name__.partition(".")[0]
USER_MODULE = "monge_user_"
"""The beginning of the module names of users' own files."""
TAG = re.compile(r'^ {4,}tag = "([a-z0-9_]+/[a-z0-9_.]+)"$', re.MULTILINE)

VERSION_SIGN = "@"
"""Between a saved tag and the version of the weights."""
MAX_INT = 2**64 - 1
"""Largest whole number of a setting: of 64 bits, as are whole numbers in data."""
MAIN_NETWORK = "net"
"""The nested configuration that a setting such as width=64 means if several have it."""
MAX_LAYERS = 10_000
"""Largest number of layers of one kind, which are built one by one."""
MAX_STEPS = 1_000_000
"""Largest number of steps of a sampler or solver."""

defined: dict[str, Any] = {}
"""The class of each tag, of the modules imported so far."""


@cache
def modules() -> dict[str, str]:
    """The module that declares each tag of the library, none of them imported."""
    root = Path(str(sys.modules[PACKAGE].__file__)).parent
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join((PACKAGE, *parts)).removesuffix(".__init__")
        found |= dict.fromkeys(TAG.findall(path.read_text(encoding="utf-8")), name)
    return found


def role_of(kind: Any) -> str:
    """What comes before the name in a class's tag."""
    return kind.tag.rpartition("/")[0]


def name_of(kind: Any) -> str:
    """What a user types to choose this class for its role."""
    return re.split("[/.]", kind.tag)[-1].lower()


def title_of(kind: Any) -> str:
    """What messages call a config: a model by its name, the training config train, others by the
    name that chooses them; options of sampling and scoring have no tag."""
    role, _, name = getattr(kind, "tag", "").partition("/")
    return role if role in ("train", "data") else name or "options"


def is_saved(kind: Any) -> bool:
    """Whether values of this class can be saved: it has a tag with a name."""
    return bool(kind.tag) and not kind.tag.endswith("/")


def register(kind: Any) -> None:
    """Give a new class its tag and remember whose it is."""
    inside = kind.__module__.partition(".")[0] == PACKAGE
    declared = "tag" in vars(kind)
    if not declared:
        kind.tag = (f"{role_of(kind)}/" if role_of(kind) else "") if inside else default(kind)
    if not is_saved(kind):
        return
    other = defined.get(kind.tag)
    same = other is None or path_of(other) == path_of(kind)
    taken = not inside and kind.tag in modules()
    if taken or (declared and not same):
        raise UsageError(
            f"the tag {kind.tag!r} of {kind.__qualname__} is taken by another class; "
            "choose one that no other has, or leave it out"
        )
    defined[kind.tag] = kind


def default(kind: Any) -> str:
    """The tag of a class outside the library that declares none."""
    file = kind.__module__.rpartition(".")[2].removeprefix(USER_MODULE)
    return f"user/{file}.{kind.__qualname__.removesuffix('.Config')}"


def path_of(kind: Any) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def find(tag: Any) -> Any:
    """The class of a stored tag, its module imported now; a sentence where there is none."""
    if not isinstance(tag, str):
        raise UsageError(
            f"expected a tag such as 'net/mlp' in \"is\", found {shown(tag)}; "
            "the configuration was not written by Monge"
        )
    if tag not in defined and tag in modules():
        importlib.import_module(modules()[tag])
    if tag not in defined:
        remedy = (
            "name its model file in MONGE_MODELS"
            if tag.startswith("user/")
            else "use the version of Monge that wrote it"
        )
        raise UsageError(f"there is no configuration with the tag {shown(tag)}; {remedy}")
    return defined[tag]


def fillers(kind: Any) -> Iterator[Any]:
    """The classes that can stand where a `kind` is asked for: those of its role in the library,
    and those of users' own files that have been loaded."""
    for tag in modules():
        if tag.rpartition("/")[0] == role_of(kind) and issubclass(find(tag), kind):
            yield find(tag)
    for tag, own in list(defined.items()):
        owner = vars(own).get("owner")
        if (
            tag not in modules()
            and issubclass(own, kind)
            and owner is not None
            and not inspect.isabstract(owner)
        ):
            yield own


@dataclass(frozen=True)
class Range:
    """Limits of a number: `low` <= value <= `high`; `open` excludes the lower limit.

    Examples
    --------
    >>> import monge
    >>> monge.Range(0, 1).admits(2)
    False
    """

    low: float | None = None
    high: float | None = None
    open: bool = False

    def admits(self, value: float) -> bool:
        """Whether a number lies in the range."""
        above = self.low is None or (value > self.low if self.open else value >= self.low)
        return above and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = [] if self.low is None else [f"{'above' if self.open else 'at least'} {self.low:g}"]
        high = [] if self.high is None else [f"at most {self.high:g}"]
        return " and ".join(low + high)


@dataclass(frozen=True)
class RunRef:
    """Reference to another run by its directory; its model is passed to the constructor.

    Examples
    --------
    >>> import monge
    >>> monge.RunRef("runs/contrastive-digits").run
    'runs/contrastive-digits'
    """

    run: str


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Config:
    """A frozen dataclass validated by its annotations.

    Examples
    --------
    >>> from typing import Annotated
    >>> from monge import Config, Range
    >>> class Net(Config):
    ...     width: Annotated[int, Range(1)] = 64
    >>> Net(width=8).width
    8
    """

    owner: ClassVar[type]
    tag: ClassVar[str] = ""
    """Its name in saved files: `role/name`, or `role/` if it is not saved itself."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other common names of fields, which are not accepted but lead to the suggested name."""
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Of options of sampling: the values at which samples are of the model's distribution."""
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        register(cls)

    def __post_init__(self) -> None:
        for name, kind in hints(type(self)).items():  # type: ignore[arg-type]
            object.__setattr__(self, name, check(name, kind, getattr(self, name)))

    @property
    def weights_version(self) -> int:
        """Raised for those settings whose weights got another meaning by a change of the code."""
        return 1

    @property
    def saved_tag(self) -> str:
        """Its tag and, from 2 on, the version of its weights."""
        version = self.weights_version
        return self.tag if version == 1 else f"{self.tag}{VERSION_SIGN}{version}"

    def build(self, *args: Any) -> Any:
        """The object this value describes."""
        return self.owner(self, *args)

    def to_dict(self) -> dict[str, Any]:
        """Its tag and its fields as values that JSON can hold."""
        if not is_saved(type(self)):
            raise TypeError(f"{type(self).__qualname__} declares no tag, so it cannot be saved")
        body = {field.name: plain(getattr(self, field.name)) for field in fields(self)}
        return {"is": self.saved_tag} | body

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote; UsageError for anything else. Only modules of the library
        that declare the tags are imported."""
        try:
            return check("config", cls, tree)
        except RecursionError:
            raise UsageError(
                "the configuration is nested too deeply to be read; it was not written by Monge"
            ) from None

    def departure(self) -> str:
        """The first option, nested ones included, that is at none of its neutral values; empty if
        samples are of the model's distribution."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Config) and (inner := value.departure()):
                return f"{field.name}.{inner}"
            if value not in self.neutral.get(field.name, (value,)):
                shown = value.run if isinstance(value, RunRef) else value
                return f"{field.name}={str(shown).lower() if shown is True else shown}"
        return ""

    def override(self, *settings: str) -> Self:
        """A copy changed by overrides such as `net.width=64`; shallow paths first, so that
        `net.width=64 net=unet` means the same in either order."""

        def depth(setting: str) -> int:
            path = setting.partition("=")[0]
            return path.count(".") + (path.partition(".")[0] not in self.__dataclass_fields__)

        changed = self
        for setting in sorted(settings, key=depth):
            path, equals, text = setting.partition("=")
            if not (path and equals):
                raise UsageError(f"expected name=value, found {setting!r}; write such as width=64")
            changed = put(changed, path.split("."), text, path)
        return changed


class Configured:
    """A class with a nested `Config`, whose `owner` is set to the class."""

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
    if isinstance(value, RunRef):
        return {"run": value.run}
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def check(name: str, kind: Any, value: Any) -> Any:
    """Validate `value` as a `kind`; lists, dicts and integral floats from JSON are converted,
    nothing else is."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = check(name, args[0], value)
        for limit in args[1:]:
            if value is not None and not limit.admits(value):
                raise UsageError(f"{name}={value} must be {limit}; give another value")
        return value
    if origin in (Union, UnionType):
        return check_union(name, args, value)
    if origin is Literal:
        if value not in args:
            text = value if isinstance(value, str) and len(value) < 80 else shown(value)
            raise UsageError(f"{name}={text} is not a choice{nearest(text, map(str, args))}")
        return value
    if origin is tuple:
        return check_tuple(name, args, value)
    if origin in (Mapping, dict):
        if not isinstance(value, Mapping):
            raise UsageError(f"{name}={shown(value)} must be a mapping; give a dict")
        return {key: check(f"{name}.{key}", args[1], entry) for key, entry in value.items()}
    if kind is RunRef and isinstance(value, Mapping) and set(value) == {"run"}:
        return RunRef(check(f"{name}.run", str, value["run"]))
    if isinstance(kind, type) and issubclass(kind, Config):
        return check_config(name, kind, value)
    if kind is float and type(value) is int and abs(value) < 1e300:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{name}={shown(value)} must be {spell(kind)}; give another value")
    if kind is int and abs(value) > MAX_INT:
        raise UsageError(
            f"{name}={shown(value)} must be at most {MAX_INT:.4g} in size; give another value"
        )
    return value


def check_union(name: str, args: tuple, value: Any) -> Any:
    if value is None and NoneType in args:
        return None
    choices = [choice for choice in args if choice is not NoneType]
    for choice in choices[:-1]:
        try:
            return check(name, choice, value)
        except UsageError:
            continue
    return check(name, choices[-1], value)


def check_tuple(name: str, args: tuple, value: Any) -> tuple:
    if not isinstance(value, (tuple, list)):
        raise UsageError(f"{name}={shown(value)} must be a list; put it into brackets")
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
    if len(kinds) != len(value):
        raise UsageError(f"{name}={shown(value)} must have {len(kinds)} entries")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(check(f"{name}[{place}]", kind, entry) for place, (kind, entry) in pairs)


def check_config(name: str, kind: type[Config], value: Any) -> Config:
    if isinstance(value, Mapping):
        value = read(value)
    if not isinstance(value, kind):
        found = value.tag if isinstance(value, Config) else shown(value)
        raise UsageError(f"{name}: expected {expected(kind)}, found {found}")
    return value


def expected(kind: type[Config]) -> str:
    """Which tags a configuration of this kind may have."""
    if is_saved(kind):
        return kind.tag
    return f"one of {kind.tag}..." if kind.tag else "a configuration with a tag"


def spell(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(kind, f"a {getattr(kind, '__name__', kind)}")


def sizes(value: Any) -> Iterator[int]:
    """Every whole number of a configuration, and the product of every tuple of them."""
    if isinstance(value, Config):
        for name in value.__dataclass_fields__:
            if name != "rows":
                yield from sizes(getattr(value, name))
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from sizes(entry)
    elif isinstance(value, tuple):
        yield len(value)
        numbers = [size for entry in value for size in sizes(entry)]
        yield from numbers
        yield math.prod(max(number, 1) for number in numbers)
    elif isinstance(value, int):
        yield int(value)


def read(tree: Mapping[str, Any]) -> Config:
    """The Config that `to_dict` wrote; UsageError if its weights have another meaning now."""
    saved = tree.get("is")
    tag = saved.partition(VERSION_SIGN)[0] if isinstance(saved, str) else saved
    kind = find(tag)
    known = kind.__dataclass_fields__
    given = {key: entry for key, entry in tree.items() if key != "is"}
    for key in given:
        if key not in known:
            raise UsageError(f"{kind.tag} has no field {shown(key)}{nearest(key, known)}")
    lacking = [
        field.name
        for field in fields(kind)
        if field.name not in given
        and field.default is MISSING
        and field.default_factory is MISSING
    ]
    if lacking:
        raise UsageError(f"{kind.tag} lacks {', '.join(lacking)}; the configuration is incomplete")
    config = kind(**given)
    if config.saved_tag != saved:
        raise UsageError(
            f"expected {config.saved_tag}, found {shown(saved)}, whose weights have another "
            "meaning; fit the model again, or use the version of Monge that wrote it"
        )
    return config


TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def put(config: Any, path: list[str], text: str, full: str) -> Any:
    """`config` with the field at `path` read from `text`."""
    name, rest = path[0], path[1:]
    if isinstance(config, Mapping):
        if name not in config:
            raise UsageError(f"{full}: there is no {name!r}{nearest(name, config)}")
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
    part = part_of(kind)
    omitted = text.lower() == "none" and part is not kind
    value = choose(part, text, full) if part and not omitted else parse(kind, text)
    if isinstance(here, Config) and type(value) is type(here):
        return config  # chosen already, perhaps with fields that suit the data
    return replace(config, **{name: value})


def part_of(kind: Any) -> type[Config] | None:
    """The configuration that a field holds, also one that may be omitted; None for values."""
    if get_origin(kind) in (Union, UnionType):
        kind, *others = [each for each in get_args(kind) if each is not NoneType]
        kind = None if others else kind
    return kind if isinstance(kind, type) and issubclass(kind, Config) else None


def part_with(config: Any, name: str, kinds: Mapping[str, Any]) -> str:
    """The only nested configuration with a field of this name, or the main network `net` among
    several; its name may then be omitted."""
    parts = [
        part
        for part in kinds
        if isinstance(inner := getattr(config, part), Config)
        and name in inner.__dataclass_fields__
    ]
    if len(parts) == 1:
        return parts[0]
    if MAIN_NETWORK in parts:
        return MAIN_NETWORK
    whose = title_of(type(config))
    if parts:
        raise UsageError(
            f"{name!r} is a field of {' and of '.join(parts)}; write "
            f"{' or '.join(f'{part}.{name}' for part in parts)}"
        )
    inner = {
        field: f"{part}.{field}"
        for part in kinds
        if isinstance(within := getattr(config, part), Config)
        for field in within.__dataclass_fields__
        if field not in kinds
    }
    aliases = config.aliases if isinstance(config, Config) else {}
    close = difflib.get_close_matches(name, [*kinds, *inner, *aliases], 1, 0.6)
    meant = [aliases.get(each, inner.get(each, each)) for each in close]
    hint = f"; did you mean {meant[0]}?" if meant else nearest(name, kinds)
    raise UsageError(f"{whose}: there is no setting {name!r}{hint}")


def first(kind: type[Config], owner: Config) -> Config:
    """A new entry of a mapping of `kind`: the owner's own settings if it is of that kind."""
    if not isinstance(owner, kind):
        return kind()
    return kind(**{field.name: getattr(owner, field.name) for field in fields(kind)})


def choose(kind: Any, text: str, full: str) -> Config:
    """The default configuration of the part that `text` names, by its name or its whole tag, among
    those of this `kind`."""
    known = list(fillers(kind))
    found = [each for each in known if text.lower() in (name_of(each), each.tag.lower())]
    if len(found) > 1:
        names = " and ".join(each.tag for each in found)
        raise UsageError(f"{full}={text} is the name of {names}; write one of these in full")
    if not found:
        raise UsageError(f"{full}={text} is not a part{nearest(text, map(name_of, known))}")
    return found[0]()


def parse(kind: Any, text: str) -> Any:
    """Parse `text` as a `kind` for `check`; text that cannot be parsed is returned as it is."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return parse(args[0], text)
    if origin in (Union, UnionType):
        if text.lower() == "none" and NoneType in args:
            return None
        return parse(next(choice for choice in args if choice is not NoneType), text)
    if origin is tuple:
        if text[:1] + text[-1:] in ("()", "[]"):  # a name such as "length (cm)" keeps its own
            text = text[1:-1]
        return [parse(args[0], entry.strip()) for entry in text.split(",") if entry]
    if origin is Literal:
        return next((choice for choice in args if str(choice) == text), text)
    if kind is RunRef:
        return RunRef(text)
    if kind is bool:
        return TRUTH.get(text.lower(), text)
    if kind in (int, float):
        return number(kind, text)
    return text


def number(kind: type, text: str) -> Any:
    """Parse a number; 1e3 is an integer; other text is returned as it is."""
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


PREFIXES = ("train", "data", "sample", "score")


@dataclass(frozen=True)
class Overrides:
    """Settings given as `key=value`, sorted by prefix, which is removed: none for the model,
    `train.` for training, `data.` for the dataset, `sample.` for sampling, `score.` for
    log-likelihoods."""

    model: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    sample: tuple[str, ...] = ()
    score: tuple[str, ...] = ()

    @classmethod
    def parse(cls, settings: Sequence[str]) -> Overrides:
        found: dict[str, list[str]] = {name: [] for name in ("model", *PREFIXES)}
        for setting in settings:
            prefix, dot, rest = setting.partition(".")
            if dot and prefix in PREFIXES:
                found[prefix].append(rest)
            else:
                found["model"].append(setting)
        return cls(**{name: tuple(each) for name, each in found.items()})


def apply_overrides(options: Config, settings: Sequence[str], prefix: str) -> Config:
    """Options of sampling or scoring with settings applied; `prefix` may stand before each."""
    return options.override(*(setting.removeprefix(f"{prefix}.") for setting in settings))


def as_settings(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Keyword arguments as settings: latent=8, train={"lr": 1e-3}, net={"width": 64}."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from as_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={as_text(value, prefix + name)}"


def as_text(value: Any, name: str) -> str:
    """The value of a setting as it would be typed; a run is named by its folder."""
    if isinstance(value, Config):
        raise UsageError(
            f"{name}: expected a number, a text, true or false, a list or a run, found a whole "
            "configuration; name its fields one by one, or pass the configuration of the model "
            "in place of its name"
        )
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(as_text(entry, name) for entry in value)
    return str(getattr(value, "folder", value))
