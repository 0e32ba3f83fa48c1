"""The command line: what a person types, what comes back, and every sentence of refusal."""

import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from monge.cli.main import attempt, commands


@pytest.fixture
def run_cli(capsys):
    """Run a command line; its exit code, stdout and stderr."""

    def run(*args):
        code = attempt([str(arg) for arg in args])
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


@pytest.fixture
def run_json(run_cli):
    """Run a command line with --json that must succeed; its one value."""

    def run(*args):
        code, out, err = run_cli(*args, "--json")
        assert code == 0, err
        assert err == ""
        return json.loads(out)

    return run


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(17, 80, 120),
            "size": rng.normal(3, 1, 120).round(3),
            "job": rng.choice(["cook", "clerk", "smith"], 120),
            "ok": rng.random(120) < 0.3,
        }
    )
    path = tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    return path


QUICK = ("width=16", "depth=1")


def test_every_command_has_help(run_cli):
    for command in commands():
        code, out, _ = run_cli(command, "--help")
        assert code == 0
        assert "Usage: monge" in out
        assert len(out.splitlines()) > 6


def test_a_model_is_told_with_the_words_it_admits(run_cli):
    _, run_json, _ = run_cli("models", "made")
    assert "[natural | snake | random | given]" in run_json
    assert "train.lr" not in run_json
    _, more, _ = run_cli("models", "made", "-v")
    assert "train.lr" in more
    assert "…" not in run_json + more + run_cli("data")[1]


def test_a_table_goes_in_and_the_same_columns_come_out(run_cli, run_json, table, tmp_path):
    run = run_json("fit", "made", table, *QUICK, "--budget", "20steps")
    assert set(run) == {"run", "steps", "seconds", "stopped", "held_out", "findings"}
    assert run["held_out"]["kind"] == "exact"
    out = tmp_path / "new.csv"
    assert run_json("sample", run["run"], "-n", 30, "-o", out)["file"] == str(out)
    old, new = pd.read_csv(table), pd.read_csv(out)
    assert list(new.columns) == list(old.columns)
    assert list(new.dtypes) == list(old.dtypes)
    assert len(new) == 30
    code, printed, _ = run_cli("sample", "made-people", "-n", 3)
    assert code == 0
    assert printed.splitlines()[0] == "age,size,job,ok"


def test_scores_have_a_line_a_row(run_json, run_cli, table, tmp_path):
    run_json("fit", "made", table, *QUICK, "--budget", "5steps")
    out = tmp_path / "scores.csv"
    result = run_json("score", "made-people", table, "-o", out)
    assert set(result) == {"rows", "mean", "stderr", "kind", "unit", "bits_per_dim"}
    scores = pd.read_csv(out)
    assert list(scores.columns) == ["row", "nats", "kind", "rank"]
    assert len(scores) == result["rows"] == 120
    assert scores.nats.mean() == pytest.approx(result["mean"])
    assert scores.nats[scores["rank"] == 1].item() == scores.nats.min()
    assert run_json("score", "made-people")["rows"] == 12
    assert run_json("score", "made-people", "--split", "train")["rows"] == 96
    _, out, _ = run_cli("score", "made-people")
    assert "(exact)" in out


