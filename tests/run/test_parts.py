"""Long tables of scores, predictions, completions and samples are written in parts, and are the
same as in one piece."""

import numpy as np
import pandas as pd
import pytest

import monge.cli.complete
import monge.cli.sample
import monge.cli.score
from monge.cli.main import main
from monge.run import completion, predict, run, writers

PART = 8


def table(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = pd.DataFrame({"id": np.arange(1, n + 1), "a": rng.normal(size=n).round(3)})
    found["b"] = (found["a"] * 2 + rng.normal(size=n)).round(2)
    found["c"] = rng.choice(["x", "y", "z"], n)
    found["k"] = rng.poisson(2, n)
    found.loc[rng.random(n) < 0.2, "b"] = np.nan
    return found


@pytest.fixture
def few(monkeypatch):
    """Parts of few rows."""
    cli = (monge.cli.complete, monge.cli.sample, monge.cli.score)
    for module in (writers, run, predict, *cli):
        monkeypatch.setattr(module, "PART", PART)


def call(*words: str) -> None:
    with pytest.raises(SystemExit) as done:
        main(list(map(str, words)))
    assert done.value.code == 0


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    table(60).to_csv(folder / "t.csv", index=False)
    made = run.start("made", str(folder / "t.csv"), out=folder / "made")
    list(made.train("2steps"))
    other = run.start("mlp", str(folder / "t.csv"), target="c", out=folder / "mlp")
    list(other.train("2steps"))
    return folder


def test_scores_in_parts(fitted, tmp_path, few):
    call("score", fitted / "made", fitted / "t.csv", "-o", tmp_path / "s.csv", "-q")
    found = pd.read_csv(tmp_path / "s.csv")
    scores = run.load(fitted / "made").log_likelihood(str(fitted / "t.csv")).value
    assert found["row"].tolist() == list(range(1, 61))
    assert np.allclose(found["nats"], scores, rtol=1e-12)
    assert found["rank"].tolist() == pd.Series(scores).rank(method="first").astype(int).tolist()


@pytest.mark.parametrize("by", ["mean", "sample"])
def test_predictions_in_parts(fitted, tmp_path, monkeypatch, by):
    words = ("predict", fitted / "mlp", fitted / "t.csv", "--by", by, "-q", "-o")
    call(*words, tmp_path / "whole.csv")
    monkeypatch.setattr(predict, "chunks", lambda rows: [rows.whole()])
    monkeypatch.setattr(predict, "PART", PART)
    call(*words, tmp_path / "parts.csv")
    whole, parts = (pd.read_csv(tmp_path / name) for name in ("whole.csv", "parts.csv"))
    assert parts["row"].tolist() == list(range(1, 61))
    if by == "mean":
        pd.testing.assert_frame_equal(whole, parts, rtol=1e-5)


def test_completions_in_parts(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(completion, "MAX_CHUNK", PART)
    words = ("complete", fitted / "made", fitted / "t.csv", "-n", 2, "-q", "-o")
    call(*words, tmp_path / "whole.csv")
    monkeypatch.setattr(monge.cli.complete, "PART", PART)
    call(*words, tmp_path / "parts.csv")
    assert (tmp_path / "whole.csv").read_text() == (tmp_path / "parts.csv").read_text()
    assert len(pd.read_csv(tmp_path / "parts.csv")) == 120
    table(60).fillna({"b": 1.0}).to_csv(tmp_path / "full.csv", index=False)
    with pytest.raises(SystemExit) as done:
        main(
            [
                "complete",
                str(fitted / "made"),
                str(tmp_path / "full.csv"),
                "-o",
                str(tmp_path / "n.csv"),
            ]
        )
    assert done.value.code == 1
    assert not (tmp_path / "n.csv").exists()


def test_samples_in_parts(fitted, tmp_path, few):
    call("sample", fitted / "made", "-n", 20, "--seed", 3, "-q", "-o", tmp_path / "n.csv")
    found = pd.read_csv(tmp_path / "n.csv")
    assert found["id"].tolist() == list(range(61, 81))
    loaded = run.load(fitted / "made")
    loaded.sample(20, seed=3).to_csv(tmp_path / "m.csv", index=False)
    assert (tmp_path / "n.csv").read_text() == (tmp_path / "m.csv").read_text()
    first, second = (found.drop(columns="id")[at : at + 4] for at in (0, PART))
    assert not first.equals(second.reset_index(drop=True))


def test_a_table_that_fails_midway_is_not_left_behind(tmp_path):
    def parts():
        yield table(3)
        raise ValueError

    with pytest.raises(ValueError):
        writers.write_tables(parts(), tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())


def test_parquet_in_parts(tmp_path):
    pytest.importorskip("pyarrow")
    parts = [table(30)[:10], table(30)[10:]]
    writers.write_tables(parts, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table(30))
