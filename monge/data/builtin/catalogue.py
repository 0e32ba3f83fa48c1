"""The built-in datasets, listed from the source of their modules, as importing takes seconds."""

from __future__ import annotations

import ast
import difflib
import glob
import importlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import DataError

if TYPE_CHECKING:
    from ..options import Options
    from ..readers.base import RawData


@cache
def listing(module: str) -> list[tuple[str, str]]:
    """The public functions of a module in data/, each with the first line of its docstring."""
    text = (Path(__file__).parents[1] / f"{module}.py").read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return [
        (node.name, (ast.get_docstring(node) or "").partition("\n")[0])
        for node in found
        if not node.name.startswith("_")
    ]


def names() -> list[tuple[str, str]]:
    """Every built-in dataset with its summary."""
    return listing("builtin/toy") + listing("builtin/synthetic") + listing("builtin/sklearn_sets")


def make(name: str, options: Options) -> RawData:
    """A built-in dataset."""
    if name in dict(listing("builtin/toy")):
        from . import toy

        return getattr(toy, name)().raw(name, options)
    if name in dict(listing("builtin/synthetic")):
        from . import synthetic

        return getattr(synthetic, name)(options)
    return getattr(importlib.import_module(f"{__package__}.sklearn_sets"), name)()


def locate(text: str) -> tuple[str | Path, list[str]]:
    """A built-in name or a path, and the transforms that follow it after each plus."""
    pieces = text.split("+")
    for most in range(len(pieces), 0, -1):  # a path may contain a plus
        base, transforms = "+".join(pieces[:most]), pieces[most:]
        if base.isidentifier() and base in dict(names()):  # not a path
            return base, transforms
        for folder in (Path(), *search_path()):
            for path in (folder / base, folder / f"{base}.gz"):  # or compressed
                if base and os.path.exists(path):  # false if the name is too long
                    return path, transforms
    raise DataError(f"there is no data called {pieces[0]!r}{suggestion(pieces[0])}")


def matching(text: str) -> list[Path]:
    """The files of a pattern such as big/*.parquet, in order; none if it is not one."""
    if not glob.has_magic(text) or os.path.exists(text):
        return []
    for folder in (Path(), *search_path()):
        if found := sorted(Path(path) for path in glob.glob(os.path.join(folder, text))):
            return found
    return []


def absolute(text: str) -> str:
    """The same data named so that they are found from any folder: paths are absolute."""
    if found := matching(text):
        return os.path.join(os.path.abspath(found[0].parent), os.path.basename(text))
    for mark in ("~", ","):
        sides = text.split(mark)
        if len(sides) == 2 and not os.path.exists(text):
            return mark.join(map(absolute, sides))
    place, transforms = locate(text)
    start = os.path.abspath(place) if isinstance(place, Path) else place
    return "+".join([start, *transforms])


def moved(text: str, size: int | None) -> list[str]:
    """Where data that are no longer at their absolute path may be now: files of the same name or
    size beside the old place, in the current folder and in those of MONGE_DATA."""
    base, *transforms = text.split("+")
    old = Path(base)
    folders = dict.fromkeys([old.parent, Path(), *search_path()])
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
    named = [path for path in files if path.name == old.name]
    alike = [
        path
        for path in files
        if size and path.suffix == old.suffix and path.is_file() and path.stat().st_size == size
    ]
    found = dict.fromkeys(os.path.abspath(path) for path in (*named, *alike))
    return ["+".join([path, *transforms]) for path in found]


def search_path() -> list[Path]:
    """The folders of MONGE_DATA."""
    return [Path(part) for part in os.environ.get("MONGE_DATA", "").split(os.pathsep) if part]


def suggestion(name: str) -> str:
    """The closest match among built-in names, files beside the missing one, and MONGE_DATA."""
    parent = Path(name).parent
    folders = [parent, *(folder / parent for folder in search_path())]
    beside = [
        str(parent / path.name)
        for folder in folders
        if os.path.isdir(folder)
        for path in sorted(folder.iterdir())
        if path.name[0] != "."
    ]
    close = difflib.get_close_matches(name, [built_in for built_in, _ in names()] + beside, 1, 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return "; give a path or a built-in name (listed by `monge data`)"
