"""Progress reaches trackers by their own clients, and a fit does not depend on them."""

import sys
import types

import pytest

import monge
from monge.cli.main import attempt


class Client(types.ModuleType):
    """Records what a client of MLflow or Weights & Biases is told."""

    def __init__(self, name):
        super().__init__(name)
        self.numbers, self.params, self.ended = [], {}, 0

    def start_run(self, run_name):
        self.run_name = run_name
        return self

    def init(self, name, project, config):
        self.run_name, self.project, self.params = name, project, config
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.ended += 1

    finish = __exit__

    def log_params(self, params):
        self.params = params

    def log_metrics(self, numbers, step):
        self.numbers.append((step, numbers))

    def log(self, numbers, step):
        self.numbers.append((step, numbers))


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_client_is_told_every_report(name, monkeypatch, tmp_path):
    client = Client(name)
    monkeypatch.setitem(sys.modules, name, client)
    run = monge.fit("made", "iris", budget="6steps", width=8, out=tmp_path / "mine", track=name)
    assert client.run_name == "mine"
    assert client.ended == 1
    assert str(client.params["width"]) == "8"
    assert str(client.params["train.lr"]) == str(run.train_config.lr)
    steps = [step for step, _ in client.numbers]
    assert steps == sorted(steps)
    assert steps[-1] == run.result["step"]
    assert any(key.startswith("loss/") for _, numbers in client.numbers for key in numbers)
    assert client.numbers[-1][1] == {"best/exact": run.result["held_out"]["value"]}
    assert all(
        isinstance(value, float) for _, numbers in client.numbers for value in numbers.values()
    )


def test_a_fit_that_fails_ends_the_tracked_run(monkeypatch, tmp_path):
    client = Client("wandb")
    monkeypatch.setitem(sys.modules, "wandb", client)
    with pytest.raises(monge.DivergenceError):
        monge.fit(
            "made", "iris", "train.lr=1e30", budget="60steps", out=tmp_path / "r", track="wandb"
        )
    assert client.ended == 1


def test_a_client_that_cannot_start_ends_the_fit_in_a_sentence(monkeypatch, tmp_path):
    client = Client("mlflow")
    client.start_run = lambda run_name: 1 / 0
    monkeypatch.setitem(sys.modules, "mlflow", client)
    with pytest.raises(monge.RunError):
        monge.fit("made", "iris", budget="2steps", width=8, out=tmp_path / "r", track="mlflow")
    assert attempt(["fit", "--resume", str(tmp_path / "r"), "--budget", "2steps", "-q"]) == 0
    assert monge.load(tmp_path / "r").result["step"] == 2


def test_a_tracker_that_is_not_there_is_refused_before_the_fit(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    words = ["fit", "gaussian", "iris", "--track", "tensorboard", "--out", str(tmp_path / "run")]
    assert attempt(words) == 2
    assert "monge[track]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(monge.UsageError, match="tensorboard"):
        monge.fit("gaussian", "iris", track="tensorbord")


def test_event_files_are_in_the_run(tmp_path):
    pytest.importorskip("tensorboardX")
    run = monge.fit(
        "made", "iris", budget="4steps", width=8, out=tmp_path / "r", track="tensorboard"
    )
    (file,) = (run.folder / "tensorboard").iterdir()
    assert b"loss/" in file.read_bytes()
    assert monge.load(run.folder).sample(2) is not None
