"""Help of a configuration: the docstring below each field, and the choices of each field."""

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
    """The docstring below each field, inherited fields included."""
    found: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(ancestor) or ancestor is Config:
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(typing.cast(type, ancestor)))).body[0]
        found |= dict(field_docs(typing.cast(ast.ClassDef, tree)))
    return {field.name: found.get(field.name, "") for field in fields(kind)}


def choices_of(kind: Any) -> dict[str, tuple[str, ...]]:
    """The choices of each field; empty if it has none."""
    return {name: tuple(map(str, literals(hint))) for name, hint in hints(kind).items()}


def literals(hint: Any) -> tuple[Any, ...]:
    """The literals of a type, also inside Annotated or a union."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return args
    if origin is Annotated:
        return literals(args[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(choice for part in args for choice in literals(part))
    return ()


def field_docs(node: Any) -> Iterator[tuple[str, str]]:
    """The fields in a class's syntax tree with the docstring below each."""
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = getattr(getattr(after, "value", None), "value", "")
            yield statement.target.id, " ".join(text.split()) if isinstance(text, str) else ""
