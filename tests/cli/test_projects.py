"""Settings in a file, project folders, completion and facts about the machine."""

import json
import os

import pytest
import torch
import yaml

import monge
from monge.cli import _config_file
from monge.cli.main import attempt
from monge.core.errors import UsageError


def test_a_saved_file_makes_the_same_run(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    words = ["made", "iris", "width=16", "train.lr=1e-2", "--budget", "2steps", "--seed", "3"]
    assert attempt(["fit", *words, "--save-config", str(path), "-q"]) == 0
    found = yaml.safe_load(path.read_text())
    assert found["model"] == "made"
    assert found["settings"] == {"width": 16, "train.lr": "1e-2"}
    assert set(found) == {"model", "data", "budget", "seed", "settings"}
    assert attempt(["fit", "--config", str(path), "-q"]) == 0
    first, again = (monge.load(name) for name in ("made-iris", "made-iris-2"))
    capsys.readouterr()
    assert again.metadata["seed"] == 3
    for name, weight in first.model.state_dict().items():
        assert (weight == again.model.state_dict()[name]).all(), name


def test_what_is_typed_comes_before_the_file(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: made\ndata: wine\nbudget: 9h\nsettings:\n  net: {width: 8}\n  depth: 1\n"
    )
    found = _config_file.read(path)
    assert found["settings"] == ["net.width=8", "depth=1"]
    model, data, words = _config_file.merge(found, ["depth=2", "nade", "iris"])
    assert (model, data) == ("nade", "iris")
    assert words == ("net.width=8", "depth=2")
    assert _config_file.merge(found, ["depth=2"])[:2] == ("made", "wine")
    path.write_text("model: gaussian\ndata: iris\nbudget: 9h\nseed: 4\nbag: true\nensemble: 2\n")
    saved = tmp_path / "again.yaml"
    words = [
        "--config",
        str(path),
        "--seed",
        "5",
        "--budget",
        "2steps",
        "--save-config",
        str(saved),
    ]
    assert attempt(["fit", *words, "--dry-run", "-q"]) == 0
    capsys.readouterr()
    expected = {"model": "gaussian", "data": "iris", "budget": "2steps", "seed": 5}
    assert yaml.safe_load(saved.read_text()) == expected | {"bag": True, "ensemble": 2}


def test_a_file_sets_the_processes_of_a_fit(tmp_path, monkeypatch):
    path, started = tmp_path / "run.yaml", []
    path.write_text("model: made\ndata: iris\nworkers: 2\nshard: true\nsettings: {width: 8}\n")

    def launch(words, count, threads):
        started.append((words, count))
        return 0

    monkeypatch.setattr("monge.train.distributed.launch", launch)
    assert attempt(["fit", "--config", str(path)]) == 0
    [(words, count)] = started
    assert count == 2
    assert {"made", "iris", "width=8", "--shard"} <= set(words)
    assert not {"--config", "--workers"} & set(words)


def test_text_of_a_file_is_what_was_typed(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: made\ndata: no\nsettings:\n  data.header: no\n  data.drop: [a, b]\n")
    assert _config_file.read(path)["settings"] == ["data.header=no", "data.drop=a,b"]
    _config_file.write(
        path, "made", "a: b.csv", ["data.header=no", "x="], {"bag": True, "given": ("a",)}
    )
    found = _config_file.read(path)
    assert found["data"] == "a: b.csv"
    assert found["settings"] == ["data.header=no", "x="]
    assert (found["bag"], found["given"]) == ("true", ["a"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("modle: made", "model"),
        ("width: 3", "settings"),
        ("- made", "made"),
        ("model: [a, b]", "2"),
        ("model: {a: b}", "model"),
        ("settings: 3", "3"),
        ("a: b: c", "line 1"),
        ("settings: {a: [[1]]}", "a"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(text, value, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=value):
        _config_file.read(path)
    assert attempt(["fit", "--config", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_and_a_run_to_resume_exclude_each_other(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text("model: made\ndata: iris\n")
    assert attempt(["fit", "--config", str(path), "--resume", "x"]) == 2
    assert "--config" in capsys.readouterr().err


def test_a_project_folder_fits_and_is_not_replaced(tmp_path, monkeypatch, capsys):
    assert attempt(["init", str(tmp_path / "new"), "--data", "a: b.csv"]) == 0
    assert _config_file.read(tmp_path / "new" / "run.yaml")["data"] == "a: b.csv"
    compile((tmp_path / "new" / "fit.py").read_text(), "fit.py", "exec")
    assert attempt(["init", str(tmp_path / "new")]) == 2
    assert str(tmp_path / "new") in capsys.readouterr().err
    (tmp_path / "my.csv").write_text("x\n1\n2\n3\n")
    monkeypatch.chdir(tmp_path)
    assert attempt(["init", "other", "--data", "my.csv"]) == 0  # as seen from the folder
    assert _config_file.read(tmp_path / "other" / "run.yaml")["data"] == "../my.csv"
    assert attempt(["init", "project"]) == 0
    monkeypatch.chdir(tmp_path / "project")
    assert attempt(["fit", "--config", "run.yaml", "--budget", "2steps", "-q"]) == 0
    assert monge.load("made-iris").train_config.patience == 20


def test_shells_complete_models_and_runs(tmp_path, monkeypatch, capsys):
    for shell in ("zsh", "fish"):
        assert attempt(["completion", shell]) == 0
        assert "_MONGE_COMPLETE" in capsys.readouterr().out
    assert attempt(["completion", "sh"]) == 2
    monge.fit("gaussian", "iris", name="mine", progress=False)
    capsys.readouterr()
    monkeypatch.setenv("_MONGE_COMPLETE", "zsh_complete")

    def completed(*words: str) -> set[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(["monge", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            attempt([])
        return set(capsys.readouterr().out.split())

    assert {"made", "maf", "mae"} <= completed("fit", "ma")
    assert "mine" in completed("sample", "mi")
    assert "mine" in completed("fit", "--resume", "mi")
    assert "--budget" in completed("fit", "--bud")


def test_info_names_what_is_there_and_what_to_do(capsys, monkeypatch):
    monkeypatch.setenv("MONGE_DATA", f"no-such-folder{os.pathsep}")
    assert attempt(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["monge"] == monge.__version__
    assert found["devices"][0] == "cpu"
    assert torch.backends.cpu.get_cpu_capability() in found["processor"]
    assert found["disk"] > 0
    assert found["memory"] > 0
    assert any("no-such-folder" in remark for remark in found["remarks"])
    lacking = [name for name, missing in found["extras"].items() if missing]
    assert all(any(f"monge[{name}]" in each for each in found["remarks"]) for name in lacking)
    assert attempt(["info"]) == 0
    assert monge.__version__ in capsys.readouterr().out
