"""`monge forecast` and `monge evaluate` on series: tables, pictures, other data, refusals."""

import json

import numpy as np
import pandas as pd
import pytest

from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.run import run


def table(n=160, seed=0):
    rng, t = np.random.default_rng(seed), np.arange(n)
    times = pd.date_range("2020-01-01", periods=n, freq="MS").strftime("%Y-%m")
    return pd.DataFrame(
        {
            "month": times,
            "y": 50 + 10 * np.sin(2 * np.pi * t / 12) + rng.normal(size=n),
            "z": t * 0.1 + rng.normal(size=n),
        }
    )


SMALL = ("data.horizon=6", "data.lookback=24")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Series, and a run of each kind of model: direct, and completing windows."""
    place = tmp_path_factory.mktemp("series")
    table().to_csv(place / "own.csv", index=False)
    table(40, seed=1).to_csv(place / "other.csv", index=False)
    table(20).to_csv(place / "short.csv", index=False)
    run.fit("direct_forecast", place / "own.csv", *SMALL, budget="20steps", out=place / "direct")
    run.fit("linear_ar", place / "own.csv", *SMALL, "most=12", out=place / "linear")
    return place


def said(capsys, *words):
    code = attempt([str(word) for word in words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_median_and_interval_come_as_a_table_and_a_picture(place, tmp_path, capsys):
    out, plot, paths = (tmp_path / "deep" / name for name in ("f.csv", "f.png", "p.csv"))
    code, text, _ = said(
        capsys,
        "forecast",
        place / "direct",
        "--horizon",
        15,
        "-o",
        out,
        "--plot",
        plot,
        "--paths",
        paths,
        "-n",
        50,
    )
    assert (code, text.split()) == (0, [str(out), str(plot), str(paths)])
    told = pd.read_csv(out)
    assert list(told) == ["month", "y", "y_low", "y_high", "z", "z_low", "z_high"]
    assert list(told["month"])[:2] == ["2033-05", "2033-06"]
    assert len(told) == 15
    assert (told["y_low"] < told["y"]).all()
    assert (told["y"] < told["y_high"]).all()
    assert plot.stat().st_size > 1000
    every = pd.read_csv(paths)
    assert len(every) == 50 * 15
    middle = every.groupby("month", sort=False)["y"].median()
    np.testing.assert_allclose(middle, told["y"])
    truth = 50 + 10 * np.sin(2 * np.pi * np.arange(160, 175) / 12)
    assert np.abs(told["y"] - truth).mean() < 3


def test_the_table_is_printed_and_follows_the_seed(place, capsys):
    code, text, _ = said(capsys, "forecast", place / "direct", "--json", "-n", 20)
    told = json.loads(text)
    assert code == 0
    assert told["horizon"] == len(told["forecast"]) == 6
    assert told["channels"] == ["y", "z"]
    fit = run.load(place / "direct")
    first, again, other = (fit.forecast(n=20, seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)
    np.testing.assert_allclose(first["y"], [row["y"] for row in told["forecast"]])
    wide = fit.forecast(n=200, interval=0.95)
    assert (wide["y_high"] - wide["y_low"]).mean() > (first["y_high"] - first["y_low"]).mean()


@pytest.mark.parametrize("name", ["direct", "linear"])
def test_other_data_are_forecast_from_their_own_end(place, name, capsys):
    code, text, _ = said(capsys, "forecast", place / name, place / "other.csv", "-n", 200)
    assert code == 0
    assert text.splitlines()[1].startswith("2023-05,")
    frame = run.load(place / name).forecast(None, table(40, seed=1), n=200)
    assert len(frame) == 6
    assert frame["y"].iloc[0] == pytest.approx(float(text.splitlines()[1].split(",")[1]))


def test_what_cannot_be_forecast_is_told_in_a_sentence(place, tmp_path, capsys):
    for words, sentence in (
        ((place / "direct", "--horizon", 0), "0 is not in the range"),
        ((place / "direct", "--interval", 2), "must lie between 0 and 1"),
        ((place / "direct", "-o", "x.txt"), "use .csv or .parquet"),
        ((place / "direct", "--plot", "x.pdf"), "use .png"),
        ((place / "direct", place / "short.csv"), "20 steps, and the model looks back on 24"),
        ((place / "direct", "moons"), "no series"),
    ):
        code, _, err = said(capsys, "forecast", *words)
        assert code
        assert sentence in err
    run.fit("gaussian", "moons", budget="1steps", out=tmp_path / "points")
    with pytest.raises(UsageError, match="not fitted on a series"):
        run.load(tmp_path / "points").forecast()


def test_gaps_of_other_data_are_mended_on_request(place, tmp_path):
    broken = table(60).drop(index=[30])
    broken.to_csv(tmp_path / "broken.csv", index=False)
    fit = run.load(place / "direct")
    with pytest.raises(DataError, match="1 steps are missing after 2022-06-01"):
        fit.forecast(2, tmp_path / "broken.csv")
    assert len(fit.forecast(2, tmp_path / "broken.csv", "data.gaps=fill", n=20)) == 2


def test_what_is_known_must_be_known_up_to_the_end(tmp_path):
    own = table().assign(price=np.arange(160) % 5 * 1.0)
    fit = run.fit(
        "direct_forecast",
        own,
        *SMALL,
        "data.known=price",
        "data.calendar=true",
        budget="3steps",
        out=tmp_path / "run",
    )
    with pytest.raises(DataError, match="price must be known up to 2033-10, and frame ends 6"):
        fit.forecast()
    later = pd.date_range("2033-05", periods=6, freq="MS").strftime("%Y-%m")
    more = pd.concat([own, pd.DataFrame({"month": later, "price": 1.0})], ignore_index=True)
    assert len(fit.forecast(6, more, n=20)) == 6
    with pytest.raises(DataError, match="ends 6 steps before"):
        fit.forecast(7, more, n=20)
    with pytest.raises(DataError, match="column 'price' has no value at 2033-05"):
        fit.forecast(6, more.assign(price=own["price"]), n=20)


def test_a_forecast_is_measured_beside_three_that_anyone_can_make(place, capsys):
    code, text, _ = said(capsys, "evaluate", place / "direct", "--json")
    measures = json.loads(text)["metrics"]
    assert code == 0
    for name in ("mse", "mae", "mase", "smape", "crps"):
        for head in ("", "naive.", "seasonal_naive.", "ar1."):
            assert measures[head + name]["value"] > 0
    assert 0 < measures["coverage_0.8"]["value"] < 1
    assert measures["mse"]["unit"] == "standardised"
    other = run.load(place / "direct").evaluate(place / "other.csv")
    assert other["mse"].value != measures["mse"]["value"]
    completed = run.load(place / "linear").evaluate()
    assert completed["mse"].value < completed["naive.mse"].value
