"""Tables through the command line: what is found in them, conditions, constraints, completion."""

import json

import numpy as np
import pandas as pd
import pytest

from monge.cli.main import attempt

N = 300


def orders() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    kind = rng.choice(["food", "book", "toy"], N)
    price = rng.gamma(3.0, 4.0, N).round(2)
    frame = pd.DataFrame(
        {
            "order": [f"N-{i:05d}" for i in range(N)],
            "kind": kind,
            "shelf": pd.Series(kind).map({"food": 3, "book": 8, "toy": 9}),
            "price": np.where(rng.random(N) < 0.2, np.nan, price),
            "stars": np.where(rng.random(N) < 0.15, np.nan, rng.integers(1, 6, N)),
            "gift": np.where(rng.random(N) < 0.4, 0.0, rng.gamma(2.0, 1.0, N).round(3)),
        }
    )
    frame["paid"] = (frame["price"] + frame["gift"]).round(3)
    return frame


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    orders().to_csv(folder / "orders.csv", index=False)
    out = folder / "run"
    words = ["width=16", "depth=1", "data.constraints=paid=price+gift;gift<=20"]
    words += ["--budget", "60steps", "--out", str(out)]
    assert attempt(["fit", "deep_nade", str(folder / "orders.csv"), *words]) == 0
    return folder


@pytest.fixture
def monge(files, capsys):
    """Run a command line; its result and its notes, or its error if it fails."""

    def call(*args, fails=False):
        capsys.readouterr()
        code = attempt([str(arg) for arg in args] + ["--json"])
        found = capsys.readouterr()
        assert bool(code) == fails, found.err
        return found.err + found.out if fails else json.loads(found.out)

    return call


def test_data_shows_what_is_found_in_each_column(files, monge, capsys):
    found = monge("data", files / "orders.csv", "data.constraints=paid=price+gift;gift<=20")
    fields = {field["name"]: field for field in found["fields"]}
    assert list(fields) == list(orders())
    assert fields["order"]["role"] == "key"
    assert fields["shelf"]["role"] == "computed from kind"
    assert fields["paid"]["role"] == "computed from price, gift"
    assert fields["price"]["empty"] == pytest.approx(orders()["price"].isna().mean(), abs=1e-4)
    assert fields["gift"]["atoms"] == [0.0]
    assert (fields["gift"]["lower"], fields["gift"]["upper"]) == (0.0, 20.0)
    assert any("shelf is a function of kind" in note for note in found["notes"])
    attempt(["data", str(files / "orders.csv")])
    shown = capsys.readouterr().out
    assert "computed from kind" in shown
    assert "0 in " in shown
    plain = monge("data", files / "orders.csv", "space=plain", "drop=order")
    assert {field["role"] for field in plain["fields"]} == {None}


def test_samples_are_tables_like_the_data(files, monge):
    monge("sample", files / "run", "-n", 400, "-o", files / "new.csv")
    made = pd.read_csv(files / "new.csv")
    assert list(made) == list(orders())
    assert made["order"][0] == f"N-{N:05d}"
    assert made["order"].is_unique
    assert made["shelf"].equals(made["kind"].map({"food": 3, "book": 8, "toy": 9}))
    assert made["price"].isna().any()
    assert made["price"].isna().equals(made["paid"].isna())
    assert np.allclose(made["paid"], made["price"] + made["gift"], atol=1e-4, equal_nan=True)
    assert made["gift"].between(0, 20).all()


def test_samples_under_conditions(files, monge):
    conditions = ("--where", "shelf=8", "--where", "price>5", "--where", "stars=4,5")
    monge("sample", files / "run", "-n", 30, *conditions, "-o", files / "some.csv")
    made = pd.read_csv(files / "some.csv")
    assert len(made) == 30
    assert (made["kind"] == "book").all()
    assert (made["price"] > 5).all()
    assert made["stars"].isin([4, 5]).all()


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        (["prise>3"], "price"),
        (["kind=car"], "book"),
        (["gift>30"], "at most 20"),
        (["price>5", "price<5"], "'price>5'"),
        (["order=N-00001"], "key"),
    ],
)
def test_conditions_that_are_refused(files, monge, conditions, text):
    words = [word for condition in conditions for word in ("--where", condition)]
    assert text in monge("sample", files / "run", "-n", 3, *words, fails=True)


