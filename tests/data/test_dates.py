"""Dates in tables: every way of writing them, there and back, and tables that are no series."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from monge.core.errors import DataError
from monge.data import loading as data
from monge.data.codecs import date, date_format, scalar
from monge.run.predict import of_number

FORMS = {
    "days": ["2020-01-01", "2020-03-05", "2019-12-31"],
    "day first": ["03/04/2020", "25/12/2020", "01/01/2021"],
    "month first": ["03/04/2020", "12/25/2020", "01/01/2021"],
    "points": ["31.12.2019", "01.02.2020", "02.02.2020"],
    "months": ["2020-01", "2021-07", "1999-12"],
    "minutes": ["2020-01-01 10:20", "2020-01-02 00:01", "2021-01-02 00:01"],
    "midnights": ["2020-01-01T00:00:00", "2020-01-03T00:00:00", "2021-01-03T00:00:00"],
    "names of months": ["Jan 1 2000", "May 12 2000", "Dec 31 2001"],
    "full names": ["May 1, 2000", "January 12, 2000", "December 31, 2001"],
    "capitals": ["01-JAN-2000", "12-MAY-2000", "31-DEC-2001"],
    "weekdays": ["Sat, 1 Jan 2000", "Sun, 2 Jan 2000", "Fri, 31 Dec 1999"],
    "month and year": ["May 2000", "Jan 2000", "Dec 2001"],
    "without zeros": ["3/23/2019 8:21 PM", "12/1/2019 12:00 AM", "1/1/2019 12:30 PM"],
    "some zeros": ["3/03/2019 8:21 pm", "12/01/2019 12:00 am", "1/10/2019 12:30 pm"],
    "short years": ["12/31/99", "01/01/00", "02/28/01"],
    "one zone": ["2020-01-01T10:20:00Z", "2020-01-02T00:01:00Z", "2021-01-02T00:01:00Z"],
    "one offset": ["2020-01-01 10:20+02:00", "2020-01-02 00:01+02:00", "2020-01-02 00:02+02:00"],
    "quarters": ["1999Q4", "2000Q1", "2003Q2"],
    "quarters first": ["Q4 1999", "Q1 2000", "Q2 2003"],
    "month, slash, year": ["12/1999", "01/2000", "02/2003"],
    "short years of months": ["Dec-99", "Jan-00", "May-03"],
    "short years, points": ["31.12.99", "01.02.00", "02.02.00"],
    "year last": [
        "Sat Jan 1 10:20:00 2000",
        "Sun Jan 2 00:01:00 2000",
        "Fri Dec 31 00:01:00 1999",
    ],
    "hours of offset": [
        "2020-01-01 10:20:00+02",
        "2020-01-02 00:01:00+02",
        "2020-01-02 00:02:00+02",
    ],
    "decimals": ["2020-01-01 10:20:30.125", "2020-01-01 10:20:30.001", "2020-01-01 10:21:00.000"],
}


def where(row):
    return f"row {row + 1}"


def fit(cells):
    return date.fit(cells, date_format.find_format(list(cells)), "str")


@pytest.mark.parametrize("form", FORMS)
def test_dates_come_back_as_they_were_written(form):
    cells = np.array([*FORMS[form], None], object)
    codec = fit(cells[:-1])
    ticks = codec.encode(cells, where)
    assert np.isnan(ticks).tolist() == [False, False, False, True]
    assert (ticks[:3] == ticks[:3].round()).all()
    assert codec.decode(ticks).tolist() == cells.tolist()
    assert codec.measure(ticks, "t").kind == "counts"


def test_times_of_different_zones_are_one_moment_in_utc():
    cells = np.array(["2020-01-01 10:00:00+01:00", "2020-07-01 11:00:00+02:00"], object)
    codec = fit(cells)
    ticks = codec.encode(cells, where)
    written = ["2020-01-01 09:00:00+00:00", "2020-07-01 09:00:00+00:00"]
    assert codec.decode(ticks).tolist() == written


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["01/02/2020", "03/04/2020"], True),
        (["01/02/2020", "13/04/2020"], False),
        (["2020-01-02", "2020-03-04"], False),
    ],
)
def test_dates_whose_order_cannot_be_told(cells, expected):
    assert date_format.is_ambiguous(cells, date_format.find_format(cells)) == expected


def test_seconds_over_years_are_days_with_fractions():
    cells = np.array(["2020-01-01 10:20:30", "2029-01-02 10:20:31"], object)
    codec = fit(cells)
    assert codec.kind == "real"
    assert codec.decode(np.array([0, 0.5])).tolist() == [cells[0], "2020-01-01 22:20:30"]


def test_draws_far_away_are_written_as_the_last_year_there_is():
    codec = fit(np.array(FORMS["days"], object))
    assert codec.decode(np.array([1e12, -1e12])).tolist() == ["9999-12-01", "1000-01-01"]


@pytest.mark.parametrize("cells", [["1.2.3", "4.5.6"], ["2020-01-01", "soon"], ["May"]])
def test_what_is_no_date_is_left_to_others(cells):
    assert date_format.find_format(cells) is None


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
    with pytest.raises(DataError, match=r"1\.5 steps of 1 day"):
        data.open(noon, fields=source.fields_dict())


def test_other_data_may_write_dates_with_the_year_first():
    """A run on a frame is given a csv, or one on a csv a frame."""
    days = pd.date_range("2020-01-01", periods=60)[np.arange(60) * 7 % 60]
    table = pd.DataFrame({"day": days.strftime("%d.%m.%Y"), "name": ["a", "b", "c"] * 20})
    source = data.open(table)
    for other in (days, days.strftime("%Y-%m-%d"), days.strftime("%Y/%m/%d %H:%M")):
        again = data.open(table.assign(day=other), fields=source.view().to_dict())
        assert torch.equal(again.tensors["day"], source.tensors["day"])
    with pytest.raises(DataError, match=r"row 1.*01/01/2020"):
        data.open(table.assign(day=days.strftime("%m/%d/%Y")), fields=source.view().to_dict())


def test_times_between_the_steps_of_a_run_are_refused():
    codec = fit(np.array(FORMS["midnights"], object))
    with pytest.raises(DataError, match=r"row 1: 0\.5 steps of 1 day since"):
        codec.encode(np.array(["2020-01-01T12:00:00"], object), where)


@pytest.mark.parametrize("by", ["mean", "mode"])
def test_predicted_dates_and_numbers_far_from_zero_are_in_the_form_of_the_data(by):
    prediction = SimpleNamespace(
        **{
            name: torch.tensor([value])
            for name, value in {"mean": 2.0, "mode": 2.0, "low": 1.0, "high": 3.0}.items()
        }
    )
    days = fit(np.array(FORMS["days"], object))
    written = {
        name: column.tolist() for name, column in of_number(prediction, "t", days, by).items()
    }
    assert written == {"t": ["2020-01-02"], "t_low": ["2020-01-01"], "t_high": ["2020-01-03"]}
    seconds = scalar.fit(np.array([1.7e9, 1.7e9 + 1, 1.7e9 + 2]), "int64")
    assert of_number(prediction, "t", seconds, by)["t"].tolist() == [1_700_000_003]
