"""`monge predict` and related commands: names in, names out, with and without the target."""

import json

import numpy as np
import pandas as pd
import pytest

import monge
from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.run import run


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A table, the same without its targets, and a run for each kind of target."""
    folder = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(0)
    age, job = rng.normal(40, 10, 200).round(2), rng.choice(["cook", "clerk", "smith"], 200)
    pay = (age + 10 * (job == "smith") + rng.normal(0, 1, 200)).round(2)
    mood = np.where(age > 45, "calm", np.where(age > 35, "brisk", "wild"))
    frame = pd.DataFrame({"age": age, "job": job, "pay": pay, "mood": mood})
    frame.to_csv(folder / "people.csv", index=False)
    frame[["age", "job"]].head(9).to_csv(folder / "new.csv", index=False)
    small = (
        "spread=input",  # a normal, whose mode is its mean
        "net.width=16",
        "train.lr=1e-2",
        "members=1",  # the mode of several is not their mean
        "train.warmup=5",
        "train.ema_decay=0.9",
    )
    for name, target in (("mood", "mood"), ("pay", "pay"), ("both", "pay,mood")):
        run.fit(
            "predict.mlp",
            folder / "people.csv",
            *small,
            target=target,
            budget="150steps",
            given=["age", "job"],
            out=folder / name,
        )
    return folder


def command(capsys, *arguments):
    code = attempt([str(argument) for argument in arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_classes_come_as_names_with_probabilities(people, tmp_path, capsys):
    out = tmp_path / "deep" / "moods.csv"
    code, text, _ = command(capsys, "predict", people / "mood", people / "new.csv", "-o", out)
    assert (code, text.strip()) == (0, str(out))
    table = pd.read_csv(out)
    each = [f"mood_p_{name}" for name in ("brisk", "calm", "wild")]
    assert list(table) == ["row", "mood", "mood_probability", *each]
    np.testing.assert_allclose(table[each].sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(table[each].max(axis=1), table["mood_probability"])
    assert list(table["mood"]) == [
        name.removeprefix("mood_p_") for name in table[each].idxmax(axis=1)
    ]
    age = pd.read_csv(people / "new.csv")["age"]
    truth = np.where(age > 45, "calm", np.where(age > 35, "brisk", "wild"))
    assert (table["mood"] == truth).mean() > 0.6


def test_numbers_come_with_their_interval(people, capsys):
    code, text, _ = command(
        capsys, "predict", people / "pay", people / "new.csv", "--json", "--interval", "0.5"
    )
    printed = json.loads(text)
    assert code == 0
    assert printed["columns"] == ["row", "pay", "pay_low", "pay_high"]
    half, most = (
        run.load(people / "pay").predict(people / "new.csv", interval=level)
        for level in (0.5, 0.99)
    )
    assert (half["pay_low"] < half["pay"]).all()
    assert (half["pay"] < half["pay_high"]).all()
    assert (most["pay_high"] - most["pay_low"] > half["pay_high"] - half["pay_low"]).all()
    np.testing.assert_allclose(half["pay"], [row["pay"] for row in printed["predictions"]])
    own = run.load(people / "pay").predict()
    assert len(own) == 20  # the test rows


def test_a_sample_is_not_the_mean(people):
    fitted = run.load(people / "both")
    first, again, other = (
        fitted.predict(people / "new.csv", by="sample", seed=seed) for seed in (0, 0, 1)
    )
    assert list(first) == ["row", "pay", "mood"]
    pd.testing.assert_frame_equal(first, again)
    assert not first["pay"].equals(other["pay"])
    assert set(first["mood"]) <= {"brisk", "calm", "wild"}
    mode = fitted.predict(people / "new.csv", by="mode")
    mean = fitted.predict(people / "new.csv")["pay"]
    np.testing.assert_allclose(mode["pay"], mean, atol=0.005)  # a mode has the data's decimals
    several = fitted.predict(people / "new.csv", "passes=5")
    assert not np.allclose(several["pay"], mode["pay"])


def test_members_of_an_ensemble_vote(people, tmp_path, capsys):
    folder, few = (
        tmp_path / "vote",
        ("net.width=8", "train.lr=1e-2", "train.warmup=1", "train.ema_decay=0.5"),
    )
    voters = run.fit(
        "predict.mlp",
        people / "people.csv",
        *few,
        target="mood",
        given=["age", "job"],
        ensemble=3,
        budget="40steps",
        out=folder,
    )
    code, text, _ = command(
        capsys, "predict", folder, people / "people.csv", "--by", "vote", "--json"
    )
    table = pd.DataFrame(json.loads(text)["predictions"])
    each = [name for name in table if name.startswith("mood_p_")]
    rows = voters.split(people / "people.csv", "all", every=True).whole()
    modes = np.stack([member.mode(rows.given) for member in voters.model.each])
    assert code == 0
    assert (modes != modes[0]).any(), "members that never disagree test nothing"
    counts = np.stack([(modes == code).sum(0) for code in range(3)], 1)
    np.testing.assert_allclose(table[each], counts / 3)
    clear = counts.max(1) > 1
    best = [name.removeprefix("mood_p_") for name in table[each].idxmax(axis=1)]
    assert (table["mood"] == best)[clear].all()
    for other in ("mood", "pay"):
        with pytest.raises(UsageError, match="--ensemble 5"):
            run.load(people / other).predict(people / "new.csv", by="vote")


def test_samples_for_the_rows_of_a_file(people, capsys):
    code, text, _ = command(capsys, "sample", people / "both", "--given", people / "new.csv")
    assert code == 0
    assert len(text.splitlines()) == 1 + 9
    code, text, _ = command(
        capsys, "sample", people / "both", "--given", people / "new.csv", "-n", 3
    )
    assert len(text.splitlines()) == 1 + 27


def test_evaluation_measures_predictions_and_plots_their_reliability(people, capsys):
    code, text, _ = command(capsys, "evaluate", people / "both", "--json")
    printed = json.loads(text)
    assert code == 0
    assert {
        "pay.rmse",
        "pay.coverage_0.9",
        "mood.accuracy",
        "mood.nll",
        "mood.calibration_error",
    } <= set(printed["metrics"])
    assert "energy_distance" not in printed["metrics"]
    assert (people / "both" / "figures" / "reliability.png").stat().st_size > 1000
    code, _, err = command(capsys, "evaluate", people / "mood", people / "new.csv")
    assert code == 1
    assert "mood" in err


def test_invalid_predictions_are_refused(people, tmp_path, capsys):
    strange = pd.read_csv(people / "new.csv")
    strange.loc[3, "job"] = "pilot"
    strange.to_csv(tmp_path / "strange.csv", index=False)
    code, _, err = command(capsys, "predict", people / "pay", tmp_path / "strange.csv")
    assert code == 0
    assert "'pilot'" in err  # a note: it is read as an empty cell
    strange.assign(mood=["calm"] * 8 + ["glum"]).to_csv(tmp_path / "glum.csv", index=False)
    scored = run.load(people / "mood").log_likelihood(tmp_path / "glum.csv")
    assert list(scored.numbers) == list(range(1, 9))  # a row whose target is unknown is left out
    with pytest.raises(UsageError, match=r"1\.5"):
        run.load(people / "pay").predict(people / "new.csv", interval=1.5)
    code, _, err = command(capsys, "predict", people / "pay", people / "new.csv", "-o", "x.png")
    assert code == 2
    assert ".png" in err
    pd.read_csv(people / "new.csv")[["age"]].to_csv(tmp_path / "part.csv", index=False)
    with pytest.raises(DataError, match="job"):
        run.load(people / "pay").predict(tmp_path / "part.csv")
    fitted = monge.fit("made", np.random.default_rng(0).normal(size=(60, 2)), budget="2steps")
    with pytest.raises(UsageError, match=r"made.*predict\.mlp"):
        fitted.predict()
