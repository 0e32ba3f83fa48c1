"""Mutation testing: change one piece of the library at a time and see whether a test notices.

    python scripts/mutation_test.py --count 40 --seed 0

draws changes of syntax trees (comparisons, arithmetic, constants, booleans, returns) from the
packages, each uniformly among all places inside functions. No file is changed: a child process
imports the module from the changed tree. Only tests that enter the changed function run, the
quickest first, until one fails. Survivors are printed with the share of all changes that survive
and its 95 % interval. Which test enters which function is recorded once, in --map. It needs a
system that can fork, so that torch is imported once.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "monge"
PACKAGES = ("core", "prob", "solve", "train")
TESTS = ("tests/core", "tests/prob", "tests/solve", "tests/train", "tests/verify")
IGNORED = ("tests/verify/test_examines.py", "tests/verify/test_mutants.py")
"""Tests that watch calls or change code themselves."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Mod: ast.Mult,
    ast.MatMult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
SECONDS = 60
"""After which the tests of a change are ended, which counts as noticed."""
MOST_TESTS = 25
"""Tests that run for one change."""
LEFT_OUT = (ast.Raise, ast.Assert, ast.AnnAssign, ast.arguments)
"""Messages, promises to the type checker, annotations and defaults."""


@dataclass(frozen=True)
class Site:
    """One change: the number-th change that a walk over the file's tree finds."""

    path: str  # beneath the library
    number: int
    function: str  # qualified name
    line: int
    before: str
    after: str


def changed(node: ast.AST) -> ast.AST | None:
    """The node with a fault in it; None if there is none to make."""
    new = copy.copy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new.ops = [SWAPS[type(node.ops[0])](), *node.ops[1:]]  # type: ignore
        return new
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()  # type: ignore
        return new
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return ast.Constant(node.value + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return node.operand
    if isinstance(node, ast.Return) and node.value is not None:
        return ast.Return(ast.Constant(None))
    return None


class Walk(ast.NodeTransformer):
    """Counts the places for a fault inside functions, and makes the one that is asked for."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.names = wanted, list[str]()
        self.inside, self.found = 0, list[tuple[str, ast.AST, ast.AST]]()

    def scope(self, node: Any, function: bool) -> ast.AST:
        self.names.append(node.name)
        self.inside += function
        node.body = [self.visit(each) for each in node.body]
        self.inside -= function
        self.names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.scope(node, True)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self.scope(node, False)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, LEFT_OUT):
            return node
        if self.inside and (new := changed(node)) is not None:
            self.found.append((".".join(self.names), node, new))
            if len(self.found) - 1 == self.wanted:
                return ast.fix_missing_locations(ast.copy_location(new, node))
        return super().generic_visit(node)


def sites(packages: list[str]) -> Iterator[Site]:
    for package in packages:
        for path in sorted((LIBRARY / package).rglob("*.py")):
            walk = Walk()
            walk.visit(ast.parse(path.read_text()))
            for number, (function, old, new) in enumerate(walk.found):
                yield Site(
                    str(path.relative_to(LIBRARY)),
                    number,
                    function,
                    getattr(old, "lineno", 0),
                    ast.unparse(old)[:80],
                    ast.unparse(new)[:80],
                )


class ChangedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the library from its changed tree."""

    def __init__(self, site: Site) -> None:
        self.site, self.file = site, LIBRARY / site.path
        parts = ("monge", *Path(site.path).with_suffix("").parts)
        self.name = ".".join(parts).removesuffix(".__init__")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        inner = [str(self.file.parent)] if self.file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, self.file, loader=self, submodule_search_locations=inner
        )

    def exec_module(self, module: Any) -> None:
        tree = Walk(self.site.number).visit(ast.parse(self.file.read_text()))
        exec(compile(tree, str(self.file), "exec"), vars(module))


class Recorder:
    """A pytest plugin: which functions of the packages each test enters, and how long it takes."""

    def __init__(self) -> None:
        self.entered: dict[str, dict[str, Any]] = {}
        self.known: dict[Any, str | None] = {}

    def name(self, code: Any) -> str | None:
        if code not in self.known:
            path = code.co_filename
            own = path.startswith(f"{LIBRARY}/") and not path.startswith(f"{LIBRARY}/verify")
            inner = code.co_qualname.replace(".<locals>", "")
            self.known[code] = f"{path[len(str(LIBRARY)) + 1 :]}:{inner}" if own else None
        return self.known[code]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        seen: set[str] = set()

        def note(frame: Any, event: str, _: Any) -> None:
            if event == "call" and (name := self.name(frame.f_code)) is not None:
                seen.add(name)

        start = time.process_time()
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            seconds = time.process_time() - start
            self.entered[item.nodeid] = {"functions": sorted(seen), "seconds": seconds}


def pytest_in_fork(arguments: list[str], site: Site | None, map_to: Path | None = None) -> int:
    """The exit code of pytest in a forked process; 1 if it is ended for its time."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.chdir(ROOT)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    code = 1
    try:
        plugins = []
        if site is not None:
            sys.meta_path.insert(0, ChangedModule(site))
            signal.alarm(SECONDS)  # ends the process
        if map_to is not None:
            recorder = Recorder()
            plugins.append(recorder)
        code = int(pytest.main([*arguments, "-n", "0", "-p", "no:cacheprovider"], plugins))
        if map_to is not None:
            map_to.write_text(json.dumps(recorder.entered))
    finally:
        os._exit(code)


def interval(survived: int, tried: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z, share = 1.96, survived / tried
    middle = share + z**2 / (2 * tried)
    half = z * math.sqrt(share * (1 - share) / tried + z**2 / (4 * tried**2))
    return (middle - half) / (1 + z**2 / tried), (middle + half) / (1 + z**2 / tried)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=40, help="changes to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES))
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--map", type=Path, default=ROOT / ".mutation_map.json")
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    if not asked.map.exists():
        print("recording which test enters which function", flush=True)
        left_out = [f"--deselect={path}" for path in IGNORED]
        pytest_in_fork([*asked.tests, *left_out], None, asked.map)
    tests = json.loads(asked.map.read_text())
    every = list(sites(asked.packages))
    chosen = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    survivors, uncovered, killed = [], [], 0
    for number, site in enumerate(chosen, 1):
        own = f"{site.path}:{site.function}"
        covering = [name for name, each in tests.items() if own in each["functions"]]
        covering.sort(key=lambda name: tests[name]["seconds"])
        if not covering:
            uncovered.append(site)
            verdict = "NOT COVERED"
        elif pytest_in_fork(["-x", "-q", *covering[:MOST_TESTS]], site) == 0:
            survivors.append(site)
            verdict = "SURVIVED"
        else:
            killed += 1
            verdict = "killed"
        print(
            f"{number:4d} {verdict:12s} {site.path}:{site.line} {site.function}: "
            f"{site.before}  ->  {site.after}",
            flush=True,
        )
    tried = killed + len(survivors)
    print(f"{len(every)} places, {len(chosen)} tried: {killed} killed, {len(survivors)} survived,")
    print(f"{len(uncovered)} in functions that none of these tests enters")
    if tried:
        low, high = interval(len(survivors), tried)
        print(
            f"surviving share {len(survivors) / tried:.1%}, 95 % interval {low:.1%} to {high:.1%}"
        )


if __name__ == "__main__":
    main()
