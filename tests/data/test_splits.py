"""Splits by a group and by time, and the weights of rows."""

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.data import splits

ROWS = 300


def visits():
    rng = np.random.default_rng(0)
    days = pd.date_range("2020-01-01", periods=60).strftime("%d %b %Y")
    return pd.DataFrame(
        {
            "patient": rng.choice([f"p{i}" for i in range(30)], ROWS),
            "day": rng.choice(days, ROWS),
            "value": rng.normal(size=ROWS),
            "times": rng.integers(0, 4, ROWS),
        }
    )


def rows_by_split(source):
    return {name: rows.numpy() for name, rows in source.splits.items()}


def test_no_group_is_in_two_splits():
    table = visits()
    parts = rows_by_split(data.open(table, "group=patient"))
    groups = {name: set(table["patient"].iloc[rows]) for name, rows in parts.items()}
    assert not groups["train"] & groups["valid"] | groups["train"] & groups["test"]
    assert not groups["valid"] & groups["test"]
    assert sorted(np.concatenate(list(parts.values()))) == list(range(ROWS))
    assert all(0.05 * ROWS < len(parts[name]) < 0.2 * ROWS for name in ("valid", "test"))
    other = rows_by_split(data.open(table, "group=patient", "seed=1"))
    assert not np.array_equal(parts["test"], other["test"])


def test_test_rows_are_later_than_valid_rows_and_these_later_than_train_rows():
    table = visits()
    source = data.open(table, "time=day")
    assert source.schema.table
    times = pd.to_datetime(table["day"], format="%d %b %Y")
    parts = {name: times.iloc[rows] for name, rows in rows_by_split(source).items()}
    assert parts["train"].max() < parts["valid"].min()
    assert parts["valid"].max() < parts["test"].min()
    assert sum(map(len, parts.values())) == ROWS


@pytest.mark.parametrize("setting", ["group=nobody", "weight=nothing"])
def test_columns_that_are_not_there(setting):
    with pytest.raises(UsageError, match=setting):
        data.open(visits(), setting)


def test_too_few_groups_or_times():
    table = visits().assign(patient="p1", day="1 Jan 2020")
    with pytest.raises(DataError, match="patient"):
        data.open(table, "group=patient")
    with pytest.raises(DataError, match="day"):
        data.open(table.assign(who=["a", "b"] * (ROWS // 2)), "time=day")


def test_weights_are_those_of_repeated_rows(tmp_path):
    """A logistic fit with weights is the fit to rows that are repeated as often."""
    rng = np.random.default_rng(0)
    x, times = rng.normal(size=ROWS), rng.integers(0, 4, ROWS)
    y = rng.random(ROWS) < 1 / (1 + np.exp(-2 * x * (times > 1)))
    table = pd.DataFrame({"x": x, "times": times, "y": np.where(y, "yes", "no")})
    settings = ("train.batch_size=1000", "train.lr=0.1", "data.test=0.05", "data.valid=0.05")
    fits = {}
    for name, extra in {"weighted": ("data.weight=times",), "plain": ("data.drop=times",)}.items():
        run = monge.fit(
            "logistic", table, *settings, *extra, target="y", budget="60steps", out=tmp_path / name
        )
        fits[name] = run.predict(pd.DataFrame({"x": [1.0]})).iloc[0].to_dict()
        if name == "weighted":
            held, weight = (
                run.result["held_out"]["value"],
                times[run.opened.dataset.splits["valid"]],
            )
            rows = run.log_likelihood(split="valid").value
            assert held == pytest.approx(rows @ weight / weight.sum(), abs=1e-5)
            assert held != pytest.approx(rows.mean(), abs=1e-3)
    train = data.open(table, "drop=times", "test=0.05", "valid=0.05").splits["train"].numpy()
    again = table.iloc[np.repeat(train, times[train])].drop(columns="times")
    held = table.drop(columns="times").iloc[np.setdiff1d(np.arange(ROWS), train)]
    (tmp_path / "rows").mkdir()
    again.to_csv(tmp_path / "rows" / "train.csv", index=False)
    held.iloc[:15].to_csv(tmp_path / "rows" / "valid.csv", index=False)
    held.iloc[15:].to_csv(tmp_path / "rows" / "test.csv", index=False)
    run = monge.fit(
        "logistic", tmp_path / "rows", *settings[:2], target="y", budget="60steps",
        out=tmp_path / "again",
    )  # fmt: skip
    expected = run.predict(pd.DataFrame({"x": [1.0]})).iloc[0]["y_p_yes"]
    assert fits["weighted"]["y_p_yes"] == pytest.approx(expected, abs=0.01)
    assert abs(fits["plain"]["y_p_yes"] - expected) > 0.03


def test_weights_are_stored_apart_and_refused_where_they_mean_nothing(tmp_path):
    table = visits()
    source = data.open(table, "weight=times")
    assert "times" not in source.fields
    rows = source.view().training()
    weight = rows.batch(torch.arange(len(rows))).weight
    assert float(weight.mean()) == pytest.approx(1)
    assert source.view().split("valid").batch(torch.arange(3)).weight is None
    for model in ("chow_liu", "wgan"):
        with pytest.raises(UsageError, match=r"data\.weight"):
            monge.fit(model, table, "data.weight=times", out=tmp_path / model)
        assert not (tmp_path / model).exists()
    with pytest.raises(DataError, match="weights"):
        data.open(table.assign(times=-1.0), "weight=times")


def test_ranks_are_those_of_sorted_rows():
    rng = np.random.default_rng(0)
    for keys in (rng.random(50), rng.integers(0, 4, 50).astype(float)):
        found = splits.ranked(keys, [0, 7, 20], [1, 2])
        order = np.argsort(keys, kind="stable")
        assert (found[order[:7]] == 1).all()
        assert (found[order[7:20]] == 2).all()
        assert (found[order[20:]] == 0).all()
