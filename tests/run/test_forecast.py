"""`monge forecast` and `monge evaluate` on series: tables, plots, other data, refusals."""

import json

import numpy as np
import pandas as pd
import pytest

from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.report.run import write_report
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
def folder(tmp_path_factory):
    """Series, and a run of each kind of model: direct, and completing windows."""
    folder = tmp_path_factory.mktemp("series")
    table().to_csv(folder / "own.csv", index=False)
    table(40, seed=1).to_csv(folder / "other.csv", index=False)
    table(20).to_csv(folder / "short.csv", index=False)
    run.fit("direct_forecast", folder / "own.csv", *SMALL, budget="20steps", out=folder / "direct")
    run.fit("linear_ar", folder / "own.csv", *SMALL, "max_order=12", out=folder / "linear")
    return folder


def command(capsys, *arguments):
    code = attempt([str(argument) for argument in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_median_and_interval_are_written_as_a_table_and_a_plot(folder, tmp_path, capsys):
    out, plot, paths = (tmp_path / "deep" / name for name in ("f.csv", "f.png", "p.csv"))
    code, text, _ = command(
        capsys,
        "forecast",
        folder / "direct",
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
    forecast = pd.read_csv(out)
    assert list(forecast) == ["month", "y", "y_low", "y_high", "z", "z_low", "z_high"]
    assert list(forecast["month"])[:2] == ["2033-05", "2033-06"]
    assert len(forecast) == 15
    assert (forecast["y_low"] < forecast["y"]).all()
    assert (forecast["y"] < forecast["y_high"]).all()
    assert plot.stat().st_size > 1000
    every = pd.read_csv(paths)
    assert len(every) == 50 * 15
    middle = every.groupby("month", sort=False)["y"].median()
    np.testing.assert_allclose(middle, forecast["y"])
    truth = 50 + 10 * np.sin(2 * np.pi * np.arange(160, 175) / 12)
    assert np.abs(forecast["y"] - truth).mean() < 3


def test_forecasts_have_the_decimals_of_the_series(tmp_path):
    frame = table().assign(sold=lambda t: t["y"].round().astype(int), y=lambda t: t["y"].round(1))
    small = (*SMALL, "max_order=3")
    fitted = run.fit("linear_ar", frame, *small, out=tmp_path / "run")
    for found in (fitted.forecast(4, n=9), fitted.forecast(4, n=9, paths=True)):
        assert found["sold"].dtype == int
        assert (found["y"] == found["y"].round(1)).all()
        assert (found["z"] != found["z"].round(3)).all()  # those of z have no end


def test_the_table_is_printed_and_follows_the_seed(folder, capsys):
    code, text, _ = command(capsys, "forecast", folder / "direct", "--json", "-n", 20)
    forecast = json.loads(text)
    assert code == 0
    assert forecast["horizon"] == len(forecast["forecast"]) == 6
    assert forecast["channels"] == ["y", "z"]
    fit = run.load(folder / "direct")
    first, again, other = (fit.forecast(n=20, seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)
    np.testing.assert_allclose(first["y"], [row["y"] for row in forecast["forecast"]])
    wide = fit.forecast(n=200, interval=0.95)
    assert (wide["y_high"] - wide["y_low"]).mean() > (first["y_high"] - first["y_low"]).mean()


@pytest.mark.parametrize("name", ["direct", "linear"])
def test_other_data_are_forecast_from_their_own_end(folder, name, capsys):
    code, text, _ = command(capsys, "forecast", folder / name, folder / "other.csv", "-n", 200)
    assert code == 0
    assert text.splitlines()[1].startswith("2023-05,")
    frame = run.load(folder / name).forecast(None, table(40, seed=1), n=200)
    assert len(frame) == 6
    assert frame["y"].iloc[0] == pytest.approx(float(text.splitlines()[1].split(",")[1]))


def test_what_cannot_be_forecast_is_refused(folder, tmp_path, capsys):
    for arguments, value in (
        ((folder / "direct", "--horizon", 0), "--horizon"),
        ((folder / "direct", "--interval", 2), "interval"),
        ((folder / "direct", "-o", "x.txt"), ".txt"),
        ((folder / "direct", "--plot", "x.pdf"), ".pdf"),
        ((folder / "direct", folder / "short.csv"), "24"),
        ((folder / "direct", "moons"), "moons"),
    ):
        code, _, err = command(capsys, "forecast", *arguments)
        assert code
        assert value in err
    run.fit("gaussian", "moons", budget="1steps", out=tmp_path / "points")
    with pytest.raises(UsageError, match="points"):
        run.load(tmp_path / "points").forecast()


def test_gaps_of_other_data_are_filled_on_request(folder, tmp_path):
    broken = table(60).drop(index=[30])
    broken.to_csv(tmp_path / "broken.csv", index=False)
    fit = run.load(folder / "direct")
    with pytest.raises(DataError, match=r"\b1\b.*2022-06-01"):
        fit.forecast(2, tmp_path / "broken.csv")
    assert len(fit.forecast(2, tmp_path / "broken.csv", "data.gaps=fill", n=20)) == 2


def test_known_columns_must_reach_the_end_of_the_forecast(tmp_path):
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
    with pytest.raises(DataError, match=r"price.*2033-10.*\b6\b"):
        fit.forecast()
    later = pd.date_range("2033-05", periods=6, freq="MS").strftime("%Y-%m")
    more = pd.concat([own, pd.DataFrame({"month": later, "price": 1.0})], ignore_index=True)
    assert len(fit.forecast(6, more, n=20)) == 6
    with pytest.raises(DataError, match=r"\b6\b"):
        fit.forecast(7, more, n=20)
    with pytest.raises(DataError, match=r"price.*2033-05"):
        fit.forecast(6, more.assign(price=own["price"]), n=20)


def test_a_forecast_is_evaluated_beside_three_naive_ones(folder, capsys):
    code, text, _ = command(capsys, "evaluate", folder / "direct", "--json")
    metrics = json.loads(text)["metrics"]
    assert code == 0
    for name in ("mse", "mae", "mase", "smape", "crps"):
        for head in ("", "naive.", "seasonal_naive.", "ar1."):
            assert metrics[head + name]["value"] > 0
    assert 0 < metrics["coverage_0.8"]["value"] < 1
    assert metrics["mse"]["unit"] == "standardised"
    other = run.load(folder / "direct").evaluate(folder / "other.csv")
    assert other["mse"].value != metrics["mse"]["value"]
    completed = run.load(folder / "linear").evaluate()
    assert completed["mse"].value < completed["naive.mse"].value


def test_a_report_of_a_run_from_python_shows_its_forecast(folder, tmp_path):
    page = write_report(folder / "direct", tmp_path / "page.html").read_text()
    assert (folder / "direct" / "figures" / "forecast.png").stat().st_size > 1000
    assert "forecast after the end" in page
    known = table().assign(price=1.0)  # known no further than the series
    fitted = run.fit(
        "direct_forecast", known, *SMALL, "data.known=price", budget="2steps", out=tmp_path / "run"
    )
    assert "forecast after the end" not in write_report(fitted).read_text()


def test_a_forecast_of_what_is_no_series_is_refused_for_that(tmp_path):
    rows = table().assign(word=["wet", "dry"] * 80)
    with pytest.raises(DataError, match=r"data\.drop") as refused:
        run.fit("direct_forecast", rows, budget="1steps", out=tmp_path / "run")
    assert "--target" not in str(refused.value)
    with pytest.raises(UsageError, match="--target"):  # which is what this one lacks
        run.fit("predict.mlp", rows, budget="1steps", out=tmp_path / "run")
