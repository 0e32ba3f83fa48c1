"""The frame: an identity is a function, the files of this folder are the list of them.

A public function named `x50_...` that returns a `Residual` is an identity: X50 is its id, its file
or folder the group it belongs to. The first line of its docstring says what it states and, in
brackets, where it comes from: `[002:250]` is line 250 of the third of the five notes, which are
counted from 000. The annotation of its first parameter is the ability it needs, and that argument
is the model itself, in float64, in eval mode and without gradients; a second parameter `batch`
takes a few valid rows with their conditions. An identity without parameters stands for itself.
What an ability cannot say (a space too large to enumerate, a likelihood that is only a bound) is
told by raising `Skip`.

A function named `r36_...` that returns a `Control` holds what the notes say wrongly beside what is
right: it passes if the tolerance that admits the right statement rejects the wrong one.

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
NAME = re.compile(r"[xr]\d+_\w+")
CITED = re.compile(r"(.+?)\.? \[(\d{3}:\d+(?:-\d+)?)\]")
"""A statement with its source, a note and lines of it."""
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


@dataclass(frozen=True)
class Control:
    """By how much a statement of the notes is missed, and by how much what is right in its place:
    only the latter may be."""

    wrong: float
    value: float
    tolerance: float

    @property
    def passed(self) -> bool:
        held = Residual(self.value, self.tolerance).passed
        return held and not self.wrong <= self.tolerance  # what is no number is rejected too


class Skip(Exception):
    """No error: the reason why an identity says nothing about a member."""


@dataclass(frozen=True)
class Listing:
    """What an identity's source says of itself."""

    id: str
    group: str
    module: str  # beneath this folder
    name: str
    statement: str
    source: str  # note:lines


@dataclass(frozen=True)
class Identity:
    """A statement that can be held against a model."""

    listing: Listing
    needs: type | None  # the ability; None for what is about no model
    rows: bool  # whether it asks for rows
    call: Callable[..., Residual | Control]


@dataclass(frozen=True)
class Row:
    """The outcome of one identity on one member; what is skipped neither passes nor fails.

    Of an erratum the residual is that of what is right, `wrong` that of what the notes say."""

    id: str
    member: str
    statement: str
    source: str
    residual: float | None = None
    tolerance: float | None = None
    passed: bool | None = None
    skipped: str | None = None
    error: str | None = None
    wrong: float | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@cache
def listed() -> tuple[Listing, ...]:
    """Every identity, by group and id."""
    found = [listing for path in sorted(FOLDER.rglob("*.py")) for listing in read(path)]
    return tuple(sorted(found, key=lambda each: (each.group, int(each.id[1:]))))


def read(path: Path) -> list[Listing]:
    """The identities in a file, in the order they are written."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    place = path.relative_to(FOLDER).with_suffix("").parts
    return [Listing(node.name.partition("_")[0].upper(), place[0], ".".join(place), node.name,
                    *told(node)) for node in functions if NAME.fullmatch(node.name)]


def told(node: ast.FunctionDef) -> tuple[str, str]:
    """What a function states, and where that is from."""
    line = (ast.get_docstring(node) or "").partition("\n")[0]
    found = CITED.fullmatch(line)
    return (found[1], found[2]) if found else (line.rstrip("."), "")


def identities() -> list[Identity]:
    """Every identity, imported."""
    return [load(listing) for listing in listed()]


def load(listing: Listing) -> Identity:
    call = getattr(importlib.import_module(f"monge.verify.{listing.module}"), listing.name)
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
    row = (about.id, subject.name if subject else ITSELF, about.statement, about.source)
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
               wrong=found.wrong if isinstance(found, Control) else None,
               seconds=time.perf_counter() - start)


def arguments(identity: Identity, subject: Subject | None) -> tuple[Any, ...]:
    if subject is None:
        return ()
    return (subject.model, subject.batch) if identity.rows else (subject.model,)
