"""Tests import the small worlds by name, write no runs but their own, and know no deadline."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("monge", deadline=None)  # a busy machine is no failure
settings.load_profile("monge")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _runs_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("MONGE_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("MONGE_DATA", raising=False)
