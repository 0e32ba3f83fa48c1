"""Every tutorial runs; with MONGE_TUTORIALS=whole with its own budgets, otherwise briefly."""

import os
import re
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


def test_every_tutorial_is_listed():
    text = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    assert {path.name for path in TUTORIALS} == set(re.findall(r"`(\w+\.py)`", text))


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    text = path.read_text()
    if os.environ.get("MONGE_TUTORIALS") != "whole":
        text = re.sub(r'(budget=|BUDGET = )"\d+s"', r'\1"4steps"', text)
    exec(compile(text, path.name, "exec"), {"__name__": "__main__"})
