"""Every tutorial runs, with MONGE_TUTORIALS=whole with its own budgets, otherwise briefly; what
its page shows was printed and drawn by its code."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
LONGEST, LARGEST = 120, 900_000
"""Seconds of one core that a tutorial takes, and bytes of all pictures."""


@pytest.fixture(scope="module")
def runner():
    """The script that runs tutorials in full."""
    sys.path.insert(0, str(ROOT))
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "scripts" / "tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_tutorial_is_listed():
    text = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    assert {path.name for path in TUTORIALS} == set(re.findall(r"`(\w+\.py)`", text))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_page_shows_what_its_code_printed(path, runner):
    record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert record["code"] == runner.digest(path), f"run scripts/tutorials.py {path.stem}"
    assert len(record["cells"]) == len(runner.code_of(path))
    assert record["seconds"] <= LONGEST
    named = {name for cell in record["cells"] for name in cell["pictures"]}
    assert named == set(re.findall(r"(\w+\.png)", path.read_text()))
    assert all((runner.PICTURES / name).exists() for name in named)


def test_pictures_are_small_and_belong_to_a_tutorial(runner):
    texts = "".join(path.read_text() for path in TUTORIALS)
    files = list(runner.PICTURES.iterdir())
    assert all(file.name in texts for file in files)
    assert sum(file.stat().st_size for file in files) < LARGEST


def test_a_script_is_cut_into_prose_and_code(runner):
    script = (
        "# ---\n# x\n# ---\n# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\na = 1\n\n# %%\nb = 2\n"
    )
    assert runner.cells(script) == [(False, "# Title\n\nText."), (True, "a = 1"), (True, "b = 2")]


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    text = path.read_text()
    if os.environ.get("MONGE_TUTORIALS") != "whole":
        text = re.sub(r'"\d+steps"', '"4steps"', text)
    exec(compile(text, path.name, "exec"), {"__name__": "__main__"})
    assert list(tmp_path.glob("*.png"))
