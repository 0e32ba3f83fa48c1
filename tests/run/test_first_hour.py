"""Tables with the troubles of real ones, from `monge data` to completed rows, with the models that
it recommends: pairs of dates, atoms, functions of columns, words among counts, panels."""

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge import registry
from monge.data import loading as data
from monge.data.description import describe
from monge.run.recommendation import recommend
from monge.run.session import LossUnit
from monge.train.step_memory import step_memory

ROWS = 400
FORM = "%Y-%m-%d %H:%M:%S"


def rides():
    """Taxi-like: a start and an end, tolls and tips that are mostly 0, zones in boroughs."""
    rng = np.random.default_rng(0)
    start = pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 10**6, ROWS), unit="s")
    seconds = rng.gamma(2, 400, ROWS).astype(int)
    zone = rng.integers(0, 9, ROWS)
    cash = rng.random(ROWS) < 0.3
    fare = np.round(2.5 + seconds / 160, 1)
    table = pd.DataFrame(
        {
            "pickup": start.strftime(FORM),
            "dropoff": (start + pd.to_timedelta(seconds, unit="s")).strftime(FORM),
            "passengers": rng.integers(1, 7, ROWS),
            "fare": fare,
            "tip": np.where(cash, 0, np.round(fare * rng.choice([0.15, 0.2, 0.25], ROWS), 2)),
            "tolls": np.where(rng.random(ROWS) < 0.94, 0, np.round(5 + rng.random(ROWS), 2)),
            "payment": np.where(cash, "cash", "card"),
            "zone": [f"Z{each}" for each in zone],
            "borough": np.array(["Bronx", "Queens", "Harlem"])[zone % 3],
        }
    )
    table.loc[rng.random(ROWS) < 0.03, "payment"] = None
    return table


def weather():
    """Days in order, with words beside numbers and a month that is mostly dry."""
    rng = np.random.default_rng(1)
    wet = rng.random(ROWS) < 0.4
    return pd.DataFrame(
        {
            "date": pd.date_range("2012-01-01", periods=ROWS).strftime("%d %b %Y"),
            "rain": np.where(wet, np.round(0.1 + rng.gamma(1, 8, ROWS), 1), 0),
            "visitors": np.where(rng.random(ROWS) < 0.1, np.nan, rng.poisson(40, ROWS)),
            "weather": np.where(wet, "rain", rng.choice(["sun", "fog"], ROWS)),
        }
    )


def stocks():
    """Stocks-like: prices of several symbols by month."""
    rng = np.random.default_rng(2)
    months = pd.date_range("2000-01-01", periods=100, freq="MS")
    dates = [f"{month:%b} {month.day} {month:%Y}" for month in months]
    prices = np.round(50 * np.exp(rng.normal(0, 0.1, (4, 100)).cumsum(1)), 2)
    return pd.DataFrame(
        {
            "symbol": np.repeat(["AMZN", "GOOG", "IBM", "MSFT"], 100),
            "date": dates * 4,
            "price": prices.ravel(),
        }
    )


def use(model, table, folder, settings=(), budget="3steps", rows=40):
    """Fit, sample, score and complete; the samples and the completed rows."""
    words = [f"data.{setting}" for setting in settings]
    run = monge.fit(model, table, *words, budget=budget, out=folder / model)
    assert np.isfinite(run.log_likelihood(table.iloc[:20]).value).all()
    holes = table.iloc[:20].copy()
    holes.iloc[::2, holes.columns.get_loc(table.columns[-1])] = None
    return run.sample(rows, seed=0), run.complete(holes)


def share_of_zeros(column):
    return float((column == 0).mean())


@pytest.mark.parametrize("make", [rides, weather, stocks])
def test_the_tree_respects_the_data(make, tmp_path):
    table = make()
    source, _, settings = describe(table)
    first = next(each for each in recommend(source, table, settings) if "rows" in each.does)
    assert first.models[0] == "baseline.chow_liu"
    new, full = use("baseline.chow_liu", table, tmp_path, settings, "10s", ROWS)
    assert list(new) == list(table)
    assert not full.iloc[:, -1].isna().any()
    for name in table.select_dtypes("number"):
        assert not (new[name].dropna() < 0).any()
        zeros = share_of_zeros(table[name])
        assert zeros < 0.05 or share_of_zeros(new[name]) == pytest.approx(zeros, abs=0.06)
    if "dropoff" in table:
        assert (pd.to_datetime(new["dropoff"]) >= pd.to_datetime(new["pickup"])).all()
        assert (full["dropoff"] == table["dropoff"].iloc[:20]).all()
        known = dict(zip(table["zone"], table["borough"], strict=True))
        assert (new["borough"] == new["zone"].map(known)).all()
    if "visitors" in table:
        assert (new["visitors"].dropna() % 1 == 0).all()
        assert new["visitors"].isna().any()


