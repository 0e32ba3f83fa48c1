"""The example that tests comparisons from papers and books."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("examples.claims")


def test_a_claim_is_one_command_and_one_figure(claims, monkeypatch, tmp_path, capsys):
    out = tmp_path / "claim.png"
    monkeypatch.setattr("sys.argv", ["claims", "5", "-o", str(out), "--steps", "1"])
    claims.main()
    printed = capsys.readouterr().out
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert re.search(r"^LSTM .*\b40 \S+ .*\d$", printed, re.M)
    assert re.search(r"^(held|FAILED)  ", printed, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 7))
def test_the_claims_hold(claims, tmp_path, number):
    found = claims.examine(number, tmp_path / "claim.png")
    assert all(found.held.values()), found
