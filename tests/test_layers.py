"""Imports point down: who may see whom, read from the syntax trees."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "monge"

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
    "verify": {"core", "solve", "nn", "prob", "models", "data", "train", "evaluate", "registry"},
}


def seen(path: Path) -> set[str]:
    """The first names below `monge` that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1].relative_to(ROOT).parts if node.level else ()
            below = (*base, *(node.module or "").split("."))
            if node.level and (below := [part for part in below if part]):
                names.add(below[0])
            elif node.level:
                names |= {alias.name for alias in node.names}
            elif (node.module or "").startswith("monge."):
                names.add(node.module.split(".")[1])
    return names


@pytest.mark.parametrize("package", sorted(SEES))
def test_imports_point_down(package):
    for path in (ROOT / package).rglob("*.py"):
        above = seen(path) - SEES[package] - {package}
        assert not above, f"{path.relative_to(ROOT)} imports {above}"


def test_models_never_import_one_another():
    """They share the private files of their family, and those beside the families."""
    for path in (ROOT / "models").glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level in (1, 2):
                names = [node.module] if node.module else [alias.name for alias in node.names]
                assert all(name.startswith("_") and "." not in name for name in names), (
                    f"{path.name} imports {names}"
                )


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