def test_a_value_too_far_out_is_told(run_cli, run_json, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame({"a": [0.5, 1e30], "b": [0.5, 0.5]}).to_csv(tmp_path / "far.csv", index=False)
    run_json("fit", "made", tmp_path / "t.csv", *QUICK, "--budget", "3steps")
    code, _, err = run_cli("score", "made-t", tmp_path / "far.csv")
    assert code == 0
    assert "1 of 2 rows" in err
    assert run_json("score", "made-t", tmp_path / "far.csv")["mean"] is None


def test_a_bound_says_so_and_tightens(run_json):
    run_json("fit", "vae", "digits", "--budget", "5steps")
    loose, tight = (run_json("score", "vae-digits", f"samples={k}") for k in (1, 20))
    assert loose["kind"] == tight["kind"] == "bound"
    assert loose["mean"] < tight["mean"]


def test_pictures_points_and_arrays(run_json, tmp_path):
    run_json("fit", "independent", "digits")
    run_json("sample", "independent-digits", "-n", 6, "-o", tmp_path / "grid.png")
    assert Image.open(tmp_path / "grid.png").size[0] > 100
    run_json("sample", "independent-digits", "-n", 6, "-o", tmp_path / "x.npz")
    assert np.load(tmp_path / "x.npz")["x"].shape[0] == 6
    run_json("fit", "gaussian", "moons")
    run_json("sample", "gaussian-moons", "-n", 50, "-o", tmp_path / "points.png")
    assert Image.open(tmp_path / "points.png").size[0] > 100


def test_conditions(run_json, run_cli):
    run_json("fit", "made", "digits", *QUICK, "--given", "label", "--budget", "3steps")
    code, _, err = run_cli("sample", "made-digits", "-n", 2)
    assert code == 1
    assert "--given label=" in err
    assert run_json("sample", "made-digits", "-n", 2, "--given", "label=3")["n"] == 2
    code, _, err = run_cli("sample", "made-digits", "--given", "label=eleven")
    assert code != 0
    assert "eleven" in err
    run_json("fit", "independent", "iris", "--budget", "1steps")
    _, _, err = run_cli("sample", "independent-iris", "--given", "colour=red")
    assert "--given colour" in err


def test_evaluate_models_data_runs_verify(run_json, table):
    run_json("fit", "made", table, *QUICK, "--budget", "5steps")
    metrics = run_json("evaluate", "made-people")["metrics"]
    assert {
        "log_likelihood",
        "bits_per_dim",
        "energy_distance",
        "energy_distance_of_real_rows",
    } <= set(metrics)
    assert set(metrics["log_likelihood"]) == {"value", "stderr", "kind", "unit"}
    (row,) = run_json("runs")
    assert row["model"] == "autoregressive.made"
    assert row["bytes"] > 1000
    names = {entry["name"] for entry in run_json("models")}
    assert {"autoregressive.made", "latent.vae", "adversarial.wgan", "baseline.chow_liu"} <= names
    known = {field["field"]: field for field in run_json("models", "made")["fields"]}
    assert known["width"]["choices"] == []
    assert known["order"]["choices"] == ["natural", "snake", "random", "given"]
    assert "digits" in {entry["name"] for entry in run_json("data")}
    fields = {field["name"]: field["kind"] for field in run_json("data", table)["fields"]}
    assert fields == {"age": "counts", "size": "real", "job": "label", "ok": "binary"}
    assert run_json("runs", "--delete", row["run"], "--yes") == []


def test_resuming(run_json, run_cli, table):
    run_json("fit", "made", table, *QUICK, "--budget", "5steps")
    assert run_json("fit", "--resume", "made-people", "--budget", "+5steps")["steps"] == 10
    code, _, err = run_cli("fit", "made", table, "--resume", "made-people")
    assert code == 2
    assert "'made'" in err
    assert "--budget" in err


def test_a_fit_tells_how_it_goes(run_cli, table):
    code, out, err = run_cli(
        "fit", "made", table, *QUICK, "train.eval_every=10", "--budget", "20steps"
    )
    assert code == 0
    assert "held out" in out
    assert "step      10" in err
    assert "stopped after 20 steps" in err
    code, out, err = run_cli("fit", "made", table, *QUICK, "--budget", "5steps", "-q")
    assert err == ""


def test_completing(run_json, run_cli, tmp_path):
    frame = pd.DataFrame({"a": np.arange(60) / 7, "b": np.arange(60) / 3, "c": ["x", "y"] * 30})
    frame.loc[5:8, "b"] = np.nan
    frame.loc[9, "c"] = None
    frame.to_csv(tmp_path / "holes.csv", index=False)
    run_json("fit", "chow_liu", tmp_path / "holes.csv")
    out = tmp_path / "full.csv"
    result = run_json("complete", "chow_liu-holes", tmp_path / "holes.csv", "-o", out, "-n", 2)
    assert result["completions"] == 2
    full = pd.read_csv(out)
    assert len(full) == 120
    assert not full.isna().any().any()
    seen = frame.b.notna().to_numpy()
    np.testing.assert_allclose(full.b[::2][seen], frame.b[seen], rtol=1e-6)
    code, _, err = run_cli("complete", "chow_liu-holes", "--hide", "lower", "-o", out)
    assert code == 2
    assert "--hide lower" in err


def test_in_painting(run_json, run_cli, tmp_path):
    run_json("fit", "chow_liu", "digits", "data.rows=300")
    run_json(
        "complete", "chow_liu-digits", "--hide", "lower", "--rows", 4, "-o", tmp_path / "x.png"
    )
    assert Image.open(tmp_path / "x.png").size[0] > 100
    np.save(tmp_path / "mask.npy", np.eye(8, dtype=bool))
    run_json(
        "complete", "chow_liu-digits", "--hide", tmp_path / "mask.npy", "-o", tmp_path / "x.npz"
    )
    np.save(tmp_path / "mask.npy", np.eye(7, dtype=bool))
    for hide, part in ((tmp_path / "mask.npy", "(7, 7)"), ("low", "found low")):
        code, _, err = run_cli(
            "complete", "chow_liu-digits", "--hide", hide, "-o", tmp_path / "x.npz"
        )
        assert code in (1, 2)
        assert part in err
    code, _, err = run_cli("complete", "chow_liu-digits", "-o", tmp_path / "x.npz")
    assert "--hide" in err


def test_a_film(run_json, run_cli, tmp_path):
    run_json("fit", "made", "digits", *QUICK, "data.rows=300", "--budget", "2steps")
    assert run_json("sample", "made-digits", "-n", 2, "-o", tmp_path / "f.gif")["frames"] == 64
    assert Image.open(tmp_path / "f.gif").n_frames > 10
    code, out, _ = run_cli("sample", "made-digits", "-n", 1, "--stream")
    assert code == 0
    assert "▀" in out
    run_json("fit", "made", "iris", *QUICK, "--budget", "2steps")
    code, _, err = run_cli("sample", "made-iris", "--stream")
    assert "--stream" in err


def test_debug_shows_the_traceback(run_cli):
    with pytest.raises(ValueError, match="mad"):
        run_cli("fit", "mad", "digits", "--debug")


WRONG = [
    (2, ["fot"], "'fot'; did you mean fit?"),
    (2, ["fit", "mad", "digits"], "'mad'; did you mean made?"),
    (2, ["models", "vea"], "'vea'; did you mean vae?"),
    (2, ["fit", "made", "digits", "widht=3"], "'widht'; did you mean width?"),
    (2, ["fit", "made", "digits", "width=0"], "width=0"),
    (
        2,
        ["fit", "made", "digits", "train.weight_deca=1"],
        "'weight_deca'; did you mean weight_decay?",
    ),
    (2, ["fit", "made", "digits", "data.sed=1"], "'sed'; did you mean seed?"),
    (2, ["fit", "made", "digits", "--budget", "0"], "budget '0'"),
    (2, ["fit", "made", "digits", "--budget", "0s"], "0s"),
    (2, ["fit", "made", "digits", "--given", "lable"], "'lable'; did you mean label?"),
    (2, ["fit", "made"], "MODEL"),
    (2, ["fit", "made", "digits", "--precision", "fp64"], "fp64"),
    (1, ["fit", "made", "nowhere.csv"], "nowhere.csv"),
    (1, ["fit", "made", "digit"], "did you mean digits?"),
    (1, ["score", "none"], "'none'"),
]


@pytest.mark.parametrize(
    ("code", "args", "part"),
    WRONG,
    ids=lambda w: " ".join(map(str, w)) if isinstance(w, list) else "",
)
def test_wrong_usage_gets_one_sentence(run_cli, code, args, part):
    got, out, err = run_cli(*args)
    assert part in err
    assert got == code
    assert out == ""
    assert err.startswith("monge: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    _, out, _ = run_cli(*args, "--json")
    assert part in json.loads(out)["error"]


SPOILT = {
    "empty.csv": ("", "empty"),
    "text.csv": ("a,b\n" + "1.5,2\n" * 30 + "1.5,oops\n" + "2.5,3\n" * 20, "oops"),
    "inf.csv": ("a,b\n" + "1.5,2\n" * 30 + "inf,2\n" * 2, "inf"),
    "ragged.csv": ("a,b\n1,2\n1,2,3\n4,5\n", "ragged.csv"),
    "short.csv": ("a,b\n1,2\n", "too few"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_tables_get_one_sentence(run_cli, tmp_path, name):
    text, part = SPOILT[name]
    (tmp_path / name).write_text(text)
    code, _, err = run_cli("fit", "made", tmp_path / name)
    assert code == 1
    assert part in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_constant_column_is_no_obstacle(run_json, tmp_path):
    frame = pd.DataFrame({"a": np.arange(60) / 7, "same": np.full(60, 2.5)})
    frame.to_csv(tmp_path / "c.csv", index=False)
    fields = run_json("data", tmp_path / "c.csv")["fields"]
    assert [field["constant"] for field in fields] == [False, True]
    run = run_json("fit", "made", tmp_path / "c.csv", *QUICK, "--budget", "10steps")
    assert np.isfinite(run["held_out"]["value"])


def test_a_picture_that_does_not_decode_is_named(run_cli, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        Image.fromarray(np.full((8, 8), number * 9, np.uint8)).save(folder / f"{number}.png")
    (folder / "bad.png").write_bytes(b"not a picture")
    code, _, err = run_cli("data", folder)
    assert code == 1
    assert "bad.png" in err


def test_a_model_without_likelihood_says_what_to_do(run_json, run_cli):
    run_json("fit", "wgan", "iris", "--budget", "3steps")
    code, _, err = run_cli("score", "wgan-iris")
    assert code == 2
    assert "adversarial.wgan" in err
    assert "log-likelihood" in err
    assert "autoregressive.made" in err
    code, _, err = run_cli("sample", "wgan-iris", "-o", "x.png")
    assert code == 2
    assert ".csv" in err
    code, _, err = run_cli("sample", "wgan-iris", "-o", "x.doc")
    assert code == 2
    assert ".doc" in err
    assert ".npz" in err


def test_a_dry_run_prints_the_cost_and_leaves_nothing(run_json, run_cli, table, tmp_path):
    cost = run_json("fit", "made", table, *QUICK, "--budget", "7steps", "--dry-run")
    assert cost["parameters"] > 100
    assert cost["seconds_per_step"] > 0
    assert cost["steps"] == 7
    assert not (tmp_path / "runs").exists()
    code, out, _ = run_cli("fit", "made", table, *QUICK, "--budget", "7steps", "--dry-run")
    assert code == 0
    assert str(cost["parameters"]) in out
    assert "per step" in out
    assert not (tmp_path / "runs").exists()


def test_a_fit_runs_no_trial_steps(monkeypatch, run_cli, table):
    def fail(*args):
        raise AssertionError("a trial step was timed")

    monkeypatch.setattr("monge.train.cost_estimate.trial", fail)
    code, _, err = run_cli("fit", "made", table, *QUICK, "--budget", "2steps")
    assert code == 0
    assert re.search(r"\d+ parameters, \S+ kB", err)


def test_a_scoring_option_that_a_model_lacks_is_named_with_those_it_has(run_json, run_cli):
    run_json("fit", "vae", "digits", "--budget", "2steps")
    code, _, err = run_cli("score", "vae-digits", "solver=ode")
    assert code == 2
    for part in ("latent.vae", "'solver'", "samples", "refine"):
        assert part in err
    code, _, err = run_cli("predict", "vae-digits")
    assert code == 2
    assert "latent.vae cannot predict" in err
    assert "HasMarginals" not in err


def test_an_internal_error_names_its_class_and_debug(monkeypatch, run_cli):
    from monge import registry

    def fail():
        raise TypeError("odd")

    for name in [name for name in sys.modules if name.startswith(registry.USER_MODULE)]:
        monkeypatch.delitem(sys.modules, name)  # of other tests: it would be named instead
    monkeypatch.setattr(registry, "entries", fail)
    code, _, err = run_cli("models")
    assert code == 1
    assert "(TypeError: odd)" in err
    assert "--debug" in err


def test_layers_of_a_network_are_listed_with_what_they_read(run_json, run_cli):
    printed = run_json("models", "cnn", "widths=8", "depth=2", "--data", "digits", "--layers")
    rows = [row for row in printed["layers"] if row["layer"] in ("conv", "dense")]
    assert [row["shape"] for row in rows] == [[8, 4, 4], [8, 4, 4], [128]]
    assert [row["field"] for row in rows] == [3, 7, 8]  # 3, 3 + 2 x 2, all
    assert rows[0]["parameters"] == 8 * 9
    assert printed["parameters"] == sum(row["parameters"] for row in printed["layers"])
    for wrong in (("--layers",), ("gpt", "--data", "digits", "--layers"), ("cnn", "widths=8")):
        assert run_cli("models", *wrong)[0] == 2
