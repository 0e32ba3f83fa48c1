"""Faults injected on purpose, each with the check that must fail under it.

A mutant replaces a piece of one function of the library in memory: `where` names the function,
`old` is what its code says, `new` what the fault says instead. The code is compared after parsing,
so that neither comments nor line breaks matter, and no file is changed. `check` is the identity or
control that must fail, on a small model if it needs one. All mutants run in one child process,
which puts the code back after each; the residual is measured before the fault and after it, and
has to be the same number.
"""

from __future__ import annotations

import __future__

import ast
import importlib
import inspect
import multiprocessing
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import CodeType, FunctionType
from typing import Any

from .framework import Identity, IdentityResult, hold, listed, load


@dataclass(frozen=True)
class Mutant:
    """One fault. `where` is the module below `monge` and the function in it, divided by a colon;
    `model` is the model that a check needs."""

    name: str
    statement: str
    where: str
    old: str
    new: str
    check: str
    model: str = ""


@dataclass(frozen=True)
class MutantResult:
    """What a check found without the fault and with it."""

    name: str
    statement: str
    where: str
    check: str
    id: str
    member: str
    tolerance: float | None
    without: float | None
    with_fault: float | None
    caught: bool
    reason: str = ""  # why the fault counts as not caught, or the error it caused

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def function_at(where: str) -> FunctionType:
    """The plain function that a place names, without what decorators put around it."""
    module, _, names = where.partition(":")
    found: Any = importlib.import_module(f"monge.{module}")
    for name in names.split("."):
        found = inspect.getattr_static(found, name)
    for wrapper in ("fget", "func", "__func__"):  # properties, cached properties, class methods
        found = getattr(found, wrapper, found) if not inspect.isfunction(found) else found
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), f"{where} is not a function"
    return found


def altered(function: FunctionType, old: str, new: str) -> CodeType:
    """The code of a function with one piece of it replaced."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]  # kept by the function
    node.args.kw_defaults = [each and ast.Constant(None) for each in node.args.kw_defaults]
    text = ast.unparse(node)
    if text.count(old) != 1:
        raise LookupError(
            f"expected {old!r} once in {function.__qualname__}, found it {text.count(old)} times; "
            "bring the mutant up to date with the code"
        )
    text = text.replace(old, new)
    names = function.__code__.co_freevars  # `super()` and enclosing functions
    outer = f"def outer({', '.join(names)}):\n" + textwrap.indent(text, "    ")
    flags = __future__.annotations.compiler_flag
    code = compile(outer, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    for name in ("outer", node.name):
        code = next(
            each
            for each in code.co_consts
            if isinstance(each, CodeType) and each.co_name == name
        )
    return code


@contextmanager
def injected(mutant: Mutant) -> Iterator[None]:
    """The library with this fault inside the block. Every reference to the function has it, since
    the function stays the same object and only its code is another."""
    function = function_at(mutant.where)
    right = function.__code__
    function.__code__ = altered(function, mutant.old, mutant.new)
    try:
        yield
    finally:
        function.__code__ = right


def check_of(mutant: Mutant) -> Identity:
    return load(next(each for each in listed() if each.name == mutant.check))


def examined(mutant: Mutant) -> IdentityResult:
    """The outcome of the mutant's check, on the first small model that it applies to, built
    anew."""
    from .subjects import fresh

    identity = check_of(mutant)
    members = fresh(mutant.model) if mutant.model else ()
    found = list(hold(identity, members, every=False))
    assert found, f"{mutant.check} applies to no small {mutant.model or 'model'}"
    return found[0]


def attempt(mutant: Mutant) -> MutantResult:
    """Hold a mutant against its check."""
    import torch

    torch.set_num_threads(1)
    before = examined(mutant)
    with injected(mutant):
        during = examined(mutant)
    after = examined(mutant)
    reason = during.error or ""
    if not before.passed:
        reason = f"the check fails without the fault: {before.error or before.skipped or ''}"
    elif after.residual != before.residual:
        reason = "the check gives another residual after the fault than before it"
    caught = bool(before.passed) and during.passed is False and after.residual == before.residual
    return MutantResult(
        mutant.name,
        mutant.statement,
        mutant.where,
        mutant.check,
        before.id,
        before.member,
        before.tolerance,
        before.residual,
        during.residual,
        caught,
        reason,
    )


def attempt_all(chosen: Sequence[Mutant]) -> Iterator[MutantResult]:
    """Hold mutants against their checks, in a child process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as child:
        yield from child.map(attempt, chosen)


MUTANTS: tuple[Mutant, ...] = ()
