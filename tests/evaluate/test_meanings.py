"""Every metric of tables has a meaning of one line, in the report and in the documents."""

from pathlib import Path

from monge.core.metric import Metric
from monge.evaluate.meanings import MEANINGS, meaning
from monge.report.sections import metric_meanings

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_document_holds_every_meaning():
    text = DOCUMENT.read_text()
    for group, lines in MEANINGS.items():
        assert f"## {group.capitalize()}" in text
        for name, line in lines.items():
            assert f"| `{name}` | {line} |" in text, name


def test_names_with_columns_and_percentages_are_found():
    assert meaning("tstr_age")[0] == "tstr_*"
    assert meaning("hidden_30_mae")[0] == "hidden_*_mae"
    assert meaning("hidden_30_mae")[1] != meaning("mae")[1]
    assert meaning("nothing") == ("nothing", "")


def test_the_report_explains_what_it_shows_once():
    shown = {
        name: Metric(0.5, "estimate")
        for name in ("exact_copies", "exact_copies_of_real_rows", "tstr_a", "tstr_b", "nothing")
    }
    text = metric_meanings(shown)
    assert text.count("<li>") == 2
    assert MEANINGS["privacy"]["exact_copies"] in text
    assert metric_meanings({"nothing": Metric(0.5, "estimate")}) == ""
