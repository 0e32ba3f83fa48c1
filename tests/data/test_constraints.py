"""Constraints on columns, differences, formulas, and columns that are functions of others."""

import json

import numpy as np
import pandas as pd
import pytest

from monge.core.errors import DataError, UsageError
from monge.data import constraints
from monge.data import loading as data
from monge.data.dataset import View
from monge.data.derived import is_function

N = 300


def loans() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 40, N)
    a, b = rng.gamma(2.0, 3.0, N).round(2), rng.gamma(3.0, 2.0, N).round(2)
    first = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 300, N), unit="D")
    last = first + pd.to_timedelta(rng.integers(5, 25, N), unit="D")
    low = rng.normal(size=N)
    return pd.DataFrame(
        {
            "start": start,
            "end": start + rng.poisson(3, N),
            "rate": (rng.beta(2, 2, N) * 50).round(1),
            "a": a,
            "b": b,
            "total": (a + b).round(2),
            "first": first.strftime("%d/%m/%Y"),
            "last": last.strftime("%d/%m/%Y"),
            "low": low,
            "high": low + rng.gamma(2.0, 1.0, N),
            "purpose": rng.choice(["car", "home", "other"], N),
        }
    )


def opened(text, frame=None):
    return data.open(loans() if frame is None else frame, f"constraints={text}")


def rows(source):
    view = source.view()
    return view, view.split("all").whole().x


def same_rows(decoded, frame):
    pd.testing.assert_frame_equal(decoded, frame, rtol=1e-6, check_dtype=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a >= 2", [("a", ">=", 2.0)]),
        ("0<=rate<=100", [("rate", ">=", 0.0), ("rate", "<=", 100.0)]),
        ("-3 < `odd name`", [("odd name", ">", -3.0)]),
        ("a <= 2*3 - 1/2", [("a", "<=", 5.5)]),
    ],
)
def test_bounds_are_parsed(text, expected):
    found = constraints.parse([text], ["a", "rate", "odd name"])
    assert [comparison.bound for comparison in found] == expected


def test_precedence_and_chains_of_an_expression():
    (found,) = constraints.parse(["a = b - 2*c/4 - -1"], ["a", "b", "c"])
    numbers = {"a": np.array([10.0, 9.0]), "b": np.array([11.0, 11.0]), "c": np.array([4.0, 4.0])}
    assert found.broken(numbers).tolist() == [False, True]
    again = constraints.parse([found.spelled], ["a", "b", "c"])[0]
    assert again.broken(numbers).tolist() == [False, True]
    pair = constraints.parse(["a<b<=c; `x;y`!=1"], ["a", "b", "c", "x;y"])
    assert [each.columns for each in pair] == [("a", "b"), ("b", "c"), ("x;y",)]


def test_empty_cells_break_nothing():
    (found,) = constraints.parse(["a>=b"], ["a", "b"])
    numbers = {"a": np.array([1.0, np.nan, 1.0]), "b": np.array([2.0, 2.0, np.nan])}
    assert found.broken(numbers).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("end>=strat", "start"),
        ("end+", r"'end\+'"),
        ("end", "'end'"),
        ("1<2", "'1<2'"),
        ("f(end)>1", r"f\(end\)"),
        ("end.start>1", r"end\.start"),
        ("end>'x'", "'x'"),
        ("__import__('os')>1", "__import__"),
        ("purpose>=start", "'purpose'"),
        ("a+b=start+end", r"'a\+b=start\+end'"),
        ("total=a+b;a=total-b", "total, a"),
        ("a=a", "'a=a'"),
    ],
)
def test_constraints_that_cannot_be_read(text, match):
    with pytest.raises((UsageError, DataError), match=match):
        opened(text)


def test_rows_that_break_a_constraint_are_counted_and_the_first_is_named(tmp_path):
    frame = loans()
    frame.loc[[7, 100, 250], "end"] = frame.loc[[7, 100, 250], "start"] - 1
    with pytest.raises(DataError, match=r"'end>=start', row 8: .*3 of 300"):
        opened("end>=start", frame)
    frame.to_csv(tmp_path / "loans.csv", index=False)
    with pytest.raises(DataError, match=r"row 9 of loans\.csv"):
        data.open(tmp_path / "loans.csv", "constraints=end>=start")
    frame = loans()
    frame.loc[[7, 100, 250], "rate"] = [-1.0, 200.0, -3.0]  # both ends of one chain
    with pytest.raises(DataError, match=r"'0<=rate<=100', row 8: .*=-1.*3 of 300"):
        opened("0<=rate<=100", frame)


def test_constraints_need_a_table_that_is_not_plain():
    with pytest.raises(UsageError, match=r"data\.space=auto"):
        data.open(loans(), "space=plain", "constraints=end>=start")
    with pytest.raises(UsageError, match="iris"):
        data.open("iris", "constraints=a>=b")


