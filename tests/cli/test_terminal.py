"""Tables on narrow terminals and in pipes, and errors of the operating system."""

import os
import re
import subprocess
import sys

import pytest

from monge.cli._output import Console
from monge.cli.compare import ProgressReporter
from monge.cli.main import describe_os_error
from monge.comparison.plan import ComparisonPlan
from monge.comparison.runner import Comparison


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(Console, "width", lambda console, err=False: 40)
    return Console(False, False, False)


@pytest.fixture
def piped(monkeypatch):
    monkeypatch.setattr(Console, "width", lambda console, err=False: None)
    return Console(False, False, False)


def test_columns_that_do_not_fit_continue_below(narrow):
    rows = [
        [number, f"family.model{number}", *(value / 7 for value in range(6))]
        for number in range(3)
    ]
    text = narrow.table(("", "model", *"ABCDEF"), rows, keys=2)
    assert max(map(len, text.splitlines())) <= 40
    first, second, *_ = text.split("\n\n")
    assert "family.model2" in first
    assert "family.model2" in second
    assert [head in first for head in "AF"] == [True, False]


def test_long_help_is_wrapped_in_its_column(narrow):
    lines = narrow.table(("field", ""), [["width", "many words " * 9]]).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[3].startswith(" " * 7 + "many")


def test_nothing_is_cut_on_a_terminal(narrow):
    """Neither a word longer than a line, nor columns none of which fits."""
    long = "".join(chr(ord("a") + number % 26) for number in range(95))
    for head, row in (
        (("a", "b"), ["key", long]),
        (("a", "b"), [long, long[::-1]]),
        (("a", "b", "c"), [f"{long[:38]}", 12345678.0, "two words"]),
    ):
        text = narrow.table(head, [row])
        assert max(map(len, text.splitlines())) <= 40
        for cell in row:
            shown = cell if isinstance(cell, str) else f"{cell:.4g}"
            held = iter(text)
            assert all(letter in held for letter in shown.replace(" ", ""))


def test_names_are_not_wrapped_if_text_can_be(narrow):
    text = narrow.table(
        ("model", "takes", "says"),
        [["family.model", "a, b, c, d, e, f, g, h, i", "some words " * 6]],
    )
    assert "family.model " in text
    assert len(text.splitlines()) > 3


def test_a_file_gets_whole_lines(piped):
    row = ["x" * 300, "[bold]no markup[/bold] :smile:", 1 / 3, None, ("a", "b")]
    text = piped.table("abcde", [row, ["y", "", 2.0, 1, ()]])
    assert len(text.splitlines()) == 3
    assert "x" * 300 + "  [bold]no markup[/bold] :smile:  0.3333" in text
    assert text.isascii()


def test_wide_letters_are_aligned(piped):
    text = piped.table(("name", "n"), [["\u65e5\u672c\u8a9e", 1], ["abcdef", 2]])
    head, one, two = text.split("\n")
    assert one == "\u65e5\u672c\u8a9e  1"
    assert two == "abcdef  2"
    assert head == "name    n"


def test_pipes_get_plain_text_even_if_colour_is_forced(tmp_path):
    code = (
        "from monge.cli._output import Console; v = Console(False, False, False); "
        "v.result(None, v.table(('a', 'b'), [['x' * 200, 1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"FORCE_COLOR": "1", "COLUMNS": "40"},
    )
    assert done.stdout == f"a{' ' * 201}b\n{'x' * 200}  1\n", done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_gets_its_own_width():
    import pty

    code = (
        "from monge.cli._output import Console; v = Console(False, False, False); "
        "v.result(None, v.table(('a', 'b'), [['words ' * 20, 1]]))"
    )
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"COLUMNS": "50", "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    shown = os.read(ours, 10000).decode()
    os.close(ours)
    assert done.returncode == 0, done.stderr
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 50
    assert sum(line.count("words") for line in lines) == 20


def test_models_left_out_for_missing_values_are_reported(tmp_path, capsys):
    reasons = {"flow.maf": "maf cannot train on rows with missing values; ..."}
    plan = ComparisonPlan("my.csv", (), ("baseline.chow_liu",), "5s", refused=reasons)
    ProgressReporter(Console(False, False, False), 1, None).report(Comparison(plan, tmp_path))
    err = capsys.readouterr().err
    assert re.search(r"\b1\b", err)
    assert "data.missing=drop" in err


def test_a_file_that_cannot_be_opened_is_named():
    message = describe_os_error(NotADirectoryError(20, "Not a directory", "plan/a.csv"))
    assert "plan/a.csv" in message
    assert "Not a directory" in message
    assert "no space" in describe_os_error(OSError("no space"))
