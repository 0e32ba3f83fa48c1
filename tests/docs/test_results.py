"""The tables of README.md and docs/benchmarks.md are those that results/ gives."""

import json
import re

import pytest

from benchmarks import results
from benchmarks.environments import ENVIRONMENTS
from monge.comparison.published import TABLES


def is_measured_by(name):
    """Whether a table of `monge reproduce`, or a benchmark, writes results of this name."""
    source = results.ROOT / "benchmarks" / f"{name.partition('-')[0]}.py"
    return name in TABLES or "keep(" in source.read_text(encoding="utf-8")


ROWS = [(name, row) for name, each in results.layouts().items() for row in each["rows"]]


@pytest.mark.parametrize("page", results.pages(), ids=lambda page: page.name)
def test_tables_of_a_page_are_made_from_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert results.PLACE.search(text), "no table between marks"
    assert results.regenerated(text) == text, "run `make results`"


def test_every_result_says_where_it_was_measured():
    for name, found in results.kept().items():
        assert found["values"], name
        assert found["seeds"], name
        assert {"processor", "cores", "threads", "system"} <= set(found["machine"]), name
        assert {"python", "torch", "monge"} <= set(found["versions"]), name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]), name
        assert is_measured_by(found.get("benchmark") or found["table"]), name


def test_every_cell_asks_for_what_a_benchmark_keeps():
    for _, row in ROWS:
        assert row["stated"]
        assert row["date"]
        for asked in results.names_in(str(row.get("measured", ""))):
            assert is_measured_by(asked.partition(".")[0]), asked


def test_every_benchmark_that_keeps_values_has_an_environment():
    homes = [name for here in ENVIRONMENTS.values() for name in here.benchmarks]
    assert len(homes) == len(set(homes))
    keeping = {
        path.stem
        for path in (results.ROOT / "benchmarks").glob("*.py")
        if "import keep" in path.read_text(encoding="utf-8")
    }
    assert set(homes) == keeping


def test_nothing_is_kept_where_no_peer_was_there(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match="flows"):
        results.keep("flows", {})
    assert not list(tmp_path.iterdir())


def test_a_value_takes_the_place_of_what_was_stated(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    row = {"what": "a", "measured": "{one.x:.1f} to {one.y:.1f}", "stated": "3", "date": "2020"}
    layout = {"columns": {"what": "what", "here": "measured", "day": "date"}, "rows": [row]}
    assert "| a | 3 | 2020 |" in results.table(layout, results.kept())
    file = results.keep("one", {"x": 1.25})
    assert "| a | 3 | 2020 |" in results.table(layout, results.kept()), "y is not there yet"
    results.keep("one", {"x": 1.26, "y": 2})
    found = json.loads(file.read_text())
    day = found["date"].replace("-", "\u2011")
    assert f"| a | 1.3 to 2.0 | {day} |" in results.table(layout, results.kept())


LINE = {
    "name": "moons-mixture",
    "data": "moons",
    "model": "mixture",
    "settings": [],
    "budget": "40s",
    "repeats": 1,
    "seconds": 2.34,
    "metrics": {"log_likelihood": {"value": -1.23456, "kind": "exact", "interval": [-1.3, -1.1]}},
    "published": [],
    "curve": [{"seconds": 1, "held_out": {"value": -2, "kind": "exact"}}] * 2,
}
RECORD = {
    "table": "toys",
    "date": "2026-01-02",
    "machine": {"processor": "AMD EPYC"},
    "departs": "No paper has this table.",
    "lines": [LINE],
}


def test_a_repeated_table_stands_beside_published_figures():
    published = [{"by": "others", "metric": "log_likelihood", "value": -3, "source": "truth"}]
    bound = {"log_likelihood": {"value": -2, "kind": "bound", "interval": [-2, -2]}}
    more = {"name": "checkerboard-mixture", "data": "checkerboard", "published": published}
    more |= {"metrics": bound, "date": "2026-03-04", "processor": "Intel(R) Xeon(R) Processor"}
    text = results.reproduced({"toys": RECORD | {"lines": [LINE, LINE | more]}})
    assert "| data | model | nats per row | published | seconds |" in text
    first = "| checkerboard | `mixture` | -2 (bound) | -3 (others) | 2.3 |"
    second = "| moons | `mixture` | -1.235 ± 0.1 | | 2.3 |"
    assert text.index(first) < text.index(second), "the order is that of the table"
    dates = "2026-01-02 to 2026-03-04".replace("-", results.NO_BREAK)
    assert f"AMD EPYC, Intel Xeon, {dates}. No paper has this table." in text
    assert "(curves/toys-moons.png)" in text
    assert "budget 9s" in results.reproduced(
        {"toys": RECORD | {"lines": [LINE | {"budget": "9s"}]}}
    )


def test_curves_are_drawn_from_the_results_and_old_ones_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "CURVES", tmp_path)
    (tmp_path / "gone.png").touch()
    results.write_curves({"toys": RECORD, "trainer": {"values": {}}})
    assert [path.name for path in tmp_path.iterdir()] == ["toys-moons.png"]


def test_every_curve_of_the_page_is_there_and_no_other():
    page = (results.ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(curves/([^)]+)\)", page)
    assert sorted(shown) == sorted(path.name for path in results.CURVES.glob("*.png"))


def test_a_row_names_the_processors_of_its_values():
    there = {
        name: {"values": {"x": 1}, "date": "2020", "machine": {"processor": processor}}
        for name, processor in (("one", "Intel(R) Xeon(R) Processor"), ("two", "AMD EPYC"))
    }
    columns = {"here": "measured", "on": "processor"}
    cells = ("{one.x}", "{two.x}", "{one.x} {two.x}", "{three.x}")
    rows = [{"measured": each, "stated": "by hand", "date": "2019"} for each in cells]
    lines = results.table({"columns": columns, "rows": rows}, there).splitlines()[2:]
    assert lines == [
        "| 1 | Intel Xeon |",
        "| 1 | AMD EPYC |",
        "| 1 1 | AMD EPYC, Intel Xeon |",
        "| by hand | |",
    ]
