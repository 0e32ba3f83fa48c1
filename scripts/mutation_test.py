"""Mutation testing: change one piece of the library at a time and see whether a test notices.

    python scripts/mutation_test.py --count 500 --seed 0

draws changes of syntax trees (comparisons, arithmetic, constants, booleans, returns) from the
packages, each uniformly among all places inside functions. No file is changed: pytest collects the
tests once, and a process forked from it exchanges the code of one function for each change. Only
tests that run the changed statement are run, the most specific first, until one fails; a test
that notices a change has to pass without it, in such a process too. Survivors are printed with the
share of all changes that survive and its 95 % interval. Which test runs which lines is recorded
once, in --map. Processes that a test starts have the change too. It needs a system that can fork.

    python scripts/mutation_test.py --count 500 --seed 5 --kept outcomes.jsonl --seconds 600

ends after ten minutes; the same line again goes on with the changes that the file lacks.
--packages takes files too: `--packages train/optimiser.py --count 1000` tries every change of one.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import copy
import gc
import importlib
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "monge"
PACKAGES = ("core", "prob", "solve", "train")
TESTS = (
    *(f"tests/{name}" for name in ("core", "prob", "solve", "train", "evaluate", "verify")),
    *(f"tests/test_{name}.py" for name in ("properties", "theory", "oracles", "verify")),
    *(f"tests/{name}" for name in ("nn", "models", "run", "data", "comparison")),
    "tests/test_estimator.py",
)
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
NEGATED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose change is their negation."""
SECONDS, LONGEST = 8.0, 20.0
"""Seconds of computing after which the tests of a change are ended, which counts as noticed,
beyond those that they take without it, and how long these may be."""
MEMORY = 12 * 2**30
"""Bytes of addresses that a process with a change may have, so that a changed size does not take
the memory of the machine."""
HUNG = 300.0
"""Seconds of waiting after which a change counts neither as noticed nor as survived."""
TRACED_CALLS = 100
"""Calls of a function in a test whose lines are recorded."""
LEFT_OUT = (ast.Raise, ast.Assert, ast.AnnAssign, ast.arguments)
"""Messages, promises to the type checker, annotations and defaults."""
KEYWORDS = ("strict", "fused", "foreach", "non_blocking")
"""Arguments left out too: that zip has to find equal lengths is an assertion, the others are how
torch computes the same numbers sooner."""
WAYS = (
    "prob/bijections/linear.py:LULinear.is_small_batch",
    "train/distributed.py:early_messages",
)
"""Functions left out, which only choose between two ways to the same numbers."""


@dataclass(frozen=True)
class Site:
    """One change: the number-th change that a walk over the file's tree finds."""

    path: str  # beneath the library
    number: int
    function: str  # qualified name
    line: int
    lines: range  # those of its statement, counted from the line of the function
    before: str
    after: str


def changed(node: ast.AST, decides: bool = False) -> ast.AST | None:
    """The node with a fault in it; None if there is none to make. `decides` says that the function
    around it is declared to return a truth value."""
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
    if (number := negative(node)) is not None:
        return ast.Constant(number + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return node.operand
    if isinstance(node, ast.Return) and node.value is not None:
        if decides:
            return None if is_negated(node.value) else ast.Return(negated(node.value))
        same = isinstance(node.value, ast.Constant) and node.value.value is None
        if not same:  # the value stays, so that the function keeps the names that it closes over
            return ast.Return(ast.IfExp(ast.Constant(False), node.value, ast.Constant(None)))
    return None


def negative(node: ast.AST) -> float | None:
    """The number that a minus and a constant spell: one constant, which has one change as positive
    ones have (Coles et al. 2016 change literals with their sign). Without its minus it would have
    a second one, by which axis -1 of a matrix becomes axis 1, the same."""
    if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)):
        return None
    value = node.operand.value if isinstance(node.operand, ast.Constant) else None
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else None


def negated(value: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), value)


def is_negated(value: ast.expr) -> bool:
    """Whether the change of a returned expression itself is its negation. A function that says yes
    or no is negated by each of its returns instead of returning None, which is false too: `return
    False` would otherwise have a change that changes nothing, and `return a == b` one that is made
    twice (Papadakis et al. 2015 leave out equivalent and duplicate changes alike)."""
    if isinstance(value, ast.Compare):
        return len(value.ops) == 1 and isinstance(value.ops[0], NEGATED)
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    )


