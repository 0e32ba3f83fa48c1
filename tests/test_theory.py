"""docs/theory.md points at what exists: names import, models are listed, identities are there,
and every formula cites a work of the list of references."""

import importlib
import re
from pathlib import Path

from monge import registry
from monge.cli.main import commands
from monge.verify.framework import listed

TEXT = (Path(__file__).parents[1] / "docs" / "theory.md").read_text()
BODY = TEXT.partition("\n## ")[2]
TABLES, _, REFERENCES = BODY.partition("\n## References\n")
QUOTED = re.findall(r"`([^`]+)`", BODY)
WORK = r"[^\d;|]*[A-Zv][^\d;|]+ (?:19|20)\d\d[a-c]?"
"""Author(s) and year."""


def resolves(name: str) -> bool:
    """Whether `monge.<name>` is a module or a name in one."""
    module, _, last = name.rpartition(".")
    try:
        importlib.import_module(f"monge.{name}")
    except ModuleNotFoundError:
        return last in vars(importlib.import_module(f"monge.{module}"))
    return True


def test_every_name_is_a_model_or_imports():
    full = [entry.name for entry in registry.entries()]
    known = {*full, *(name.partition(".")[2] for name in full)}
    names = [name for name in QUOTED if re.fullmatch(r"[a-z_]\w*(\.\w+)*", name)]
    assert len(names) > 100
    lost = [
        name
        for name in names
        if name not in known and not name.startswith(("sample.", "score.")) and not resolves(name)
    ]
    assert not lost


def test_every_identity_is_named_and_none_is_invented():
    named = set(re.findall(r"\bX\d+\b", BODY))
    assert named == {listing.id for listing in listed() if listing.id.startswith("X")}


def test_every_formula_cites_a_listed_work_and_no_other_is_listed():
    rows = [row.strip("| ").split("|") for row in TABLES.splitlines() if row.startswith("| ")]
    cells = [row[-1].strip() for row in rows if row[0].strip() != "formula"]
    assert len(cells) > 80
    cited = [
        re.fullmatch(rf"({WORK})(?:, (?:sec|ch|eq|remark).+)?", each)
        for cell in cells
        for each in cell.split("; ")
    ]
    assert all(cited)
    listing = [line.removeprefix("- ") for line in REFERENCES.strip().splitlines()]
    known = [re.fullmatch(rf"({WORK}), .{{8,}}", each) for each in listing]
    assert all(known)
    names = [each[1] for each in known]
    assert len(names) == len(set(names))
    assert {each[1] for each in cited} == set(names)
    assert not re.search(r"\bnotes?\b|\bcourse\b|\d{3}:\d", TEXT)


def test_its_verbs_and_files_exist():
    assert set(re.findall(r"`monge (\w+)", TEXT)) <= set(commands())
    for path in re.findall(r"python (?:-m )?([\w./]+)", TEXT):
        file = path if path.endswith(".py") else path.replace(".", "/") + ".py"
        assert (Path(__file__).parents[1] / file).is_file(), path
