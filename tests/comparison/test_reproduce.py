"""Published tables: the registry is sound, fits go on where they were, and figures are kept."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from monge import registry
from monge.cli.reproduce import command
from monge.comparison import published, reproduction
from monge.comparison.plan import make_plan
from monge.comparison.published import DEBD, SOURCES, TABLES, Figure, Fit, Table
from monge.core.errors import DataError, RunError, UsageError
from monge.train.budget import Budget

SMALL = Table(
    "small",
    "two fits",
    (
        Fit(
            "iris",
            "gaussian",
            "5s",
            ("log_likelihood",),
            (Figure("us", "log_likelihood", -2.5, "many"),),
        ),
        Fit(
            "iris",
            "made",
            "12steps",
            ("log_likelihood", "bits_per_dim"),
            settings=("width=8", "train.eval_every=4"),
        ),
    ),
    "in nothing",
)


def test_every_table_says_what_it_is_and_names_what_there_is():
    for table in TABLES.values():
        assert table.title, table.name
        assert table.departs.endswith("."), table.name
        names = [fit.name for fit in table.fits]
        assert len(names) == len(set(names)), table.name
        for fit in table.fits:
            assert registry.describe(fit.model)
            assert Budget.read(fit.budget).seconds < 3600
            assert fit.metrics
            assert (fit.repeats > 1) == any("{k}" in w for w in fit.settings) or fit.hidden
            for figure in fit.published:
                assert figure.source in SOURCES
                assert figure.metric in fit.metrics


def test_the_table_of_digits_has_every_model_that_takes_them():
    assert sorted(TABLES["digits"].models) == sorted(make_plan("digits").models)


def test_figures_are_measured_once_and_kept_beside_published_ones(tmp_path, monkeypatch):
    home, out = tmp_path / "fits", tmp_path / "results"
    found = list(reproduction.reproduce(SMALL, home=home))
    assert [each.repeat for each in found] == [0, None, 0, None], "a line as soon as it is whole"
    first, second = found[1::2]
    assert first.metrics["log_likelihood"].kind == "exact"
    low, high = first.interval("log_likelihood")
    assert high - low == pytest.approx(2 * 1.96 * first.metrics["log_likelihood"].stderr)
    monkeypatch.setattr(reproduction, "open_run", lambda *_, **__: pytest.fail("fitted again"))
    again = [found for found in reproduction.reproduce(SMALL, home=home) if found.repeat is None]
    assert again == [first, second]
    path = reproduction.write(SMALL, again, out, home)
    kept = json.loads(path.read_text())
    assert kept["values"]["iris_gaussian_log_likelihood"] == first.metrics["log_likelihood"].value
    assert {"date", "seeds", "commit", "machine", "versions", "departs"} <= set(kept)
    gaussian, made = kept["lines"]
    assert gaussian["published"][0]["value"] == -2.5
    assert len(made["curve"]) == 3
    seconds = [point["seconds"] for point in made["curve"]]
    assert seconds == sorted(seconds)
    assert all(point["held_out"]["kind"] == "exact" for point in made["curve"])
    assert (out / "curves" / "small-iris.png").exists()
    reproduction.write(SMALL, again[1:], out, home)
    assert len(json.loads(path.read_text())["lines"]) == 2, "lines not measured now are kept"


def test_a_line_keeps_its_day_and_processor_or_has_those_of_its_file(tmp_path):
    line = dict.fromkeys(sorted(reproduction.LINE_KEYS), 0) | {"name": "old"}
    own = line | {"name": "own", "date": "2020-02-02", "processor": "B"}
    record = {"date": "2020-01-01", "machine": {"processor": "A"}, "lines": [line, own]}
    (tmp_path / "small.json").write_text(json.dumps(record))
    found = reproduction.kept_lines(tmp_path / "small.json")
    assert [(each["date"], each["processor"]) for each in found.values()] == [
        ("2020-01-01", "A"),
        ("2020-02-02", "B"),
    ]
    assert reproduction.kept_lines(tmp_path / "none.json") == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lines": []}', '{"lines": 3, "date": ""}'])
def test_other_files_are_refused_before_the_first_fit(tmp_path, monkeypatch, text):
    monkeypatch.setattr(reproduction, "open_run", lambda *_, **__: pytest.fail("fitted"))
    (tmp_path / "toys.json").write_text(text)
    found = CliRunner().invoke(command, ["toys", "--out", str(tmp_path)])
    assert isinstance(found.exception, RunError)
    assert (tmp_path / "toys.json").read_text() == text


def test_an_interrupted_fit_goes_on(tmp_path):
    fit = SMALL.fits[1]
    whole = reproduction.measure(fit, 0, tmp_path / "whole")
    folder = reproduction.folder_of(fit, 0, tmp_path / "parts")
    steps = reproduction.open_run(fit, 0, folder, 1).train(fit.budget)
    assert next(steps).step < 12
    steps.close()
    assert not (folder / "metrics.json").exists()
    assert reproduction.measure(fit, 0, tmp_path / "parts").metrics == whole.metrics


def test_other_budgets_and_settings_are_other_fits(tmp_path):
    fit = SMALL.fits[1]
    others = [
        replace(fit, budget="3steps"),
        replace(fit, settings=("width=9",)),
        replace(fit, rows=3),
    ]
    folders = {reproduction.folder_of(each, 0, tmp_path) for each in [fit, *others]}
    assert len(folders) == 4
    same = replace(fit, published=(), repeats=3)
    assert reproduction.folder_of(same, 0, tmp_path) == reproduction.folder_of(fit, 0, tmp_path)


def test_repeats_give_a_mean_with_the_error_over_them(tmp_path):
    table = replace(SMALL, fits=(replace(SMALL.fits[0], settings=("data.seed={k}",), repeats=3),))
    *each, mean = reproduction.reproduce(table, home=tmp_path)
    values = [found.metrics["log_likelihood"].value for found in each]
    assert len(set(values)) == 3
    score = mean.metrics["log_likelihood"]
    assert score.value == pytest.approx(np.mean(values))
    assert score.stderr == pytest.approx(np.std(values, ddof=1) / 3**0.5)


def test_only_the_first_rows_are_scored_where_a_table_says_so(tmp_path):
    fit = SMALL.fits[0]
    run = reproduction.open_run(fit, 0, tmp_path / "run", 1)
    for _ in run.train("5s"):
        pass
    values = run.log_likelihood().value
    found = reproduction.likelihoods(run, replace(fit, rows=4))["log_likelihood"]
    assert found.value == pytest.approx(values[:4].mean())


def test_hidden_cells_are_hidden_in_the_fit_and_scored(tmp_path):
    fit = Fit("iris", "gaussian", "5s", ("absolute_error",), hidden=0.2)
    truth = reproduction.scaled(fit)
    hidden = reproduction.hidden_mask(fit, 0, truth.shape)
    score = reproduction.measure(fit, 0, tmp_path).metrics["absolute_error"].value
    seen = np.where(hidden, np.nan, truth)
    by_median = np.abs(np.nanmedian(seen, 0) - truth)[hidden].mean()
    assert 0.02 < score < 0.6 * by_median
    lines = (tmp_path / "iris-hidden-0" / "train.csv").read_text().splitlines()[1:]
    assert sum(line.split(",").count("") for line in lines) == hidden.sum()


def test_folders_of_the_same_form_are_taken_too(tmp_path, monkeypatch):
    monkeypatch.setenv("MONGE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="debd/nltcs"):
        DEBD.here()
    rows = "\n".join(["0,1,1", "1,0,0", "1,1,1", "0,0,1"] * 10)
    for split in ("train", "valid", "test"):
        path = tmp_path / "debd" / "own" / f"own.{split}.data"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rows + "\n")
    names = [fit.name for fit in DEBD.here()]
    assert names == ["own-independent", "own-chow_liu", "own-made"]
    with pytest.raises(UsageError, match="nltsc"):
        DEBD.here(["nltsc"])
    monkeypatch.setenv("MONGE_DATA", "")
    words = ["debd", "--data", str(tmp_path / "debd"), "--only", "own-chow", "--json"]
    words += ["--out", str(tmp_path / "results")]
    found = CliRunner().invoke(command, words, catch_exceptions=False)
    (line,) = json.loads(found.stdout)["lines"]
    assert line["name"] == "own-chow_liu"
    assert -3 * np.log(2) < line["metrics"]["log_likelihood"]["value"] < -np.log(4)


def test_a_whole_name_means_that_fit_alone():
    one, other = SMALL.fits[0], replace(SMALL.fits[0], label="tuned")
    table = replace(SMALL, fits=(one, other))
    assert other.name == f"{one.name}-tuned"
    assert table.here([one.name]) == [one]
    assert table.here(["tuned"]) == [other]
    assert table.here([one.name[:-1]]) == table.here() == [one, other]


def test_a_metric_that_a_model_does_not_have_is_named(tmp_path):
    with pytest.raises(RunError, match="bleu"):
        reproduction.measure(replace(SMALL.fits[0], metrics=("bleu",)), 0, tmp_path)


def test_the_listing_says_what_is_here(monkeypatch, tmp_path):
    monkeypatch.setenv("MONGE_DATA", str(tmp_path))
    found = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    tables = {table["name"]: table for table in json.loads(found.stdout)["tables"]}
    assert set(tables) == set(TABLES)
    assert tables["debd"]["data"] == dict.fromkeys(DEBD.data, False)
    assert tables["toys"]["data"]["moons"] is True
    assert tables["uci"]["published"][0]["stderr"] == 0.18
    text = CliRunner().invoke(command, [], catch_exceptions=False).stdout
    assert "Rooshenas and Lowd (2014)" in text
    assert "ETTh1.csv 96 0.374" in text
    assert os.environ["MONGE_DATA"] == str(tmp_path)
    with pytest.raises(UsageError, match="debt"):
        published.find("debt")