class Walk(ast.NodeTransformer):
    """Counts the places for a fault inside functions, and makes the one that is asked for."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.names, self.starts = wanted, list[str](), list[int]()
        self.lines = range(0)  # of the statement that is visited
        self.inside, self.found = 0, list[tuple[str, range, ast.AST, ast.AST]]()
        self.decides = False  # whether the function around is declared to return a truth value

    def scope(self, node: Any, function: bool) -> ast.AST:
        self.names.append(node.name)
        self.starts.append(node.lineno)
        self.inside += function
        outer, returns = self.decides, getattr(node, "returns", None)
        self.decides = isinstance(returns, ast.Name) and returns.id == "bool"
        node.body = [self.visit(each) for each in node.body]
        self.decides = outer
        self.inside -= function
        self.starts.pop()
        self.names.pop()
        return node

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.stmt) and self.starts:
            body = getattr(node, "body", None)
            end = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            self.lines = range(node.lineno - self.starts[-1], end + 1 - self.starts[-1])
        return super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.scope(node, True)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self.scope(node, False)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, LEFT_OUT) or (isinstance(node, ast.keyword) and node.arg in KEYWORDS):
            return node
        if self.inside and (new := changed(node, self.decides)) is not None:
            self.found.append((".".join(self.names), self.lines, node, new))
            if len(self.found) - 1 == self.wanted:
                return ast.fix_missing_locations(ast.copy_location(new, node))
        if negative(node) is not None:
            return node
        return super().generic_visit(node)


def sites(packages: list[str]) -> Iterator[Site]:
    for package in packages:
        start = LIBRARY / package
        for path in [start] if start.is_file() else sorted(start.rglob("*.py")):
            walk = Walk()
            walk.visit(ast.parse(path.read_text()))
            for number, (function, lines, old, new) in enumerate(walk.found):
                if f"{path.relative_to(LIBRARY)}:{function}" in WAYS:
                    continue
                yield Site(
                    str(path.relative_to(LIBRARY)),
                    number,
                    function,
                    getattr(old, "lineno", 0),
                    lines,
                    ast.unparse(old)[:80],
                    ast.unparse(new)[:80],
                )


def changed_code(site: Site) -> tuple[CodeType, CodeType]:
    """The code of the outermost function around a change, as it is and with the change."""
    file = LIBRARY / site.path
    plain = ast.parse(file.read_text())
    module = Walk(site.number).visit(ast.parse(file.read_text()))
    old, new = (compile(tree, str(file), "exec", dont_inherit=True) for tree in (plain, module))
    for name in site.function.split("."):
        old, new = inner(old, name), inner(new, name)
        if old.co_flags & 1:  # a function and not the body of a class
            return old, new
    raise LookupError(site.function)


def inner(code: CodeType, name: str) -> CodeType:
    """The code of a name that a module or a class defines last."""
    found = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [each for each in found if each.co_name == name][-1]


CHANGE, RECORD = "MUTATION_SITE", "MUTATION_LINES"
"""Variables that tell a process which a test starts of its change, or where to write its lines."""


def reach_children() -> None:
    """Let Python processes that are started from here call `in_child` first."""
    folder = Path(tempfile.mkdtemp())
    here = str(Path(__file__).parent)
    lines = f"import sys; sys.path.insert(0, {here!r}); import mutation_test as m; m.in_child()"
    (folder / "sitecustomize.py").write_text(lines)
    paths = (str(folder), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def in_child() -> None:
    """Make the change that the environment names, or write the lines that run."""
    if CHANGE in os.environ:
        path, _, number = os.environ[CHANGE].rpartition(":")
        file, plain = str(LIBRARY / path), SourceFileLoader.get_code

        def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
            if self.path != file:
                return plain(self, name)
            tree = Walk(int(number)).visit(ast.parse(Path(file).read_text()))
            return compile(tree, file, "exec", dont_inherit=True)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    elif RECORD in os.environ:
        lines = Lines()
        sys.settrace(lines.call)

        def write() -> None:
            sys.settrace(None)
            path = Path(os.environ[RECORD], f"{os.getpid()}.json")
            path.write_text(json.dumps(sorted(lines.seen)))

        atexit.register(write)


Functions = dict[str, list[FunctionType]]


def library_functions() -> Functions:
    """The functions of the packages that were imported, by the path of their code."""
    found: Functions = {}
    gc.unfreeze()  # get_objects leaves out what is frozen, as tests/conftest.py does at collection
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(str(LIBRARY)):
            found.setdefault(each.__code__.co_filename, []).append(each)
    return found


def inject(site: Site, known: Functions) -> bool:
    """Exchange the code of every function object that a change concerns; whether there is one."""
    old, new = changed_code(site)
    file = str(LIBRARY / site.path)
    if file not in known:  # nothing has imported it yet
        name = ".".join(("monge", *Path(site.path).with_suffix("").parts))
        importlib.import_module(name.removesuffix(".__init__"))
        known = library_functions()
    functions = [each for each in known[file] if each.__code__ == old]
    for each in functions:
        each.__code__ = new
    return bool(functions)


def functions_of(path: Path) -> list[tuple[str, int]]:
    """For each line of a file the innermost function around it, and the line it begins at."""
    text = path.read_text()
    found = [("", 0)] * (text.count("\n") + 2)

    def walk(node: ast.AST, names: tuple[str, ...], function: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names, function = (*names, node.name), isinstance(node, ast.FunctionDef)
            if function:
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found[line] = ".".join(names), node.lineno
        for each in ast.iter_child_nodes(node):
            walk(each, names, function)

    walk(ast.parse(text), (), False)
    return found


def computed_seconds() -> float:
    """Seconds that this process has computed, and those that it started and that have ended."""
    return sum(os.times()[:4])


class Lines:
    """The lines of the packages that run while `call` is the trace function."""

    def __init__(self) -> None:
        self.own = tuple(f"{LIBRARY}/{package}/" for package in PACKAGES)
        self.known: dict[CodeType, bool] = {}
        self.forget()

    def forget(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self.calls: Counter[CodeType] = Counter()

    def call(self, frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in self.known:
            self.known[code] = code.co_filename.startswith(self.own)
        if not self.known[code]:
            return None
        self.calls[code] += 1
        return self.line if self.calls[code] <= TRACED_CALLS else None

    def line(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line


class Recorder:
    """A pytest plugin: which lines of functions of the packages each test runs, and how long it
    takes; the lines of a fixture are those of every test that takes it. Lines count from that of
    their function, so that what is above it may change. Tests that the file knows are left out,
    and what is found is kept from time to time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entered: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.files: dict[str, list[tuple[str, int]]] = {}
        self.lines = Lines()
        self.fixtures: dict[tuple[str, str], set[tuple[str, int]]] = {}
        self.failed: set[str] = set()
        self.folder = Path(tempfile.mkdtemp())
        os.environ[RECORD] = str(self.folder)
        reach_children()

    def gather(self) -> None:
        """Add the lines of processes that have ended."""
        for path in self.folder.glob("*.json"):
            self.lines.seen |= {(file, line) for file, line in json.loads(path.read_text())}
            path.unlink()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        before = self.lines.seen
        self.lines.forget()
        try:
            return (yield)
        finally:
            self.gather()
            if fixturedef.scope != "function":
                key = request.node.nodeid.partition("::")[0], fixturedef.argname
                self.fixtures.setdefault(key, set()).update(self.lines.seen)
            self.lines.seen = self.lines.seen | before

    def functions(self) -> dict[str, list[int]]:
        """The lines that were seen, by function."""
        found: dict[str, list[int]] = {}
        for path, line in sorted(self.lines.seen):
            if path not in self.files:
                self.files[path] = functions_of(Path(path))
            name, start = self.files[path][line]
            if name:
                below = str(Path(path).relative_to(LIBRARY))
                found.setdefault(f"{below}:{name}", []).append(line - start)
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.lines.forget()
        start = computed_seconds()
        sys.settrace(self.lines.call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            seconds = computed_seconds() - start
            self.gather()
            file = item.nodeid.partition("::")[0]
            for name in item.fixturenames:
                self.lines.seen |= self.fixtures.get((file, name), set())
            self.entered[item.nodeid] = {"functions": self.functions(), "seconds": seconds}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.entered]

    def pytest_runtest_logfinish(self) -> None:
        if len(self.entered) % 500 == 0:
            self.pytest_sessionfinish()

    def pytest_sessionfinish(self) -> None:
        good = {name: each for name, each in self.entered.items() if name not in self.failed}
        self.path.write_text(json.dumps(good))


