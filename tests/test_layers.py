"""Imports point down: who may see whom, read from the syntax trees."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "monge"

BELOW_RUN = {"core", "solve", "nn", "prob", "models", "data", "train", "evaluate", "plot"}
SEES = {
    "core": set(),
    "solve": {"core"},
    "nn": {"core"},
    "prob": {"core", "solve"},
    "models": {"core", "nn", "prob", "solve"},
    "data": {"core"},
    "train": {"core"},
    "evaluate": {"core", "nn", "prob", "solve"},
    "plot": {"core", "evaluate"},
    "registry": {"core"},
    "verify": {"core", "solve", "nn", "prob", "models", "data", "train", "evaluate", "registry"},
    "run": BELOW_RUN | {"registry", "__init__"},
    "report": BELOW_RUN | {"registry", "run", "comparison"},
    "comparison": BELOW_RUN | {"registry", "run", "report"},
    "estimator": {"core", "data", "evaluate", "registry", "run"},
    "serve": BELOW_RUN | {"registry", "run", "__init__"},
    "studio": BELOW_RUN | {"registry", "run", "report", "comparison", "serve"},
    "cli": BELOW_RUN | {"registry", "run", "report", "comparison", "verify", "serve", "studio"},
    "__init__": {"core", "data", "run", "comparison", "report", "estimator"},
    "__main__": {"cli"},
}
"""Which packages and root modules each may import; `__init__` is the root itself."""


def runtime_imports(path: Path) -> list[ast.ImportFrom]:
    """The `from` imports of a file, inside functions too, apart from those under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in typing_only
    ]


def modules() -> dict[tuple[str, ...], Path]:
    """Every module by its parts below `monge`; a package is its `__init__`."""
    return {
        path.relative_to(ROOT).with_suffix("").parts: path for path in sorted(ROOT.rglob("*.py"))
    }


def imported(path: Path, known: dict[tuple[str, ...], Path]) -> set[tuple[str, ...]]:
    """The modules of `monge` that a file imports."""
    found = set()
    for node in runtime_imports(path):
        if node.level:
            base = path.parents[node.level - 1].relative_to(ROOT).parts
        elif (node.module or "").split(".")[0] == "monge":
            base = ()
        else:
            continue
        inner = (node.module or "").split(".")
        parts = (*base, *(part for part in (inner if node.level else inner[1:]) if part))
        for name in (alias.name for alias in node.names):
            options = ((*parts, name), (*parts, name, "__init__"), parts, (*parts, "__init__"))
            found |= {next(option for option in options if option in known)}
    return found


def import_cycles(graph: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[set]:
    """Sets of modules that import one another, directly or not."""

    def reach(start: tuple[str, ...]) -> set[tuple[str, ...]]:
        seen, waiting = set(), [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        return seen

    reached = {module: reach(module) for module in graph}
    cycles = []
    for module in graph:
        cycle = {other for other in reached[module] if module in reached.get(other, set())}
        if cycle and cycle not in cycles:
            cycles.append(cycle)
    return cycles


def test_every_package_and_root_module_has_its_layer():
    assert {parts[0] for parts in modules()} == set(SEES)


@pytest.mark.parametrize("package", sorted(SEES))
def test_imports_point_down(package):
    known = modules()
    for parts, path in known.items():
        if parts[0] == package:
            above = {target[0] for target in imported(path, known)} - SEES[package] - {package}
            assert not above, f"{path.relative_to(ROOT)} imports {above}"


def test_no_module_imports_itself_through_others():
    """Imports inside functions count: a cycle must not be hidden in one."""
    known = modules()
    graph = {parts: imported(path, known) - {parts} for parts, path in known.items()}
    assert not import_cycles(graph)


def test_a_cycle_is_found():
    graph = {("a",): {("b",)}, ("b",): {("c",)}, ("c",): {("b",)}, ("d",): {("a",)}}
    assert import_cycles(graph) == [{("b",), ("c",)}]


def test_models_never_import_one_another():
    """They share the private files of their family, and those beside the families."""
    for path in (ROOT / "models").glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level in (1, 2):
                names = [node.module] if node.module else [alias.name for alias in node.names]
                assert all(name.startswith("_") and "." not in name for name in names), (
                    f"{path.name} imports {names}"
                )


def test_no_model_makes_a_tensor_when_it_is_imported():
    """Models are also imported while shapes alone are traced, where tensors have no values."""
    for package in ("core", "solve", "nn", "prob", "models"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                calls = [
                    call.func
                    for call in ast.walk(node)
                    if isinstance(node, ast.Assign) and isinstance(call, ast.Call)
                ]
                made = [ast.unparse(each) for each in calls]
                assert not [each for each in made if each.startswith("torch.")], path


def test_only_the_command_line_prints():
    for path in ROOT.rglob("*.py"):
        if path.is_relative_to(ROOT / "cli"):
            continue
        calls = [
            n.func.id
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        ]
        assert not {"print", "hasattr"} & set(calls), path
