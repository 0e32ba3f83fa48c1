"""The framework: an identity is a function, and the files of this folder are the list of them.

A public function named `x50_...` that returns a `Residual` is an identity: X50 is its id, its file
or folder the group it belongs to. The first line of its docstring is its statement, the last
paragraph cites where to read about it: `Source: Kingma & Welling 2014, Auto-Encoding Variational
Bayes, eq. 1.`, several works separated by semicolons. The annotation of its first parameter is
the ability it needs, and that argument is the model itself, in float64, in eval mode and without
gradients; a second parameter `batch` takes a few valid rows with their conditions. An identity
without parameters needs no model. It raises `SkipIdentity` if it cannot be computed for a model (a
space too large to enumerate, a likelihood that is only a bound).

The paragraph before the source of an identity without parameters names what of the library it
examines: `Examines: nn.attention.softmax.attend, nn.attention.scores.DotScore.`, or `Examines:
mathematics only.` if no such code is on either side.

A function named `r36_...` that returns a `Control` compares a common error with the correct
statement: it passes if the tolerance that accepts the correct one rejects the error.

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
SOURCE = "Source: "
"""How the last paragraph of an identity's docstring begins."""
EXAMINES = "Examines: "
"""How the paragraph begins that names what an identity examines."""
MATHEMATICS = "mathematics only"
"""What an identity examines that holds no code of the library against anything."""
ITSELF = "itself"
"""The member of an identity that is about no model."""


@dataclass(frozen=True)
class Residual:
    """The error of an identity, and the largest that passes."""

    value: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return math.isfinite(self.value) and self.value <= self.tolerance


@dataclass(frozen=True)
class Control:
    """The error of a common wrong statement, that of the correct one, and the largest that passes:
    only the correct one may pass."""

    wrong: float
    value: float
    tolerance: float

    @property
    def passed(self) -> bool:
        held = Residual(self.value, self.tolerance).passed
        return held and not self.wrong <= self.tolerance  # NaN is rejected too


class SkipIdentity(Exception):
    """The reason why an identity does not apply to a member."""


@dataclass(frozen=True)
class Listing:
    """What the code of an identity states, read without importing it."""

    id: str
    group: str
    module: str  # beneath this folder
    name: str
    statement: str
    source: str  # author, year, title and place in it
    examines: tuple[str, ...] = ()  # names in the library; none if it is about a model

    @property
    def is_mathematics(self) -> bool:
        """Whether no code of the library is examined."""
        return self.examines == (MATHEMATICS,)


@dataclass(frozen=True)
class Identity:
    """A statement that can be checked on a model."""

    listing: Listing
    needs: type | None  # the ability; None if it is about no model
    rows: bool  # whether it takes rows
    call: Callable[..., Residual | Control]


@dataclass(frozen=True)
class IdentityResult:
    """The outcome of one identity on one member; what is skipped neither passes nor fails.

    For a common error the residual is that of the correct statement, `wrong` that of the error."""

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
    examines: tuple[str, ...] = ()

    @property
    def is_mathematics(self) -> bool:
        """Whether no code of the library is examined."""
        return self.examines == (MATHEMATICS,)

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
    return [
        Listing(
            node.name.partition("_")[0].upper(),
            place[0],
            ".".join(place),
            node.name,
            *read_docstring(node),
        )
        for node in functions
        if NAME.fullmatch(node.name)
    ]


def read_docstring(node: ast.FunctionDef) -> tuple[str, str, tuple[str, ...]]:
    """The statement of a function, its source, which is empty if none is cited, and the names of
    what it examines."""
    paragraphs = [
        " ".join(each.split()).removesuffix(".")
        for each in (ast.get_docstring(node) or "").split("\n\n")
    ]
    source, names = (
        next((each.removeprefix(key) for each in paragraphs if each.startswith(key)), "")
        for key in (SOURCE, EXAMINES)
    )
    return paragraphs[0], source, tuple(filter(None, names.split(", ")))


def identities() -> list[Identity]:
    """Every identity, imported."""
    return [load(listing) for listing in listed()]


def load(listing: Listing) -> Identity:
    call = getattr(importlib.import_module(f"monge.verify.{listing.module}"), listing.name)
    hints, names = typing.get_type_hints(call), list(inspect.signature(call).parameters)
    return Identity(listing, hints[names[0]] if names else None, "batch" in names, call)


def hold(identity: Identity, subjects: Iterable[Subject], every: bool) -> Iterator[IdentityResult]:
    """Check one identity on every member it applies to, or on the first that it can examine."""
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


def examine(identity: Identity, subject: Subject | None = None, seed: int = 0) -> IdentityResult:
    """Check one identity on one member. Its random numbers depend on nothing before it; whatever
    it raises is a failure described in a sentence."""
    import torch

    about = identity.listing
    row = (about.id, subject.name if subject else ITSELF, about.statement, about.source)
    names = (class_name(subject.model),) if subject else about.examines
    start = time.perf_counter()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = identity.call(*arguments(identity, subject))
    except SkipIdentity as reason:
        seconds = time.perf_counter() - start
        return IdentityResult(*row, skipped=str(reason), seconds=seconds, examines=names)
    except Exception as error:
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return IdentityResult(
            *row,
            residual=math.nan,
            passed=False,
            error=sentence,
            seconds=time.perf_counter() - start,
            examines=names,
        )
    return IdentityResult(
        *row,
        found.value,
        found.tolerance,
        found.passed,
        wrong=found.wrong if isinstance(found, Control) else None,
        seconds=time.perf_counter() - start,
        examines=names,
    )


def class_name(model: object) -> str:
    """Where a model is defined, as `examines` names it."""
    owner = type(model)
    return f"{owner.__module__.removeprefix('monge.')}.{owner.__qualname__}"


def arguments(identity: Identity, subject: Subject | None) -> tuple[Any, ...]:
    if subject is None:
        return ()
    return (subject.model, subject.batch) if identity.rows else (subject.model,)
