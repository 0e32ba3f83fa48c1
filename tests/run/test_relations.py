"""Completions of rows in which a known column follows from empty cells: an end whose start is
empty, and totals, of which one or all addends are."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp

import monge
from monge.core.errors import DataError

N = 500
RULES = "data.constraints=end>=start;total=a+b;0<=rate<=100;high>=low;area=width*height"


def loans(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 20, n)
    purpose = rng.choice(["car", "home"], n)
    a, b = rng.gamma(2.0, 3.0, n).round(2), rng.gamma(3.0, 2.0, n).round(2)
    low, width, height = rng.normal(size=n), *(rng.uniform(1, 5, n).round(3) for _ in range(2))
    return pd.DataFrame(
        {
            "start": start,
            "end": start + rng.poisson(np.where(purpose == "car", 2, 6)),
            "rate": (rng.beta(2, 2, n) * 50).round(1),
            "a": a,
            "b": b,
            "total": (a + b).round(2),
            "low": low,
            "high": low + rng.gamma(2.0, 1.0, n) * rng.integers(0, 2, n),  # often as low
            "width": width,
            "height": height,
            "area": width * height,
            "purpose": purpose,
        }
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Runs of models, each fitted once."""
    folder, runs = tmp_path_factory.mktemp("runs"), {}

    def fit(model, budget="30s"):
        if model not in runs:
            runs[model] = monge.fit(
                model, loans(), RULES, budget=budget, out=folder / model, progress=False
            )
        return runs[model]

    return fit


def with_holes() -> pd.DataFrame:
    frame = loans()[:24].astype({"start": "float64", "end": "float64"})
    frame.loc[0:4, "start"] = None
    frame.loc[4, ["purpose", "rate"]] = None
    frame.loc[5:8, "a"] = None
    frame.loc[9:12, ["a", "b"]] = None
    frame.loc[13:15, "low"] = None
    frame.loc[16:17, ["width", "height"]] = None
    frame.loc[18, ["start", "end"]] = None
    frame.loc[19, ["total", "rate"]] = None
    frame.loc[20, ["start", "low", "a", "b"]] = None
    return frame


@pytest.mark.parametrize("by", ["sample", "mean", "median"])
def test_completed_rows_keep_known_cells_and_constraints(fitted, by):
    frame = with_holes()
    done = fitted("mixture").complete(frame, by=by)
    assert not done.isna().any().any()
    for name in frame:
        known = frame[name].notna()
        assert (done[name][known] == frame[name][known]).all()
    assert (done["end"] >= done["start"]).all()
    assert (done["high"] >= done["low"] - 1e-6).all()
    assert done["rate"].between(0, 100).all()
    np.testing.assert_allclose(done["total"], done["a"] + done["b"], atol=1e-9)
    np.testing.assert_allclose(done["area"], done["width"] * done["height"], rtol=1e-3)
    one = frame.index[5:9]
    assert np.allclose(done.loc[one, "a"], loans().loc[one, "a"])  # nothing is left to chance


def test_completed_files_keep_known_cells_as_they_are_written(fitted, tmp_path):
    from click.testing import CliRunner

    from monge.cli.main import monge as command

    frame = with_holes()
    frame.to_csv(tmp_path / "holes.csv", index=False)
    run = fitted("mixture")
    words = ["complete", str(run.folder), str(tmp_path / "holes.csv"), "-n", "2"]
    found = CliRunner().invoke(command, [*words, "-o", str(tmp_path / "out.csv")])
    assert found.exit_code == 0, found.output
    before = pd.read_csv(tmp_path / "holes.csv", dtype=str)
    before = before.loc[before.index.repeat(2)].reset_index(drop=True)
    after = pd.read_csv(tmp_path / "out.csv", dtype=str)
    known = before.notna()
    assert (after[known].fillna("") == before[known].fillna("")).all().all()
    assert (after["end"].astype(float) >= after["start"].astype(float)).all()
    words = ["complete", str(run.folder), str(tmp_path / "holes.csv"), "--interval", "0.8"]
    found = CliRunner().invoke(command, [*words, "-o", str(tmp_path / "ends.csv")])
    assert found.exit_code == 0, found.output
    ends = pd.read_csv(tmp_path / "ends.csv")
    asked = with_holes().isna()
    asked.loc[5:8, "a"] = False  # it follows from b and the total
    for name in ("start", "end", "a", "low"):
        assert (ends[f"{name}.low"].notna() == asked[name].to_numpy()).all()


