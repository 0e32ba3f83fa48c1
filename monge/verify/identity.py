"""The frame: an identity is a function, the files of this folder are the list of them.

A public function named `x50_...` that returns a `Residual` is an identity: X50 is its id, its file
the group it belongs to, the first line of its docstring what it states. The annotation of its
first parameter is the ability it needs, and that argument is the model itself, in float64, in eval
mode and without gradients; a second parameter `batch` takes a few valid rows with their
conditions. An identity without parameters stands for itself. What an ability cannot say (a space
too large to enumerate, a likelihood that is only a bound) is told by raising `Skip`.

Listing reads syntax trees and imports nothing; `identities` imports.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
import time
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .subjects import Subject

FOLDER = Path(__file__).parent
NAME = re.compile(r"x\d+_\w+")
ITSELF = "itself"
"""The member of an identity that is about no model."""


@dataclass(frozen=True)
class Residual:
    """By how much an identity is missed, and by how much it may be."""

    value: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return math.isfinite(self.value) and self.value <= self.tolerance


class Skip(Exception):
    """No error: the reason why an identity says nothing about a member."""


@dataclass(frozen=True)
class Listing:
    """What an identity's source says of itself."""

    id: str
    group: str
    name: str
    statement: str


@dataclass(frozen=True)
class Identity:
    """A statement that can be held against a model."""

    listing: Listing
    needs: type | None  # the ability; None for what is about no model
    rows: bool  # whether it asks for rows
    call: Callable[..., Residual]


@dataclass(frozen=True)
class Row:
    """The outcome of one identity on one member; what is skipped neither passes nor fails."""

    id: str
    member: str
    statement: str
    residual: float | None = None
    tolerance: float | None = None
    passed: bool | None = None
    skipped: str | None = None
    error: str | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@cache
def listed() -> tuple[Listing, ...]:
    """Every identity, by group and id."""
    found = [listing for path in sorted(FOLDER.glob("*.py")) for listing in read(path)]
    return tuple(sorted(found, key=lambda each: (each.group, int(each.id[1:]))))


def read(path: Path) -> list[Listing]:
    """The identities in a file, in the order they are written."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return [Listing(node.name.partition("_")[0].upper(), path.stem, node.name, line_of(node))
            for node in functions if NAME.fullmatch(node.name)]


def line_of(node: ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")


def identities() -> list[Identity]:
    """Every identity, imported."""
    return [load(listing) for listing in listed()]


def load(listing: Listing) -> Identity:
    call = getattr(importlib.import_module(f"monge.verify.{listing.group}"), listing.name)
    hints, names = typing.get_type_hints(call), list(inspect.signature(call).parameters)
    return Identity(listing, hints[names[0]] if names else None, "batch" in names, call)


def hold(identity: Identity, subjects: Iterable[Subject], every: bool) -> Iterator[Row]:
    """One identity against every member it concerns, or against the first that it can examine."""
    if identity.needs is None:
        yield examine(identity)
        return
    skipped = []
    for subject in subjects:
        if not isinstance(subject.model, identity.needs):
            continue
        row = examine(identity, subject)
        if every:
            yield row
        elif row.skipped is None:
            yield row
            return
        else:
            skipped.append(row)
    yield from skipped[:1]


def examine(identity: Identity, subject: Subject | None = None) -> Row:
    """Hold one identity against one member. What it draws depends on nothing before it; whatever
    it raises is a failure told in a sentence."""
    import torch

    about = identity.listing
    row = (about.id, subject.name if subject else ITSELF, about.statement)
    start = time.perf_counter()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = identity.call(*arguments(identity, subject))
    except Skip as reason:
        return Row(*row, skipped=str(reason), seconds=time.perf_counter() - start)
    except Exception as error:
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return Row(*row, residual=math.nan, passed=False, error=sentence,
                   seconds=time.perf_counter() - start)
    return Row(*row, found.value, found.tolerance, found.passed,
               seconds=time.perf_counter() - start)


def arguments(identity: Identity, subject: Subject | None) -> tuple[Any, ...]:
    if subject is None:
        return ()
    return (subject.model, subject.batch) if identity.rows else (subject.model,)