class Outcomes:
    """What became of each change, kept as lines of JSON from which a later run goes on. The first
    line states what was drawn, so that outcomes of another draw are not taken for it."""

    def __init__(self, path: Path | None, drawn: dict[str, Any]) -> None:
        self.path, self.verdicts = path, dict[Site, str]()
        if path is None:
            return
        if not path.exists():
            path.write_text(json.dumps(drawn) + "\n")
        first, *rest = map(json.loads, path.read_text().splitlines())
        if first != drawn:
            sys.exit(f"expected outcomes of {drawn}, found {first} in {path}; name another file")
        for line in rest:
            lines = range(*line["site"].pop("lines"))
            self.verdicts[Site(**line["site"], lines=lines)] = line["verdict"]

    def add(self, site: Site, verdict: str, noticed: str) -> None:
        self.verdicts[site] = verdict
        if self.path is not None:
            shown = asdict(site) | {"lines": (site.lines.start, site.lines.stop)}
            line = {"verdict": verdict, "noticed": noticed, "site": shown}
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


class Injector:
    """A pytest plugin: instead of the collected tests, those of each change in a forked
    process."""

    def __init__(
        self, chosen: Sequence[Site], tests: dict[str, Any], seconds: float, outcomes: Outcomes
    ) -> None:
        self.chosen, self.tests, self.seconds = chosen, tests, seconds
        self.outcomes = outcomes
        self.items: dict[str, Any] = {}
        self.functions: Functions = {}
        self.sound: set[str] = set()  # tests that notice a change and pass without one
        self.pipe = -1  # where a process names the test that fails

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        reach_children()
        sys.stdout.flush()
        self.warm()
        self.functions = library_functions()
        gc.collect()
        gc.freeze()  # children that collect garbage would copy all pages
        begun = time.monotonic()
        for number, site in enumerate(self.chosen, 1):
            if site in self.outcomes.verdicts:
                continue
            if time.monotonic() - begun > self.seconds:
                break
            start = time.monotonic()
            verdict, tried, noticed = self.verdict(site)
            self.outcomes.add(site, verdict, noticed)
            spent = time.monotonic() - start
            text = (
                f"{number:4d} {verdict:11s} {tried:3d} tests {spent:5.1f} s"
                f" {site.path}:{site.line} {site.function}: {site.before}  ->  {site.after}"
                f"  {noticed}\n"
            )
            os.write(OUT, text.encode())
        return True

    def warm(self) -> None:
        """Run the quickest test of each file, so that what tests import when they run is imported
        once and not in every process."""
        quickest: dict[str, str] = {}
        known = [name for name in self.items if name in self.tests]
        for name in sorted(known, key=lambda name: self.tests[name]["seconds"]):
            quickest.setdefault(name.partition("::")[0], name)
        for name in quickest.values():
            item = self.items[name]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def covering(self, site: Site) -> list[str]:
        """The tests that run the changed statement: those of its own file first, then those that
        enter few functions; as many as take some seconds."""
        own, stem = f"{site.path}:{site.function}", Path(site.path).stem
        found = [
            name
            for name, each in self.tests.items()
            if name in self.items and any(n in site.lines for n in each["functions"].get(own, ()))
        ]

        def order(name: str) -> tuple[bool, float]:
            each = self.tests[name]
            named = f"test_{stem}.py" in name
            return not named, len(each["functions"]) + 100 * each["seconds"]

        chosen, spent = [], 0.0
        for name in sorted(found, key=order):
            spent += self.tests[name]["seconds"]
            if chosen and spent > LONGEST:
                break
            chosen.append(name)
        files = list(dict.fromkeys(name.partition("::")[0] for name in chosen))
        return sorted(chosen, key=lambda name: files.index(name.partition("::")[0]))

    def verdict(self, site: Site) -> tuple[str, int, str]:
        """What became of a change, how many tests were to run and which of them noticed it."""
        while names := self.covering(site):
            found, noticed = self.attempt(site, names)
            if found != "killed" or noticed in self.sound:
                break
            if self.attempt(None, [noticed])[0] == "SURVIVED":
                self.sound.add(noticed)
                break
            del self.tests[noticed]
            os.write(OUT, f"left out, since it fails without a change: {noticed}\n".encode())
        else:
            return "not entered", 0, ""
        return found, len(names), noticed

    def attempt(self, site: Site | None, names: list[str]) -> tuple[str, str]:
        """Run tests in a process with a change, or with none; the first that fails."""
        expected = sum(self.tests[name]["seconds"] for name in names)
        reader, self.pipe = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            self.run(site, [self.items[name] for name in names], SECONDS + expected)
        os.close(self.pipe)
        limit, done, status = time.monotonic() + HUNG, 0, 0
        while not done:
            done, status = os.waitpid(child, os.WNOHANG)
            if not done and time.monotonic() > limit:
                os.killpg(child, signal.SIGKILL)  # and processes that it started
                os.waitpid(child, 0)
                os.close(reader)
                return "hung", ""
            time.sleep(0.01)
        with os.fdopen(reader) as file:
            noticed = file.read()
        if os.WIFSIGNALED(status):
            timed = os.WTERMSIG(status) == signal.SIGPROF
            return ("timed out" if timed else "killed"), noticed or names[0]
        verdict = {0: "SURVIVED", 3: "no function"}.get(os.WEXITSTATUS(status), "killed")
        return verdict, noticed or (names[0] if verdict == "killed" else "")

    def run(self, site: Site | None, items: list[Any], seconds: float) -> None:
        """Run the tests under the change and end the process: 0 if all pass."""
        code = 1
        os.setsid()
        try:
            sink = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(sink, stream)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            code = 3
            if site is not None:
                os.environ[CHANGE] = f"{site.path}:{site.number}"
                if not inject(site, self.functions):
                    os._exit(code)
            code = 1
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            code = 0
        finally:
            os._exit(code)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.pipe >= 0:
            os.write(self.pipe, report.nodeid.encode())
            os._exit(1)


