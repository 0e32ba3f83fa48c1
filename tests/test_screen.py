"""What stands on a narrow screen, and sentences of the system."""

import pytest

from monge.cli._say import Voice
from monge.cli.compare import Crier
from monge.cli.main import refused
from monge.comparison import Comparison, Plan


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(Voice, "room", 40)
    return Voice(False, False, False)


def test_columns_that_do_not_fit_go_on_below(narrow):
    rows = [[place, f"family.model{place}", *(value / 7 for value in range(6))]
            for place in range(3)]
    text = narrow.table(("", "model", *"ABCDEF"), rows, keys=2)
    assert max(map(len, text.splitlines())) <= 40
    first, second, *_ = text.split("\n\n")
    assert "family.model2" in first
    assert "family.model2" in second
    assert [head in first for head in "AF"] == [True, False]


def test_long_help_is_wrapped_beneath_itself(narrow):
    lines = narrow.table(("field", ""), [["width", "many words " * 9]], wide=None).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[2].startswith(" " * 7 + "many")


def test_models_left_out_for_missing_values_are_told_of(tmp_path, capsys):
    reasons = {"flow.maf": "maf cannot train on rows with missing values; ..."}
    plan = Plan("my.csv", (), ("baseline.tree",), "5s", refused=reasons)
    Crier(Voice(False, False, False), 1, None).tell(Comparison(plan, tmp_path))
    assert "1 models do not train on missing values and are left out" in capsys.readouterr().err


def test_a_file_gets_whole_lines(monkeypatch):
    monkeypatch.setattr(Voice, "room", None)
    text = Voice(False, False, False).table("abc", [["x" * 60] * 3])
    assert len(text.splitlines()) == 2


def test_a_file_that_cannot_be_opened_is_named():
    told = refused(NotADirectoryError(20, "Not a directory", "plan/a.csv"))
    assert told == ("plan/a.csv cannot be opened (Not a directory); check the path and who may "
                    "write there, or choose another place")
    assert refused(OSError("no space")) == "the system refused: no space"
