"""A run folder survives deletion by mistake, links, files written over it and damage."""

import json
import math
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge.cli import main
from monge.core.errors import RunError, UsageError
from monge.report.run import write_report
from monge.run import storage
from monge.run.saved import ComputeConfig
from monge.run.storage import locked
from monge.train import checkpoint

ROWS = np.random.default_rng(0).normal(size=(60, 2)).round(4)
QUICK = ("width=8", "depth=1")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fitted run and its data, to be copied."""
    folder = tmp_path_factory.mktemp("fitted")
    pd.DataFrame(ROWS, columns=["a", "b"]).to_csv(folder / "rows.csv", index=False)
    monge.fit(
        "made",
        str(folder / "rows.csv"),
        *QUICK,
        "train.ema_decay=0.9",
        "train.eval_every=4",
        budget="5steps",
        out=folder / "run",
    )
    return folder


@pytest.fixture
def run(fitted):
    """A copy of the run among the runs."""
    storage.home().mkdir(parents=True)
    return Path(shutil.copytree(fitted / "run", storage.home() / "made"))


@pytest.fixture
def command(capsys):
    """Run a command line; its exit code, stdout and stderr."""

    def run(*arguments):
        code = main.attempt([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_a_deleted_run_can_be_restored_from_the_trash(run, command):
    before = content(run)
    code, out, err = command("runs", "--delete", "made", "--yes")
    assert code == 0
    assert not run.exists()
    (trashed,) = (run.parent / ".trash").iterdir()
    assert trashed.name.startswith("made-20")
    assert f"mv {trashed} {run}" in err
    assert f"rm -r {trashed.parent}" in err
    assert "made" not in out.replace("makes", "")
    os.rename(trashed, run)
    assert content(run) == before
    assert json.loads(command("runs", "--json")[1])[0]["run"] == str(run)


def test_two_deleted_runs_of_one_name_both_stay_in_the_trash(run, command):
    for _ in range(2):
        fresh = shutil.copytree(run, run.parent / "other")
        storage.discard(Path(fresh))
    assert len(list((run.parent / ".trash").iterdir())) == 2


@pytest.mark.parametrize(("answer", "left"), [("n\n", True), ("y\n", False)])
def test_deleting_asks_in_a_terminal(run, command, monkeypatch, answer, left):
    asked = []

    def confirm(text, **_):
        asked.append(text)
        return answer == "y\n"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("click.confirm", confirm)
    code, _, _ = command("runs", "--delete", "made")
    assert code == int(left)
    assert str(run) in asked[0]
    assert run.exists() == left


def test_deleting_without_a_terminal_needs_yes(run, command):
    code, _, err = command("runs", "--delete", "made")
    assert code == 2
    assert "--yes" in err
    assert run.exists()


@pytest.mark.parametrize(
    "about",
    [
        '{"name": "another program"}',
        '{"format": 99}',
        "[]",
        "{",
        json.dumps({"format": storage.FORMAT}),
    ],
)
def test_a_folder_that_is_no_run_is_not_deleted(run, command, tmp_path, about):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "run.json").write_text(about)
    (tmp_path / "own" / "thesis.tex").write_text("years of work")
    code, _, err = command("runs", "--delete", "made", "--delete", tmp_path / "own", "--yes")
    assert code == 1
    assert "own" in err
    assert "internal error" not in err
    assert (tmp_path / "own" / "thesis.tex").exists()
    assert run.exists()  # nothing is deleted if one is refused


def test_a_run_in_training_is_not_deleted(run, command):
    with locked(run):
        code, _, err = command("runs", "--delete", "made", "--yes")
    assert code == 1
    assert str(run) in err
    assert run.exists()
    assert command("runs", "--delete", "made", "--yes")[0] == 0


def test_a_link_to_a_run_and_a_run_in_the_trash_are_not_deleted(run, command):
    (run.parent / "link").symlink_to("made")
    assert command("runs", "--delete", "link", "--yes")[0] == 1
    (run.parent / "link").unlink()
    trashed = storage.discard(run)
    code, _, err = command("runs", "--delete", trashed, "--yes")
    assert code == 1
    assert "rm -r" in err
    assert trashed.exists()


def edit(folder, change):
    """Change the content of run.json in place."""
    content = json.loads((folder / "run.json").read_text())
    change(content)
    (folder / "run.json").write_text(json.dumps(content))


DAMAGE = {
    "array": lambda folder: (folder / "run.json").write_text("[]"),
    "torn": lambda folder: (folder / "run.json").write_text('{"form'),
    "bytes": lambda folder: (folder / "run.json").write_bytes(b"\xff\xfe"),
    "lacking": lambda folder: (folder / "run.json").write_text(
        json.dumps({"format": storage.FORMAT})
    ),
    "lost": lambda folder: (folder / "run.json").unlink(),
    "folder": lambda folder: ((folder / "run.json").unlink(), (folder / "run.json").mkdir()),
    "data": lambda folder: edit(folder, lambda found: found.update(data=None)),
    "path": lambda folder: edit(folder, lambda found: found["data"].update(path=3.5)),
    "python": lambda folder: edit(folder, lambda found: found.pop("python")),
    "best": lambda folder: (folder / "best.safetensors").write_bytes(b"none"),
    "counters": lambda folder: checkpoint.save(folder / "best.safetensors", {}, {}),
    "link": lambda folder: (
        (folder / "card.md").rename(folder.parent / "card")
        and (folder / "card.md").symlink_to("../card")
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_is_listed_and_hides_no_other(run, command, kind):
    bad = Path(shutil.copytree(run, run.parent / "bad"))
    DAMAGE[kind](bad)
    code, out, err = command("runs", "--json")
    assert (code, err) == (0, "")
    rows = {row["run"]: row for row in json.loads(out)}
    assert set(rows) == {str(run), str(bad)}
    assert rows[str(run)]["error"] is None
    assert rows[str(run)]["step"] == 5
    assert rows[str(bad)]["error"]
    code, out, _ = command("runs")
    assert code == 0
    assert str(run) in out
    assert str(bad) in out


@pytest.mark.parametrize(
    "change",
    [{"lower": math.nan}, {"lower": 3.0, "upper": 2.0}, {"kind": "label", "size": 3, "low": [-1]}],
)
def test_a_space_that_cannot_be_is_refused_when_the_run_is_loaded(run, command, change):
    edit(run, lambda found: found["space"].update(change))
    code, _, err = command("sample", run)
    assert code == 1
    assert "run.json" in err


def test_a_run_that_is_not_fitted_is_not_damaged(run, command):
    (run / "best.safetensors").unlink()
    (row,) = json.loads(command("runs", "--json")[1])
    assert row["error"] is None
    assert row["kind"] == "not fitted"


LINKS = ["pictures/samples.png", "figures", "log.jsonl", "best.safetensors", "report.html"]


@pytest.mark.parametrize("name", LINKS)
def test_a_run_with_a_link_out_of_it_is_refused(run, fitted, tmp_path, command, name):
    """Nothing behind the link is shown, written or copied."""
    outside = tmp_path / "outside"
    if (run / name).exists():
        shutil.move(run / name, outside)
    else:
        (run / name).parent.mkdir(exist_ok=True)
        outside.write_bytes(b"secret")
    before = content(tmp_path)
    (run / name).symlink_to(outside)
    data = fitted / "rows.csv"
    for arguments in (
        ["sample", run, "-o", tmp_path / "x.csv"],
        ["report", run],
        ["fit", "--resume", run, "--budget", "+1steps"],
        ["evaluate", run],
        [
            "fit",
            "predict.mlp",
            data,
            "--target",
            "b",
            f"start={run}",
            "--out",
            tmp_path / "second",
        ],
    ):
        code, _, err = command(*arguments)
        assert code == 1, arguments
        assert str(run / name) in err
    (run / name).unlink()
    assert content(tmp_path) == before


def test_a_link_within_a_run_is_followed(run):
    (run / "best.safetensors").rename(run / "weights")
    (run / "best.safetensors").symlink_to("weights")
    assert monge.load(run).result["step"] == 5


def test_a_comparison_with_a_link_out_of_it_is_refused(tmp_path, command):
    (tmp_path / "compare").mkdir()
    (tmp_path / "secret").write_text("")
    (tmp_path / "compare" / "compare.json").write_text("{}")
    (tmp_path / "compare" / "data.csv").symlink_to("../secret")
    code, _, err = command("report", tmp_path / "compare")
    assert code == 1
    assert "data.csv" in err


OWN = [
    "best.safetensors",
    "last.safetensors",
    "run.json",
    "fields.json",
    "log.jsonl",
    "card.md",
    "RUN.JSON",
    "parts/a.csv",
    "other.safetensors",
]


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_written_over_a_file_of_a_run(run, tmp_path, command, name):
    before = content(run)
    (tmp_path / "alias").symlink_to(run)
    for out in (run / name, run / "figures" / ".." / name, tmp_path / "alias" / name):
        for arguments in (["score", run, "-o", out], ["report", run, "-o", out]):
            code, _, err = command(*arguments)
            assert code == 2
            assert str(out) in err
    with pytest.raises(UsageError, match=re.escape(str(run / name))):
        write_report(str(run), run / name)
    assert content(run) == before


def test_nothing_is_exported_over_a_part_of_a_run(run):
    with pytest.raises(UsageError, match=r"parts/a\.pt2"):
        monge.load(run).export(run / "parts" / "a.pt2")


def test_other_files_in_a_run_may_be_written_again(run, command):
    for _ in range(2):
        assert command("score", run, "-o", run / "scores.csv")[0] == 0
        assert command("report", run, "-o", run / "report.html")[0] == 0
        assert command("sample", run, "-o", run / "figures" / "mine.png")[0] == 0
    assert "rank" in (run / "scores.csv").read_text()


OUTPUTS = [
    (["score", "RUN", "-o"], "x.csv"),
    (["sample", "RUN", "-o"], "x.csv"),
    (["sample", "RUN", "-o"], "x.npz"),
    (["sample", "RUN", "-o"], "x.png"),
    (["report", "RUN", "-o"], "x.html"),
    (["distance", "DATA", "DATA", "--rows", "20", "--plan"], "x.npz"),
    (["distance", "DATA", "DATA", "--rows", "20", "--plot"], "x.png"),
    (["explain", "attention", "a cat", "-o"], "x.png"),
]


@pytest.mark.parametrize(
    ("arguments", "name"), OUTPUTS, ids=lambda w: str(w[0]) if isinstance(w, list) else w
)
def test_an_output_is_replaced_whole_or_not_at_all(
    run, fitted, tmp_path, command, monkeypatch, arguments, name
):
    """A full disk leaves the previous file."""
    named = {"RUN": run, "DATA": fitted / "rows.csv"}
    arguments = [named.get(argument, argument) for argument in arguments]
    out = tmp_path / name
    out.write_text("the previous file")

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, _, err = command(*arguments, out)
        assert code == 1
        assert str(out) in err
        assert "No space left" in err
    assert out.read_text() == "the previous file"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert command(*arguments, out)[0] == 0
    assert out.read_bytes() != b"the previous file"


def test_only_one_function_opens_outputs():
    """Whatever writes a file does so inside `with replacing(...)`."""
    writers = re.compile(r"\.(savefig|to_csv|to_parquet|savez|savez_compressed|save)\((\w+)")
    for path in Path(monge.__file__).parent.rglob("*.py"):
        names = {name for _, name in writers.findall(path.read_text())}
        assert not names & {"path", "out", "paths"}, path


def lose(run, lost):
    """Save the last checkpoint without the tensors whose names hold `lost`."""
    path = run / "last.safetensors"
    tensors, counters = checkpoint.load(path)
    left = {name: tensor for name, tensor in tensors.items() if lost not in name}
    assert 0 < len(left) < len(tensors)
    checkpoint.save(path, left, counters)


@pytest.mark.parametrize("lost", ["ema/", "exp_avg_sq", "optimiser/", "best/"])
def test_a_checkpoint_that_has_lost_tensors_is_not_resumed(run, command, lost):
    lose(run, lost)
    code, _, err = command("fit", "--resume", run, "--budget", "+1steps")
    assert code == 1
    assert "internal error" not in err
    assert "last.safetensors" in err


def test_one_lost_optimiser_moment_is_noticed(run):
    tensors, _ = checkpoint.load(run / "last.safetensors")
    name = next(name for name in tensors if name.endswith("/exp_avg"))
    lose(run, name)
    with pytest.raises(RunError, match="optimiser"):
        list(monge.load(run).train("+1steps"))


def test_settings_of_another_optimiser_are_not_resumed(run):
    about = json.loads((run / "run.json").read_text())
    about["train"]["optimiser"] = "adagrad"
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(RunError, match="optimiser"):
        list(monge.load(run).train("+1steps"))


@pytest.mark.usefixtures("bf16")
def test_a_run_resumes_in_its_own_precision(fitted, tmp_path, command):
    data = str(fitted / "rows.csv")
    half = ComputeConfig(precision="bf16")
    whole = monge.fit("made", data, *QUICK, budget="6steps", compute=half, out=tmp_path / "whole")
    assert whole.metadata["precision"] == "bf16"
    single = monge.fit("made", data, *QUICK, budget="6steps", out=tmp_path / "single")
    assert single.metadata["precision"] == "fp32"
    assert not same(whole, single)  # otherwise nothing is tested
    parts = monge.fit("made", data, *QUICK, budget="3steps", compute=half, out=tmp_path / "parts")
    code, _, err = command(
        "fit", "--resume", parts.folder, "--budget", "+3steps", "--precision", "fp32"
    )
    assert code == 2
    assert "bf16" in err
    assert command("fit", "--resume", parts.folder, "--budget", "+3steps")[0] == 0
    assert same(whole, parts)
    assert (
        command("fit", "--resume", parts.folder, "--budget", "+1steps", "--precision", "bf16")[0]
        == 0
    )
    with pytest.raises(UsageError, match="fp32"):
        list(monge.load(parts.folder, replace(half, precision="fp32")).train("+1steps"))


def same(one, other) -> bool:
    """Whether two runs ended with the same weights."""
    a, b = (checkpoint.load(run.folder / "last.safetensors")[0] for run in (one, other))
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def moved_run(tmp_path, monkeypatch):
    """A run on a file in a folder that is then the current one no longer."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=60), "b": rng.choice(["x", "y"], 60)})
    table.to_csv("rows.csv", index=False)
    run = monge.fit("chow_liu", "rows.csv", out=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return run.folder, folder / "rows.csv"


def test_data_are_found_from_any_folder_and_by_their_fingerprint(moved_run, tmp_path, monkeypatch):
    folder, path = moved_run
    assert len(monge.load(folder).log_likelihood().value) == 6
    path.rename(path.with_name("other.csv"))  # beside the old place
    assert len(monge.load(folder).log_likelihood().value) == 6
    (tmp_path / "far").mkdir()
    path.with_name("other.csv").rename(tmp_path / "far" / "rows.csv")
    with pytest.raises(RunError, match=r"work.rows\.csv"):
        monge.load(folder).log_likelihood()
    monkeypatch.setenv("MONGE_DATA", str(tmp_path / "far"))
    assert len(monge.load(folder).log_likelihood().value) == 6
    (tmp_path / "far" / "rows.csv").write_text("a,b\n1.5,x\n2.5,y\n3.5,x\n4.5,y\n")
    with pytest.raises(RunError, match="changed"):
        monge.load(folder).log_likelihood()


def test_compact_runs_are_small_and_are_not_resumed(command, tmp_path, monkeypatch):
    monkeypatch.setenv("MONGE_RUNS", str(tmp_path / "runs"))
    for name in ("vae", "vae-2", "other"):
        monge.fit("vae", "iris", "latent=2", budget="2steps", out=tmp_path / "runs" / name)
    assert command("runs", "--compact")[0] == 2  # asks for confirmation
    before = monge.load("vae").sample(3, seed=0)
    assert command("runs", "vae-*", "--compact", "--yes")[0] == 0  # some
    left = [(tmp_path / "runs" / name / "last.safetensors").exists() for name in ("vae", "vae-2")]
    assert left == [True, False]
    monge.load("vae").evaluate()
    assert command("runs", "--compact", "--yes")[0] == 0
    run = monge.load("vae")
    files = {path.name for path in run.folder.rglob("*.safetensors")}
    assert files == {"best.safetensors"}
    assert not (run.folder / "last.safetensors").exists()
    assert np.array_equal(run.sample(3, seed=0), before)
    with pytest.raises(RunError, match="compact"):
        list(run.train("+1steps"))
    rows = json.loads(command("runs", "--json")[1])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", row["date"]) for row in rows)
    assert command("runs", "--delete", "none*", "--yes")[0] == 1
    assert command("runs", "none*")[0] == 1
    assert len(json.loads(command("runs", "vae*", "vae", "--json")[1])) == 2
    rows = json.loads(command("runs", "--delete", "vae*", "--yes", "--json")[1])
    assert [row["run"] for row in rows] == [str(tmp_path / "runs" / "other")]