def test_the_series_of_a_panel_are_forecast(tmp_path):
    table = stocks()
    table = table[(table["symbol"] != "GOOG") | (table.index % 100 >= 30)]  # begins later
    table.to_csv(tmp_path / "stocks.csv", index=False)
    found = monge.describe(tmp_path / "stocks.csv")
    assert found.source.schema.table
    first, *others = found.recommended
    assert first.models[0] == "sequence.direct_forecast"
    assert "chow_liu" in " ".join(each.command for each in others)
    _, fit, model, path, setting = first.command.split()
    assert (fit, setting) == ("fit", "data.series=symbol")
    run = monge.fit(model, path, setting, budget="3steps", out=tmp_path / "run")
    ahead = run.forecast(2, n=20)
    assert ahead["date"].tolist() == ["May 1 2008", "Jun 1 2008"]
    assert {"AMZN", "GOOG", "IBM", "MSFT"} <= {*ahead}
    torn = table.drop(index=[50])  # a gap, which the command fills in
    with_gap = recommend(describe(torn)[0], torn, ())[0]
    assert {"data.series=symbol", "data.gaps=fill"} <= {*with_gap.command.split()}
    apart = table.assign(date=table["date"].where(table["symbol"] != "IBM", "Jan 1 1980"))
    assert "forecast" not in recommend(describe(apart)[0], apart, ())[0].does


def test_an_empty_name_follows_from_a_column_computed_from_it(tmp_path):
    """Completing fills it in, and its log-likelihood is that of the whole row."""
    rng = np.random.default_rng(3)
    city = rng.integers(0, 4, ROWS)
    table = pd.DataFrame(
        {
            "city": np.array(["Nice", "Lyon", "Bonn", "Kiel"])[city],
            "code": np.array(["NCE", "LYS", "CGN", "KEL"])[city],
            "country": np.array(["FR", "FR", "DE", "DE"])[city],
            "sales": np.round(rng.gamma(2, 5, ROWS) + city, 2),
        }
    )
    table.loc[table["city"] == "Kiel", "code"] = None  # empty is a value of its own
    run = monge.fit("baseline.chow_liu", table, budget="5s", out=tmp_path / "run")
    names = {each.name for each in run.view.restored.derived}
    assert names == {"code", "country"}
    rows = table[table["city"] != "Kiel"].head(30)
    holes = rows.assign(city=None)
    pd.testing.assert_frame_equal(run.complete(holes), run.complete(rows))
    scored = run.log_likelihood(holes).value
    np.testing.assert_array_equal(scored, run.log_likelihood(rows).value)
    pd.testing.assert_frame_equal(
        run.complete(rows.assign(code=None, country=None)), run.complete(rows)
    )
    several = holes.assign(code=None)  # two cities for each country
    full = run.complete(several, seed=1)
    assert full["country"].tolist() == rows["country"].tolist()
    assert full["city"].notna().all()
    assert (full["city"].to_numpy() != rows["city"].to_numpy()).any()  # sampled, not looked up
    point = run.complete(several, by="median")
    assert point["country"].tolist() == rows["country"].tolist()
    with pytest.raises(monge.DataError, match="country"):  # a sum over two cities
        run.log_likelihood(several)
    half = pd.concat([several.head(10), rows.tail(20)])
    scored = run.log_likelihood(half).value
    assert "10 of 30" in run.notes[0]
    np.testing.assert_array_equal(scored, run.log_likelihood(rows.tail(20)).value)
    with pytest.raises(monge.DataError, match="row 1"):
        run.complete(several.assign(country="XX"))


@pytest.mark.parametrize(
    ("terms", "kind", "shown"),
    [
        ({"model/nll": 3.0}, "exact", ("-3.0", "-2.0", "character")),
        ({"model/reconstruction": 2.0, "model/kl_2": 1.0}, "bound", ("-3.0", "-2.0")),
        ({"model/noise": 3.0}, "bound", (" 3.0", "-8.0", "row")),
        ({"vae/kl": 2.0, "diffusion/prior": 1.0}, "bound", (" 3.0", "-8.0", "row")),
        ({"generator/fake": 3.0}, "distance", (" 3.0", " -8.0")),
    ],
)
def test_loss_and_held_out_value_have_one_unit_and_one_sign(terms, kind, shown):
    text = LossUnit("character", 4.0).show(terms, monge.Metric(-8.0, kind), 1)
    assert all(part in text for part in shown), text


def test_a_flow_is_fitted_after_its_memory_was_estimated():
    """Nothing of what was tried stays behind."""
    view = data.open(weather().drop(columns=["date", "weather"])).view()
    model = registry.find("flow.cnf").smallest_config(view.space).build(view.space)
    rows = view.split("train")
    assert step_memory(model, rows, model.updates(), 8, "fp32").peak > 0
    for update in model.updates():
        terms = update.loss(rows.batch(torch.arange(8)))
        assert all(np.isfinite(term.tolist()).all() for term in terms.values())


def test_no_recommended_model_refuses_rides(tmp_path):
    table = rides().drop(columns=["borough", "zone"])
    source, _, settings = describe(table)
    names = [name for each in recommend(source, "rows.csv", settings)[:2] for name in each.models]
    assert len(names) > 3
    for name in names:
        new, full = use(name, table, tmp_path, settings)
        assert (pd.to_datetime(new["dropoff"]) >= pd.to_datetime(new["pickup"])).all()
        assert not (new[["fare", "tip", "tolls"]] < 0).any(axis=None)
        assert not full["payment"].isna().any()