def test_completion_fills_cells_and_keeps_all_others(files, monge):
    frame = orders()
    source, out = files / "orders.csv", files / "full.csv"
    result = monge("complete", files / "run", source, "-o", out)
    full = pd.read_csv(out)
    holes = frame[["price", "stars"]].isna()
    assert result["filled"] == int(holes.to_numpy().sum())
    assert result["rows"] == N
    assert list(full) == list(frame)
    assert not full.isna().any().any()
    assert full["order"].equals(frame["order"])
    for name in ("price", "stars", "gift", "paid"):
        known = frame[name].notna()
        assert np.allclose(full[name][known], frame[name][known], rtol=1e-5, atol=1e-4)
    assert np.allclose(full["paid"], full["price"] + full["gift"], atol=1e-4)
    assert (full["stars"] == full["stars"].round()).all()


def test_holes_that_are_kept_stay(files, monge):
    frame, out = orders(), files / "kept.csv"
    monge("complete", files / "run", files / "orders.csv", "--keep-holes", "stars", "-o", out)
    full = pd.read_csv(out)
    assert full["stars"].isna().equals(frame["stars"].isna())
    assert not full["price"].isna().any()
    refused = monge(
        "complete", files / "run", files / "orders.csv", "--keep-holes", "starz", "-o", out,
        fails=True,
    )  # fmt: skip
    assert "stars" in refused


def test_means_intervals_and_several_draws(files, monge):
    frame, out = orders(), files / "mean.csv"
    words = ("--rows", 60, "-o", out)
    first = monge("complete", files / "run", files / "orders.csv", "--mean", *words)
    assert "mean" in first["method"]
    mean = pd.read_csv(out)
    monge("complete", files / "run", files / "orders.csv", "--mean", "--interval", 0.8, *words)
    ends = pd.read_csv(out)
    holes = frame["price"][:60].isna()
    assert ends["price.low"].notna().equals(holes)
    inside = ends[holes]
    assert (inside["price.low"] < inside["price.high"]).all()
    assert (inside["price.low"] >= 0).all()
    assert (mean["price"][holes] > inside["price.low"]).all()
    assert ends["order"].equals(frame["order"][:60])
    monge("complete", files / "run", files / "orders.csv", "--draws", 3, *words)
    many = pd.read_csv(out)
    assert many["order"].tolist() == frame["order"][:60].repeat(3).tolist()
    spread = many.groupby("order")["price"].nunique().to_numpy()
    assert ((spread > 1) == holes.to_numpy()).all()
    for wrong in (("--mean", "--median"), ("--mean", "--draws", 2)):
        assert "--mean" in monge(
            "complete", files / "run", files / "orders.csv", *wrong, *words, fails=True
        )


def test_rows_with_nothing_known_and_rows_without_holes(files, monge, capsys):
    frame = orders().head(20).astype({"shelf": "float64"})
    frame.loc[4, [name for name in frame if name != "order"]] = None
    frame.to_csv(files / "blank.csv", index=False)
    attempt(["complete", str(files / "run"), str(files / "blank.csv"), "-o", str(files / "b.csv")])
    assert "1 row has no known cell" in capsys.readouterr().err
    full = pd.read_csv(files / "b.csv")
    assert not full.isna().any().any()
    assert full["order"][4] == "N-00004"
    orders().dropna().to_csv(files / "whole.csv", index=False)
    refused = monge(
        "complete", files / "run", files / "whole.csv", "-o", files / "b.csv", fails=True
    )
    assert "--hide" in refused


def test_rows_that_break_what_was_found_are_refused_by_number(files, monge):
    for name, value, text in (("shelf", 4, "kind="), ("gift", 21.0, "20"), ("paid", 0.5, "paid=")):
        frame = orders().dropna().head(40).reset_index(drop=True)
        frame.loc[10, name] = value
        frame.to_csv(files / "bad.csv", index=False)
        refused = monge("score", files / "run", files / "bad.csv", fails=True)
        assert "row 12 of bad.csv" in refused
        assert text in refused


def test_leakage_is_noted_before_a_fit(files, capsys):
    words = ["--target", "shelf", "width=8", "--budget", "2steps", "--out", str(files / "leak")]
    attempt(["fit", "made", str(files / "orders.csv"), *words])
    assert "data.drop=kind" in "".join(capsys.readouterr())
