"""Stable names of configurations in saved files.

A class of the library and its module may move or be renamed; what a file says of it must not. So
each configuration that is saved declares `tag = "net/mlp"` in its body: a role and a name. A tag
that ends in a slash is the role alone: the class is not saved, those that fill the role are.

A tag is looked up among the literals in the library's own files, which are read as text, and only
the module that declares it is imported; a stored string is never a path to import. A class outside
the library needs no tag: it gets `user/<file>.<class>`, known once its file has been loaded.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from .errors import UsageError, shown

PACKAGE = __name__.partition(".")[0]
USER_MODULE = "monge_user_"
"""The beginning of the module names of users' own files."""
TAG = re.compile(r'^ {4,}tag = "([a-z0-9_]+/[a-z0-9_.]+)"$', re.MULTILINE)

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
    role, _, name = kind.tag.partition("/")
    return role if role in ("train", "data") else name or "these options"


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
