"""A fit that is killed or asked to stop, and resumes."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import monge
from monge.cli.main import attempt
from monge.run.run import start
from monge.train import checkpoint

QUICK = ("width=16", "depth=1", "train.batch_size=50", "train.eval_every=20")


@pytest.fixture
def rows(tmp_path):
    """A file of bits."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((300, 6)) < 0.3)
    return str(tmp_path / "x.npy")


def test_killed_before_the_first_checkpoint_it_starts_again(rows):
    killed = start("made", rows, *QUICK)
    again = monge.load(killed.folder)
    for _ in again.train("5steps"):
        pass
    assert checkpoint.about(again.folder / "last.safetensors")["step"] == 5


@pytest.mark.parametrize(
    ("model", "setting", "reason"),
    [("chow_liu", "data.seed=1", "complete"), ("made", "train.max_steps=2", "complete")],
)
def test_a_fit_that_was_over_keeps_its_reason_when_it_is_resumed(rows, model, setting, reason):
    run = monge.fit(model, rows, setting, budget="9steps")
    for _ in range(2):
        assert checkpoint.about(run.folder / "best.safetensors")["stopped"] == reason
        for _ in monge.load(run.folder).train("9steps"):
            pytest.fail("there was nothing to do")


def test_killed_at_any_moment_it_resumes(tmp_path, rows):
    code = (
        "import sys, monge.run.session; monge.run.session.SAVE_EVERY = 0.05; "
        "from monge.cli.main import main; main(sys.argv[1:])"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            "fit",
            "made",
            rows,
            *QUICK,
            "--budget",
            "100000steps",
            "train.patience=0",
            "--out",
            str(tmp_path / "run"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    while not (tmp_path / "run" / "last.safetensors").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = monge.load(tmp_path / "run")
    reached = checkpoint.about(run.folder / "last.safetensors")["step"]
    for _ in run.train("+10steps"):
        pass
    assert checkpoint.about(run.folder / "last.safetensors")["step"] == reached + 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_and_prints_how_to_resume(
    rows, tmp_path, number, monkeypatch, capsys
):
    monkeypatch.setattr("monge.run.session.SAVE_EVERY", 0.05)

    def ask():
        while not (tmp_path / "run" / "last.safetensors").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    before = signal.signal(number, lambda *_: pytest.fail("no handler took the signal"))
    threading.Thread(target=ask, daemon=True).start()
    try:
        code = attempt(
            [
                "fit",
                "made",
                rows,
                *QUICK,
                "train.patience=0",
                "--budget",
                "100000steps",
                "--out",
                str(tmp_path / "run"),
            ]
        )
    finally:
        signal.signal(number, before)
    err = capsys.readouterr().err
    assert code == 0, err
    assert f"monge fit --resume {tmp_path / 'run'}" in err
    last = checkpoint.about(tmp_path / "run" / "last.safetensors")
    assert 0 < last["step"] < 100_000
    assert checkpoint.about(tmp_path / "run" / "best.safetensors")["stopped"] == "asked"


def test_patience_can_count_the_distance_by_the_critic(tmp_path, rows):
    small = ("generator.width=8", "discriminator.width=8", "train.batch_size=16", "data.rows=200")
    short = (*small, "train.eval_every=5", "train.patience=2", "train.patience_on=critic")

    def trained(name: str, *budgets: str) -> dict:
        run = start("gan", "ring", *short, out=tmp_path / name)
        for budget in budgets:
            for _ in monge.load(run.folder).train(budget):
                pass
        return checkpoint.about(run.folder / "last.safetensors")

    whole = trained("whole", "300steps")
    assert whole["step"] < 300
    assert whole["evals_without_lower_distance"] == 2
    parts = trained("parts", f"{whole['step'] - 5}steps", "300steps")
    for name in ("step", "least_critic_distance", "evals_without_lower_distance"):
        assert parts[name] == whole[name]
    with pytest.raises(monge.UsageError, match="patience_on=critic"):
        monge.fit("made", rows, "train.patience_on=critic", budget="2steps")
