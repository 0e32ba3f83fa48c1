"""The help of a configuration: the string beneath each of its fields, and the words it admits."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin

from .config import Config, hints


def help_of(kind: Any) -> dict[str, str]:
    """The string beneath each field, inherited ones included."""
    found: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(ancestor) or ancestor is Config:
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(typing.cast(type, ancestor)))).body[0]
        found |= dict(documented(typing.cast(ast.ClassDef, tree)))
    return {field.name: found.get(field.name, "") for field in fields(kind)}


def choices_of(kind: Any) -> dict[str, tuple[str, ...]]:
    """The words that each field admits; none where they are not a list of words."""
    return {name: tuple(map(str, literals(hint))) for name, hint in hints(kind).items()}


def literals(hint: Any) -> tuple[Any, ...]:
    """What a type lists, alone, beside None or limited."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return args
    if origin is Annotated:
        return literals(args[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(choice for part in args for choice in literals(part))
    return ()


def documented(node: Any) -> Iterator[tuple[str, str]]:
    """The fields of a class's syntax tree with the string beneath each."""
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = getattr(getattr(after, "value", None), "value", "")
            yield statement.target.id, " ".join(text.split()) if isinstance(text, str) else ""
