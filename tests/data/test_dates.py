"""Dates in tables: every way of writing them, there and back, and tables that are no series."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from monge import data
from monge.core.errors import DataError
from monge.data.codecs import date, scalar
from monge.run.predict import of_number

FORMS = {
    "days": ["2020-01-01", "2020-03-05", "2019-12-31"],
    "day first": ["03/04/2020", "25/12/2020", "01/01/2021"],
    "month first": ["03/04/2020", "12/25/2020", "01/01/2021"],
    "points": ["31.12.2019", "01.02.2020", "02.02.2020"],
    "months": ["2020-01", "2021-07", "1999-12"],
    "minutes": ["2020-01-01 10:20", "2020-01-02 00:01", "2021-01-02 00:01"],
    "midnights": ["2020-01-01T00:00:00", "2020-01-03T00:00:00", "2021-01-03T00:00:00"],
}


def where(row):
    return f"row {row + 1}"


@pytest.mark.parametrize("form", FORMS)
def test_dates_come_back_as_they_were_written(form):
    cells = np.array([*FORMS[form], None], object)
    codec = date.fit(cells[:-1], "str")
    ticks = codec.encode(cells, where)
    assert ticks.isnan().tolist() == [False, False, False, True]
    assert (ticks[:3] == ticks[:3].round()).all()
    assert codec.decode(ticks.numpy()).tolist() == cells.tolist()
    assert codec.measure(ticks, "t").kind == "counts"


def test_seconds_over_years_are_days_with_fractions():
    cells = np.array(["2020-01-01 10:20:30", "2029-01-02 10:20:31"], object)
    codec = date.fit(cells, "str")
    assert codec.kind == "real"
    assert codec.decode(np.array([0, 0.5])).tolist() == [cells[0], "2020-01-01 22:20:30"]


def test_draws_far_away_are_written_as_the_last_year_there_is():
    codec = date.fit(np.array(FORMS["days"], object), "str")
    assert codec.decode(np.array([1e12, -1e12])).tolist() == ["9999-12-01", "1000-01-01"]


@pytest.mark.parametrize("cells", [["1.2.3", "4.5.6"], ["2020-01-01", "soon"], ["12/31/99"]])
def test_what_is_no_date_is_left_to_others(cells):
    assert date.fit(np.array(cells, object), "str") is None


def test_a_table_of_customers_keeps_its_dates():
    rows = 60
    table = pd.DataFrame(
        {
            "joined": pd.date_range("2020-01-01", periods=rows, freq="3D"),
            "city": ["Nice", "Lyon"] * (rows // 2),
            "spent": np.arange(rows) / 7,
        }
    )
    text = table.assign(joined=table["joined"].dt.strftime("%Y-%m-%d"))
    for frame in (table, text):
        source = data.open(frame)
        kinds = [field.space.kind for field in source.fields.values()]
        assert kinds == ["counts", "label", "real"]
        view = source.view()
        decoded = view.decode(view.split("all").whole().x)
        assert decoded["joined"].dtype == frame["joined"].dtype
        assert decoded["joined"].equals(frame["joined"])


def test_a_table_of_numbers_and_dates_in_no_order_is_no_series():
    days = pd.date_range("2020-01-01", periods=60).strftime("%Y-%m-%d")
    table = pd.DataFrame({"day": days[::-1], "a": np.arange(60.0) / 7})
    (note,) = data.open(table).notes
    assert "'day'" in note
    assert "data.time=day" in note
    assert not data.open(table.iloc[::-1].reset_index(drop=True), "time=none").notes
    with pytest.raises(DataError, match=r"data\.time=none"):
        data.open(table, "time=day", "horizon=2")


def test_a_date_of_another_form_is_refused():
    table = pd.DataFrame({"day": FORMS["days"] * 10, "who": ["a", "b", "c"] * 10})
    source = data.open(table)
    other = pd.DataFrame({"day": ["5 May"], "who": ["a"]})
    with pytest.raises(DataError, match=r"'5 May'.* %Y-%m-%d"):
        data.open(other, fields=source.fields_dict())
    noon = pd.DataFrame({"day": pd.to_datetime(["2020-01-01 12:00:00"]), "who": ["a"]})
    with pytest.raises(DataError, match="%Y-%m-%d"):
        data.open(noon, fields=source.fields_dict())


def test_times_between_the_steps_of_a_run_are_refused():
    codec = date.fit(np.array(FORMS["midnights"], object), "str")
    with pytest.raises(DataError, match=r"row 1: 0\.5 steps of 86400 seconds since"):
        codec.encode(np.array(["2020-01-01T12:00:00"], object), where)


@pytest.mark.parametrize("by", ["mean", "mode"])
def test_predicted_dates_and_numbers_far_from_zero_are_in_the_form_of_the_data(by):
    prediction = SimpleNamespace(
        **{
            name: torch.tensor([value])
            for name, value in {"mean": 2.0, "mode": 2.0, "low": 1.0, "high": 3.0}.items()
        }
    )
    days = date.fit(np.array(FORMS["days"], object), "str")
    written = {
        name: column.tolist() for name, column in of_number(prediction, "t", days, by).items()
    }
    assert written == {"t": ["2020-01-02"], "t_low": ["2020-01-01"], "t_high": ["2020-01-03"]}
    seconds = scalar.fit(np.array([1.7e9, 1.7e9 + 1, 1.7e9 + 2]), "int64")
    assert of_number(prediction, "t", seconds, by)["t"].tolist() == [1_700_000_003]
