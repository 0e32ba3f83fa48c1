"""Tests import the small worlds by name, and never write into the real runs folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _runs_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("MONGE_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("MONGE_DATA", raising=False)