OUT = os.dup(1)
"""Standard output, which pytest takes for itself."""


def run_pytest(tests: Sequence[str], plugin: Any) -> int:
    """Collect the tests with a plugin that says what happens with them."""
    left_out = [f"--deselect={path}" for path in IGNORED]
    unused = [f"-pno:{name}" for name in ("cacheprovider", "timeout", "xdist", "terminal")]
    own = ["-o", "addopts=", "-m", "not slow", *unused]
    return int(pytest.main([*tests, *left_out, *own], [plugin]))


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
    parser.add_argument("--seconds", type=float, default=math.inf, help="none is begun after")
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES))
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--map", type=Path, default=ROOT / ".mutation_map.json")
    parser.add_argument("--kept", type=Path, help="outcomes to go on from, as lines of JSON")
    parser.add_argument("--record", action="store_true", help="add tests that --map lacks")
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    os.chdir(ROOT)
    if asked.record or not asked.map.exists():
        print("recording which test enters which function", flush=True)
        child = os.fork()
        if not child:
            os._exit(run_pytest(asked.tests, Recorder(asked.map)))
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) not in (0, 1, 5):  # some fail, or all are known
            sys.exit("expected tests that can be collected, found errors; run pytest to see them")
    every = list(sites(asked.packages))
    chosen = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    drawn = {name: getattr(asked, name) for name in ("seed", "count", "packages")}
    drawn["places"] = len(every)
    outcomes = Outcomes(asked.kept, drawn)
    tests = json.loads(asked.map.read_text())
    run_pytest(asked.tests, Injector(chosen, tests, asked.seconds, outcomes))
    counts = Counter(outcomes.verdicts.values())
    survived, killed = counts["SURVIVED"], counts["killed"] + counts["timed out"]
    tried, missed = survived + killed, counts["not entered"] + counts["no function"]
    print(
        f"{len(every)} places, {tried + missed} tried: {killed} noticed ({counts['timed out']} by"
    )
    print(f"their time), {survived} survived, {missed} in functions that no test enters")
    for what, number, of in (
        ("of those that tests enter", survived, tried),
        ("of all", survived + missed, tried + missed),
    ):
        if of:
            low, high = interval(number, of)
            print(
                f"surviving share {what} {number / of:.1%}, 95 % interval {low:.1%} to {high:.1%}"
            )


if __name__ == "__main__":
    main()
