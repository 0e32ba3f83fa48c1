"""The command line: arguments, output, and every refusal."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from monge.cli.main import attempt, commands


@pytest.fixture
def command(capsys):
    """Run a command line; its exit code, stdout and stderr."""

    def run(*arguments):
        code = attempt([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def command_json(command):
    """Run a command line with --json that must succeed; its one value."""

    def run(*arguments):
        code, out, err = command(*arguments, "--json")
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


def test_every_command_has_help(command):
    for command in commands():
        code, out, _ = command(command, "--help")
        assert code == 0
        assert "Usage: monge" in out
        assert len(out.splitlines()) > 6


def test_a_model_is_listed_with_its_settings(command):
    _, short, _ = command("models", "made")
    assert all(order in short for order in ("natural", "snake", "random", "given"))
    assert "train.lr" not in short
    _, more, _ = command("models", "made", "-v")
    assert "train.lr" in more
    assert "…" not in short + more + command("data")[1]


def test_a_table_goes_in_and_the_same_columns_come_out(command, command_json, table, tmp_path):
    run = command_json("fit", "made", table, *QUICK, "--budget", "20steps")
    assert set(run) == {"run", "steps", "seconds", "stopped", "held_out", "findings"}
    assert run["held_out"]["kind"] == "exact"
    out = tmp_path / "new.csv"
    assert command_json("sample", run["run"], "-n", 30, "-o", out)["file"] == str(out)
    old, new = pd.read_csv(table), pd.read_csv(out)
    assert list(new.columns) == list(old.columns)
    assert list(new.dtypes) == list(old.dtypes)
    assert len(new) == 30
    code, printed, _ = command("sample", "made-people", "-n", 3)
    assert code == 0
    assert printed.splitlines()[0] == "age,size,job,ok"


def test_log_likelihoods_have_a_line_per_row(command_json, command, table, tmp_path):
    command_json("fit", "made", table, *QUICK, "--budget", "5steps")
    out = tmp_path / "scores.csv"
    result = command_json("score", "made-people", table, "-o", out)
    assert set(result) == {"rows", "mean", "stderr", "kind", "unit", "bits_per_dim"}
    scores = pd.read_csv(out)
    assert list(scores.columns) == ["row", "nats", "kind", "rank"]
    assert len(scores) == result["rows"] == 120
    assert scores.nats.mean() == pytest.approx(result["mean"])
    assert scores.nats[scores["rank"] == 1].item() == scores.nats.min()
    assert command_json("score", "made-people")["rows"] == 12
    assert command_json("score", "made-people", "--split", "train")["rows"] == 96
    _, out, _ = command("score", "made-people")
    assert "(exact)" in out


def test_an_extreme_value_is_reported(command, command_json, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.random(60), "b": rng.random(60)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame({"a": [0.5, 1e30], "b": [0.5, 0.5]}).to_csv(tmp_path / "far.csv", index=False)
    command_json("fit", "made", tmp_path / "t.csv", *QUICK, "--budget", "3steps")
    code, _, err = command("score", "made-t", tmp_path / "far.csv")
    assert code == 0
    assert re.search(r"\b1\b.*\b2\b", err)
    assert command_json("score", "made-t", tmp_path / "far.csv")["mean"] is None


def test_a_bound_is_marked_and_tightens(command_json):
    command_json("fit", "vae", "digits", "--budget", "5steps")
    loose, tight = (command_json("score", "vae-digits", f"samples={k}") for k in (1, 20))
    assert loose["kind"] == tight["kind"] == "bound"
    assert loose["mean"] < tight["mean"]


def test_images_points_and_arrays(command_json, tmp_path):
    command_json("fit", "independent", "digits")
    command_json("sample", "independent-digits", "-n", 6, "-o", tmp_path / "grid.png")
    assert Image.open(tmp_path / "grid.png").size[0] > 100
    command_json("sample", "independent-digits", "-n", 6, "-o", tmp_path / "x.npz")
    assert np.load(tmp_path / "x.npz")["x"].shape[0] == 6
    command_json("fit", "gaussian", "moons")
    command_json("sample", "gaussian-moons", "-n", 50, "-o", tmp_path / "points.png")
    assert Image.open(tmp_path / "points.png").size[0] > 100


def test_conditions(command_json, command):
    command_json("fit", "made", "digits", *QUICK, "--given", "label", "--budget", "3steps")
    code, _, err = command("sample", "made-digits", "-n", 2)
    assert code == 1
    assert "--given label=" in err
    assert command_json("sample", "made-digits", "-n", 2, "--given", "label=3")["n"] == 2
    code, _, err = command("sample", "made-digits", "--given", "label=eleven")
    assert code != 0
    assert "eleven" in err
    command_json("fit", "independent", "iris", "--budget", "1steps")
    _, _, err = command("sample", "independent-iris", "--given", "colour=red")
    assert "--given colour" in err


def test_evaluate_models_data_runs_verify(command_json, table):
    command_json("fit", "made", table, *QUICK, "--budget", "5steps")
    metrics = command_json("evaluate", "made-people")["metrics"]
    assert {
        "log_likelihood",
        "bits_per_dim",
        "energy_distance",
        "energy_distance_of_real_rows",
    } <= set(metrics)
    assert set(metrics["log_likelihood"]) == {"value", "stderr", "kind", "unit"}
    (row,) = command_json("runs")
    assert row["model"] == "autoregressive.made"
    assert row["bytes"] > 1000
    names = {entry["name"] for entry in command_json("models")}
    assert {"autoregressive.made", "latent.vae", "adversarial.wgan", "baseline.chow_liu"} <= names
    known = {field["field"]: field for field in command_json("models", "made")["fields"]}
    assert known["width"]["choices"] == []
    assert known["order"]["choices"] == ["natural", "snake", "random", "given"]
    assert "digits" in {entry["name"] for entry in command_json("data")}
    fields = {field["name"]: field["kind"] for field in command_json("data", table)["fields"]}
    assert fields == {"age": "counts", "size": "real", "job": "label", "ok": "binary"}
    assert command_json("runs", "--delete", row["run"], "--yes") == []


def test_resuming(command_json, command, table):
    command_json("fit", "made", table, *QUICK, "--budget", "5steps")
    assert command_json("fit", "--resume", "made-people", "--budget", "+5steps")["steps"] == 10
    code, _, err = command("fit", "made", table, "--resume", "made-people")
    assert code == 2
    assert "'made'" in err
    assert "--budget" in err


def test_a_fit_prints_its_progress(command, table):
    code, out, err = command(
        "fit", "made", table, *QUICK, "train.eval_every=10", "--budget", "20steps"
    )
    assert code == 0
    assert out
    assert re.search(r"\b10\b", err)
    assert re.search(r"\b20\b", err)
    _, _, err = command("fit", "made", table, *QUICK, "--budget", "5steps", "-q")
    assert err == ""


def test_completing(command_json, command, tmp_path):
    frame = pd.DataFrame({"a": np.arange(60) / 7, "b": np.arange(60) / 3, "c": ["x", "y"] * 30})
    frame.loc[5:8, "b"] = np.nan
    frame.loc[9, "c"] = None
    frame.to_csv(tmp_path / "holes.csv", index=False)
    command_json("fit", "chow_liu", tmp_path / "holes.csv")
    out = tmp_path / "full.csv"
    result = command_json("complete", "chow_liu-holes", tmp_path / "holes.csv", "-o", out, "-n", 2)
    assert result["completions"] == 2
    full = pd.read_csv(out)
    assert len(full) == 120
    assert not full.isna().any().any()
    seen = frame.b.notna().to_numpy()
    np.testing.assert_allclose(full.b[::2][seen], frame.b[seen], rtol=1e-6)
    code, _, err = command("complete", "chow_liu-holes", "--hide", "lower", "-o", out)
    assert code == 2
    assert "--hide lower" in err


def test_in_painting(command_json, command, tmp_path):
    command_json("fit", "chow_liu", "digits", "data.rows=300")
    command_json(
        "complete", "chow_liu-digits", "--hide", "lower", "--rows", 4, "-o", tmp_path / "x.png"
    )
    assert Image.open(tmp_path / "x.png").size[0] > 100
    np.save(tmp_path / "mask.npy", np.eye(8, dtype=bool))
    command_json(
        "complete", "chow_liu-digits", "--hide", tmp_path / "mask.npy", "-o", tmp_path / "x.npz"
    )
    np.save(tmp_path / "mask.npy", np.eye(7, dtype=bool))
    for hide, part in ((tmp_path / "mask.npy", "(7, 7)"), ("low", "low")):
        code, _, err = command(
            "complete", "chow_liu-digits", "--hide", hide, "-o", tmp_path / "x.npz"
        )
        assert code in (1, 2)
        assert part in err
    code, _, err = command("complete", "chow_liu-digits", "-o", tmp_path / "x.npz")
    assert "--hide" in err


def test_an_animation(command_json, command, tmp_path):
    command_json("fit", "made", "digits", *QUICK, "data.rows=300", "--budget", "2steps")
    assert command_json("sample", "made-digits", "-n", 2, "-o", tmp_path / "f.gif")["frames"] == 64
    assert Image.open(tmp_path / "f.gif").n_frames > 10
    code, out, _ = command("sample", "made-digits", "-n", 1, "--stream")
    assert code == 0
    assert "▀" in out
    command_json("fit", "made", "iris", *QUICK, "--budget", "2steps")
    code, _, err = command("sample", "made-iris", "--stream")
    assert "--stream" in err


def test_debug_shows_the_traceback(command):
    with pytest.raises(ValueError, match="mad"):
        command("fit", "mad", "digits", "--debug")


WRONG = [
    (2, ["fot"], r"'fot'.*\bfit\b"),
    (2, ["fit", "mad", "digits"], r"'mad'.*\bmade\b"),
    (2, ["models", "vea"], r"'vea'.*\bvae\b"),
    (2, ["fit", "made", "digits", "widht=3"], r"'widht'.*\bwidth\b"),
    (2, ["fit", "made", "digits", "width=0"], "width=0"),
    (
        2,
        ["fit", "made", "digits", "train.weight_deca=1"],
        r"'weight_deca'.*\bweight_decay\b",
    ),
    (2, ["fit", "made", "digits", "data.sed=1"], r"'sed'.*\bseed\b"),
    (2, ["fit", "made", "digits", "--budget", "0"], "'0'"),
    (2, ["fit", "made", "digits", "--budget", "0s"], "0s"),
    (2, ["fit", "made", "digits", "--given", "lable"], r"'lable'.*\blabel\b"),
    (2, ["fit", "made"], "MODEL"),
    (2, ["fit", "made", "digits", "--precision", "fp64"], "fp64"),
    (1, ["fit", "made", "nowhere.csv"], r"nowhere\.csv"),
    (1, ["fit", "made", "digit"], r"\bdigits\b"),
    (1, ["score", "none"], "'none'"),
]


@pytest.mark.parametrize(
    ("code", "arguments", "part"),
    WRONG,
    ids=lambda w: " ".join(map(str, w)) if isinstance(w, list) else "",
)
def test_wrong_usage_gets_one_sentence(command, code, arguments, part):
    got, out, err = command(*arguments)
    assert re.search(part, err)
    assert got == code
    assert out == ""
    assert err.startswith("monge: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    _, out, _ = command(*arguments, "--json")
    assert re.search(part, json.loads(out)["error"])


DAMAGED = {
    "empty.csv": ("", "empty.csv"),
    "text.csv": ("a,b\n" + "1.5,2\n" * 30 + "1.5,oops\n" + "2.5,3\n" * 20, "oops"),
    "inf.csv": ("a,b\n" + "1.5,2\n" * 30 + "inf,2\n" * 2, "inf"),
    "ragged.csv": ("a,b\n1,2\n1,2,3\n4,5\n", "ragged.csv"),
    "short.csv": ("a,b\n1,2\n", "short.csv"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_tables_get_one_sentence(command, tmp_path, name):
    text, part = DAMAGED[name]
    (tmp_path / name).write_text(text)
    code, _, err = command("fit", "made", tmp_path / name)
    assert code == 1
    assert part in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_constant_column_is_supported(command_json, tmp_path):
    frame = pd.DataFrame({"a": np.arange(60) / 7, "same": np.full(60, 2.5)})
    frame.to_csv(tmp_path / "c.csv", index=False)
    fields = command_json("data", tmp_path / "c.csv")["fields"]
    assert [field["constant"] for field in fields] == [False, True]
    run = command_json("fit", "made", tmp_path / "c.csv", *QUICK, "--budget", "10steps")
    assert np.isfinite(run["held_out"]["value"])


def test_an_image_that_does_not_decode_is_named(command, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        Image.fromarray(np.full((8, 8), number * 9, np.uint8)).save(folder / f"{number}.png")
    (folder / "bad.png").write_bytes(b"not an image")
    code, _, err = command("data", folder)
    assert code == 1
    assert "bad.png" in err


def test_a_model_without_likelihood_names_models_with_one(command_json, command):
    command_json("fit", "wgan", "iris", "--budget", "3steps")
    code, _, err = command("score", "wgan-iris")
    assert code == 2
    assert "adversarial.wgan" in err
    assert "autoregressive.made" in err
    code, _, err = command("sample", "wgan-iris", "-o", "x.png")
    assert code == 2
    assert ".csv" in err
    code, _, err = command("sample", "wgan-iris", "-o", "x.doc")
    assert code == 2
    assert ".doc" in err
    assert ".npz" in err


def test_a_dry_run_prints_the_cost_and_leaves_nothing(command_json, command, table, tmp_path):
    cost = command_json("fit", "made", table, *QUICK, "--budget", "7steps", "--dry-run")
    assert cost["parameters"] > 100
    assert cost["seconds_per_step"] > 0
    assert cost["steps"] == 7
    assert not (tmp_path / "runs").exists()
    code, out, _ = command("fit", "made", table, *QUICK, "--budget", "7steps", "--dry-run")
    assert code == 0
    assert str(cost["parameters"]) in out
    assert not (tmp_path / "runs").exists()


def test_a_fit_runs_no_trial_steps(monkeypatch, command, table):
    from monge.run import run as runs

    def fail(*args):
        raise AssertionError("a trial step was timed")

    monkeypatch.setattr(runs, "estimate", fail)
    code, _, err = command("fit", "made", table, *QUICK, "--budget", "2steps")
    assert code == 0
    assert re.search(r"\d+ \w+, \S+ kB", err)


def test_a_scoring_option_that_a_model_lacks_is_named_with_those_it_has(command_json, command):
    command_json("fit", "vae", "digits", "--budget", "2steps")
    code, _, err = command("score", "vae-digits", "method=ode")
    assert code == 2
    for part in ("latent.vae", "'method'", "samples", "refine"):
        assert part in err
    code, _, err = command("predict", "vae-digits")
    assert code == 2
    assert "latent.vae" in err
    assert "HasMarginals" not in err


def test_an_internal_error_names_its_class_and_debug(monkeypatch, command):
    from monge import registry

    def fail():
        raise TypeError("odd")

    monkeypatch.setattr(registry, "entries", fail)
    code, _, err = command("models")
    assert code == 1
    assert "(TypeError: odd)" in err
    assert "--debug" in err
