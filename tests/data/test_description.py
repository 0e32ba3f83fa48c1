"""Describing data: what is in each column, problems with a remedy, and models that take them."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import wavfile

from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.data.description import columns, describe, digits, percent
from monge.run.recommendation import recommend

ROWS = 240


def messy(**changed):
    rng = np.random.default_rng(0)
    numbers = np.round(rng.gamma(2, 20, ROWS), 2)
    table = {
        "user": [f"{'xyz'[i % 3] * (1 + i % 2)}{i * i}" for i in range(ROWS)],
        "amount": [str(x) if i % 40 else "unknown" for i, x in enumerate(numbers)],
        "code": rng.choice(["a", "b"], ROWS).tolist(),
        "country": "FR",
        "day": [f"{1 + i % 11:02}/{1 + i % 7:02}/2021" for i in range(ROWS)],
        "bought": rng.integers(0, 2, ROWS),
    }
    table["code"][0] = "c"
    table["refund"] = np.array(["no", "yes"])[table["bought"]]
    table["note"] = [None if i % 4 else "x" for i in range(ROWS)]
    return pd.DataFrame(table | changed)


def test_a_messy_table_is_described_and_its_problems_are_counted():
    table = messy()
    with pytest.raises(DataError, match="user"):
        data.open(table)
    source, problems, settings = describe(table)
    assert set(settings) == {"drop=user", "text=missing"}
    found = {problem.name: problem for problem in problems}
    assert found["unreadable"].columns == ("user",)
    assert "6 of 240" in found["unreadable"].sentence
    assert (found["rare names"].columns, found["rare names"].count) == (("code",), 1)
    assert found["unclear dates"].columns == ("day",)
    assert found["leakage"].columns == ("bought", "refund")
    assert (found["mostly empty"].columns, found["mostly empty"].count) == (("note",), 180)
    assert all(problem.remedy for problem in problems)
    shown = {row["column"]: row for row in columns(source)}
    assert shown["country"]["about"] == "constant"
    assert shown["note"]["empty"] == "75 %"
    assert shown["day"]["kind"] == "date"
    assert data.open(table, *settings).fingerprint == source.fingerprint


def test_dropped_rows_are_counted_with_the_columns_that_cause_it():
    table = pd.DataFrame({"a": np.arange(100.0), "b": np.arange(100.0) / 7, "c": 1.5})
    table.loc[:69, "b"] = None
    table.loc[60:79, "a"] = None
    (note,) = (note for note in data.open(table, "missing=drop").notes if "80 of 100" in note)
    assert note.index("b in 70") < note.index("a in 20")
    assert not any("rows" in note for note in data.open(table.dropna(), "missing=drop").notes)


def test_copies_of_rows_are_counted():
    table = messy().drop(columns=["user", "amount"]).assign(x=np.arange(ROWS) / 7)
    assert "duplicates" not in {problem.name for problem in describe(table)[1]}
    twice = pd.concat([table, table.iloc[:3]])
    (problem,) = (each for each in describe(twice)[1] if each.name == "duplicates")
    assert problem.count == 3


def test_a_column_that_no_setting_names_is_found_by_leaving_it_out():
    table = messy(amount=np.r_[np.inf, np.arange(ROWS - 1) / 7]).drop(columns="user")
    _, problems, settings = describe(table)
    assert settings == ("drop=amount",)
    assert problems[0].columns == ("amount",)


def test_gaps_in_a_series_are_described():
    days = pd.bdate_range("2020-01-01", periods=300).delete([5, 20, 100])
    table = pd.DataFrame({"day": days.strftime("%d/%m/%Y"), "close": np.arange(297.0) / 7})
    source, problems, settings = describe(table)
    assert settings == ("gaps=fill",)
    assert "3 gaps" in problems[0].sentence
    time, close = columns(source)
    assert (time["kind"], close["kind"]) == ("time", "series")
    assert time["values"] == "01/01/2020 to 23/02/2021"
    first = recommend(source, "a b.csv", settings)[0]
    assert first.command == "monge fit direct_forecast 'a b.csv' data.gaps=fill"


def test_images_of_several_sizes_are_described(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        pixels = rng.integers(0, 256, (20 + i % 3, 30, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    source, problems, settings = describe(str(tmp_path))
    assert source.fields["image"].space.shape == (3, 64, 64)
    assert "30x20" in problems[0].sentence
    assert f"{tmp_path}+resize64" in problems[0].remedy
    assert f"{tmp_path}+resize64" in recommend(source, str(tmp_path), settings)[0].command


def test_sounds_of_several_rates_are_described(tmp_path):
    for i in range(12):
        rate = 8000 if i else 11025
        wavfile.write(tmp_path / f"{i}.wav", rate, np.arange(900 + i, dtype=np.int16))
    source, problems, settings = describe(str(tmp_path))
    assert "11025" in problems[0].sentence
    assert settings == ("+resample8000",)
    first = recommend(source, str(tmp_path), settings)[0].command
    assert f"{tmp_path}+resample8000+mulaw" in first


def test_numbers_of_few_values_are_pointed_out_together():
    x = np.random.default_rng(0).normal(size=(2000, 4))
    table = pd.DataFrame({"a": x[:, 0].round(1), "b": x[:, 1].round(1), "c": x[:, 2].round(3)})
    table["d"] = np.where(x[:, 3] < 0, 7.0, x[:, 3])  # a value that models know of
    (found,) = (each for each in describe(table)[1] if each.name == "rounded numbers")
    assert (found.columns, found.count) == (("a", "b"), 2)
    few = describe(table[:900])[1]  # no model learns which values repeat
    assert "rounded numbers" not in {each.name for each in few}


def test_whole_numbers_that_look_like_dates_are_pointed_out():
    days = pd.date_range("2020-01-01", periods=ROWS)
    table = pd.DataFrame({"day": days.strftime("%Y%m%d").astype(int), "y": np.arange(ROWS) / 7})
    assert [problem.columns for problem in describe(table)[1]] == [("day",)]
    other = table.assign(day=table["day"] + 40)  # 20200141 is none
    assert not describe(other)[1]


def test_a_table_of_one_number_and_text_is_described():
    words = np.random.default_rng(0).choice(["late", "early", "room", "blue"], (ROWS, 6))
    notes = [f"{' '.join(row)} {i}" for i, row in enumerate(words)]
    source, _, settings = describe(pd.DataFrame({"note": notes, "y": np.arange(ROWS) / 7}))
    assert recommend(source, "notes.csv", settings)[0].models
    with pytest.raises(UsageError, match="note"):
        source.view(target="y")


def test_what_cannot_be_described_is_refused():
    with pytest.raises(DataError, match="no rows"):
        describe(pd.DataFrame({"a": []}))


def test_the_tree_comes_first_for_tables():
    source, _, settings = describe(messy())
    first, *others = recommend(source, "shop.csv", settings)
    assert first.models[0] == "baseline.chow_liu"
    assert first.command.startswith("monge fit chow_liu shop.csv data.drop=user")
    assert any("predict.mlp" in other.models for other in others)


def test_numbers_are_short():
    assert [digits(x) for x in (0.0, 0.41999, 18823.0, 1e-7)] == ["0", "0.42", "18823", "1e-07"]
    assert percent(0.1987) == "19.9 %"
