"""The help of a configuration: the string that stands beneath each of its fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from .config import Config


def help_of(kind: Any) -> dict[str, str]:
    """The string beneath each field, inherited ones included."""
    found: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(ancestor) or ancestor is Config:
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(typing.cast(type, ancestor)))).body[0]
        found |= dict(documented(typing.cast(ast.ClassDef, tree)))
    return {field.name: found.get(field.name, "") for field in fields(kind)}


def documented(node: Any) -> Iterator[tuple[str, str]]:
    """The fields of a class's syntax tree with the string beneath each."""
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = getattr(getattr(after, "value", None), "value", "")
            yield statement.target.id, " ".join(text.split()) if isinstance(text, str) else ""