def test_a_bound_belongs_to_the_space():
    space = opened("0<=rate<=60;start<40;low>-50").fields
    assert (space["rate"].space.lower, space["rate"].space.upper) == (0, 60)
    assert space["start"].space.upper == 39  # whole numbers below 40
    assert space["low"].space.lower == -50
    with pytest.raises(DataError, match="'rate<=3'"):
        opened("rate<=3")


def test_an_ordering_is_a_difference():
    view, x = rows(opened("end>=start"))
    place = view.columns.index("end")
    frame = loans()
    assert x[:, place].tolist() == (frame["end"] - frame["start"]).tolist()
    assert view.space.columns[place].lower == 0
    assert view.space.columns[place].kind == "counts"
    same_rows(view.decode(x), frame)
    x[:, place] = 0
    assert (view.decode(x)["end"] == frame["start"]).all()


def test_orderings_of_dates_and_chains_come_back():
    frame = loans()
    frame["later"] = frame["end"] + 2
    view, x = rows(opened("last>=first;later>=end>=start", frame))
    days = pd.to_datetime(frame["last"], dayfirst=True) - pd.to_datetime(
        frame["first"], dayfirst=True
    )
    assert x[:, view.columns.index("last")].tolist() == days.dt.days.tolist()
    assert x[:, view.columns.index("later")].tolist() == [2.0] * N
    same_rows(view.decode(x), frame)


def test_orderings_of_real_numbers_hold_in_samples():
    view, x = rows(opened("high>=low"))
    same_rows(view.decode(x), loans())
    other = view.decode(x[:, :].clone().mul_(0.37))
    assert (other["high"] >= other["low"]).all()


def test_an_ordering_above_an_empty_cell_is_met_by_rejection():
    frame = loans()
    frame["start"] = frame["start"].astype("float64")
    frame.loc[4, "start"] = None
    source = opened("end>=start", frame)
    assert "end" not in {each.name for each in source.schema.differences}
    assert len(source.view().constraints) == 1


def test_orderings_in_a_circle_are_not_all_differences():
    frame = loans()
    frame["copy"] = frame["end"]
    source = opened("end>=copy;copy>=end", frame)
    circle = [each for each in source.schema.differences if each.name in ("end", "copy")]
    assert [(each.base, each.name) for each in circle] == [("copy", "end")]
    view, x = rows(source)
    assert len(view.constraints) == 1
    assert view.obeys(x).all()


def test_a_formula_is_computed():
    source = opened("total=a+b")
    assert "total" not in source.main
    view, x = rows(source)
    same_rows(view.decode(x), loans())
    x[:, view.columns.index("a")] = 1.5
    decoded = view.decode(x)
    assert np.allclose(decoded["total"], decoded["b"] + 1.5, atol=1e-5)


def test_a_formula_of_empty_cells_is_empty_and_cannot_lose_a_known_cell():
    frame = loans()
    frame.loc[3, ["a", "total"]] = None
    view, x = rows(opened("total=a+b", frame))
    assert view.decode(x)["total"].isna().tolist() == [i == 3 for i in range(N)]
    frame.loc[3, "total"] = 9.0
    with pytest.raises(DataError, match="row 4"):
        opened("total=a+b", frame)


def test_other_constraints_are_checked_in_samples():
    source = opened("a+b<=total*2;end!=start-1")
    view, x = rows(source)
    assert len(view.constraints) == 2
    assert view.obeys(x).all()
    x[2, view.columns.index("a")] = 1000.0
    assert (~view.obeys(x)).nonzero().flatten().tolist() == [2]


def test_schemas_of_constraints_survive_json():
    view, x = rows(opened("end>=start;total=a+b;a*2>=b-100;last>=first"))
    stored = View.from_dict(json.loads(json.dumps(view.to_dict())))
    assert stored.space == view.space
    same_rows(stored.decode(x), loans())
    assert stored.obeys(x).all()


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("end", -5, r"'end>=start', row 6"),
        ("total", 1.0, r"'total=a\+b', row 6"),
        ("rate", 101.0, r"'rate', row 6"),
        ("kind", 2, r"row 6.*kind=2.*purpose="),
    ],
)
def test_a_later_row_that_breaks_a_rule_is_refused_by_its_number(column, value, match):
    frame = loans()
    frame["kind"] = frame["purpose"].map({"car": 10, "home": 20, "other": 30})
    fields = opened("end>=start;total=a+b;rate<=100", frame).view().to_dict()
    assert len(data.open(frame, fields=fields)) == N
    other = frame.astype({"start": "float64"})
    other.loc[5, column] = value
    with pytest.raises(DataError, match=match):
        data.open(other, fields=fields)