QUESTIONS = {
    "end": (12.0, "start", 0.1),
    "high": (0.5, "low", 0.05),
    "total": (10.0, "a", 0.2),
    "area": (6.0, "width", 0.3),
}

SAMPLES: dict = {}


def compared(run, name, draws=1500, many=100_000):
    """Draws of a cell given only a column that follows from it, and samples of which the same
    column is near that value."""
    value, cell, width = QUESTIONS[name]
    if run.folder not in SAMPLES:
        SAMPLES[run.folder] = run.sample(many, seed=3)
    frame = loans()[:1].astype(object)
    frame.loc[0] = None
    frame.loc[0, name] = value
    done = run.complete(frame, draws=draws)
    samples = SAMPLES[run.folder]
    return done, samples[(samples[name] - value).abs() < width], cell


def distance(one, other):
    """The Kolmogorov-Smirnov statistic in units of its spread where both agree."""
    size = len(one) * len(other) / (len(one) + len(other))
    return ks_2samp(one.astype(float), other.astype(float)).statistic * size**0.5


@pytest.mark.parametrize("name", QUESTIONS)
def test_completions_follow_the_conditional_distribution(fitted, name):
    done, samples, cell = compared(fitted("chow_liu"), name)
    if name == "high":  # where they are equal a sample near the value is not at it
        done, samples = (each[each["high"] - each["low"] > 1e-5] for each in (done, samples))
    assert distance(done[cell], samples[cell]) < 1.9  # one case in a thousand
    share = (done["purpose"] == "car").mean(), (samples["purpose"] == "car").mean()
    assert abs(share[0] - share[1]) < 4 * (0.25 / len(done) + 0.25 / len(samples)) ** 0.5


@pytest.mark.parametrize("model", ["chow_liu", "vae"])
def test_a_distance_that_is_often_zero_is_so_as_often(fitted, model):
    done, samples, _ = compared(fitted(model, "150steps"), "high", 600)
    equal = [(each["high"] - each["low"]).abs() < 1e-5 for each in (done, samples)]
    assert 0.2 < equal[1].mean() < 0.8
    assert abs(equal[0].mean() - equal[1].mean()) < 0.1


@pytest.mark.parametrize(
    ("model", "name", "draws"), [("made", "end", 100), ("vae", "total", 400), ("vae", "end", 400)]
)
def test_models_without_marginals_or_exact_likelihoods_come_near(fitted, model, name, draws):
    done, samples, cell = compared(fitted(model, "150steps"), name, draws=draws, many=40_000)
    assert distance(done[cell], samples[cell]) < 3
    assert any(name in note for note in fitted(model).notes)
    if name == "total":
        np.testing.assert_allclose(done["a"] + done["b"], 10, atol=1e-9)


def test_known_cells_that_no_value_agrees_with_are_refused(fitted):
    frame = loans()[:3].astype({"start": "float64"})
    frame.loc[1, ["start", "end"]] = [None, -4]  # starts are not negative
    with pytest.raises(DataError, match=r"row 2.*end"):
        fitted("mixture").complete(frame)


def test_rows_whose_distance_is_unknown_have_no_single_log_likelihood(fitted):
    frame = loans()[:6].astype({"start": "float64"})
    run = fitted("mixture")
    whole = run.score(frame).iloc[:, 0].to_numpy(float)
    frame.loc[2, "start"] = None
    frame.loc[4, "a"] = None  # which total and b determine
    scores = run.score(frame).iloc[:, 0].to_numpy(float)
    np.testing.assert_allclose(scores, np.delete(whole, 2), rtol=1e-4)
    assert any("start is empty" in note for note in run.notes)


def test_a_cell_that_is_kept_empty_says_what_it_says_about_the_others(tmp_path):
    rng = np.random.default_rng(0)
    early = rng.random(400) < 0.5
    start = np.where(early, 5, 15) + rng.integers(0, 3, 400)
    grade = np.where(early, np.nan, rng.normal(size=400).round(2))  # empty where it is early
    frame = pd.DataFrame({"start": start, "end": start + rng.integers(3, 18, 400), "grade": grade})
    run = monge.fit("chow_liu", frame, "data.constraints=end>=start", out=tmp_path / "run")
    asked = pd.DataFrame({"start": [np.nan], "end": [20.0], "grade": [np.nan]})
    done = run.complete(asked, draws=100, keep_holes=["grade"])
    assert done["grade"].isna().all()
    assert (done["start"] < 10).mean() > 0.7  # of samples 0.84
