"""A job of the studio is one process: its state follows the files of its folder, and it stops as
`monge` does."""

import json
import signal
import time

import pytest

from monge.studio import job as one_job
from monge.studio import jobs


@pytest.fixture
def job(tmp_path):
    (tmp_path / one_job.RECORD).write_text(json.dumps({"name": "x", "created": time.time()}))
    return jobs.Job(tmp_path)


def test_a_job_that_was_killed_after_it_started_is_lost_at_once(job):
    assert job.state == "queued"
    (job.folder / one_job.STARTED).touch()
    assert job.state == "lost"


def test_monge_runs_in_the_process_of_the_job(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [])
    assert one_job.run_monge(["models", "vea"]) == 2
    assert "vae" in capsys.readouterr().err
    assert one_job.run_monge(["--version"]) == 0


def test_a_job_is_stopped_by_a_signal(monkeypatch):
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(
        one_job.runpy, "run_module", lambda *_, **__: signal.raise_signal(signal.SIGTERM)
    )
    before = signal.getsignal(signal.SIGTERM)
    assert one_job.run_monge([]) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