def titanic(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    survived = rng.integers(0, 2, n)
    town = rng.choice(["Cherbourg", "Queenstown", "Southampton"], n)
    who = rng.choice(["man", "woman", "child"], n)
    frame = pd.DataFrame(
        {
            "survived": survived,
            "pclass": rng.integers(1, 4, n),
            "embarked": [name[0] for name in town],
            "who": who,
            "adult_male": who == "man",
            "town": town,
            "alive": np.where(survived, "yes", "no"),
            "fare": rng.gamma(2.0, 9.0, n).round(2),
        }
    )
    frame["class"] = frame["pclass"].map({1: "First", 2: "Second", 3: "Third"})
    frame.loc[[3, 9], ["embarked", "town"]] = None
    return frame


def test_functions_of_other_columns_are_found_and_computed():
    frame = titanic()
    source = data.open(frame)
    found = {each.name: each.sources for each in source.schema.derived}
    assert found == {
        "pclass": ("class",),  # names rather than numbers are modelled
        "adult_male": ("who",),
        "town": ("embarked",),  # the first of two columns of names
        "alive": ("survived",),
    }
    assert any("town is a function of embarked" in note for note in source.notes)
    view, x = rows(source)
    assert x.shape == (200, 5)
    same_rows(view.decode(x), frame)
    stored = View.from_dict(json.loads(json.dumps(view.to_dict())))
    same_rows(stored.decode(x), frame)


def test_a_column_that_is_named_is_not_derived():
    source = data.open(titanic())
    view = source.view(target="alive")
    assert view.selection.event == ("alive",)
    assert "survived" in view.selection.given["inputs"]
    (note,) = [note for note in view.notes if "data.drop=survived" in note]
    assert note.startswith("alive is a function of survived")
    assert source.view(given=["town"]).selection.given == {"town": ("town",)}
    clean = source.view(target="survived")
    assert "alive" not in clean.selection.given["inputs"]  # it would give the target away
    assert not [note for note in clean.notes if "data.drop" in note]
    assert source.view(event="pclass").space.kind == "counts"


def test_a_target_that_numbers_determine_is_called_out():
    rng = np.random.default_rng(0)
    age = rng.integers(20, 40, N)
    frame = pd.DataFrame(
        {"age": age, "x": rng.normal(size=N), "group": np.where(age < 30, "y", "o")}
    )
    notes = data.open(frame).view(target="group").notes
    assert any("data.drop=age" in note for note in notes)


def test_chance_is_no_function():
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 30, 200)
    rare = np.zeros(200, int)
    rare[wide == 7] = 1  # a rare value beside one of many
    assert not is_function(wide, rare) or int(rare.sum()) > 10
    assert not is_function(np.arange(200), rng.integers(0, 2, 200))
    one = np.zeros(200, int)
    one[0] = 1
    source = rng.integers(0, 2, 200)
    source[0] = 2
    assert not is_function(source, one)
    assert is_function(source % 2, (source % 2) * 5)


def test_an_exception_undoes_a_function():
    frame = titanic()
    frame.loc[20, "alive"] = "no" if frame.loc[20, "alive"] == "yes" else "yes"
    assert "alive" in data.open(frame).main


def test_a_derived_column_may_be_absent_or_unknown_in_other_data():
    frame = titanic()
    fields = data.open(frame).view().to_dict()
    assert len(data.open(frame.drop(columns=["alive", "pclass"]), fields=fields)) == 200
    some = frame.astype({"pclass": "Int64"})
    some.loc[4, "pclass"] = pd.NA
    view = data.open(some, fields=fields).view()
    assert view.decode(view.split("all").whole().x)["pclass"].tolist() == frame["pclass"].tolist()


def test_a_constant_column_is_written_back():
    frame = loans().assign(country="FR", year=2024)
    view, x = rows(data.open(frame))
    assert not {"country", "year"} & set(view.columns)
    same_rows(view.decode(x), frame)
    same = pd.DataFrame({"a": [1.5] * 30, "b": ["x"] * 30})
    assert data.open(same).main == ("a", "b")  # something must be modelled


@pytest.mark.parametrize(("years", "is_difference"), [(1, True), (30, False)])
def test_dates_are_differences_only_where_their_order_says_something(years, is_difference):
    rng = np.random.default_rng(0)
    first = pd.Timestamp("1980-01-01") + pd.to_timedelta(rng.integers(0, 9000, 300), "D")
    later = first + pd.to_timedelta(rng.integers(0, 300, 300) + 365 * (years - 1), "D")
    if not is_difference:
        later = later[rng.permutation(300)] + pd.to_timedelta(9000, "D")
    found = data.open(pd.DataFrame({"later": later, "first": first, "x": rng.normal(size=300)}))
    assert [each.name for each in found.schema.differences] == ["later"] * is_difference
