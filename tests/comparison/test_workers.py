"""The processes of a comparison: stopped, terminated, resumed, and distributed by Ray."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import monge
from monge.comparison import ray_backend, worker
from monge.comparison import runner as comparison
from monge.comparison.plan import ComparisonPlan, make_plan
from monge.comparison.runner import RESULTS, Comparison, Outcome
from monge.core.errors import RunError, UsageError

WAITER = """
import pathlib, sys
where, model = pathlib.Path(sys.argv[1]), sys.argv[2]
print('{"seconds_per_step": 1.0}', flush=True)
sys.stdin.read()
(where / model).write_text("saved")
sys.stderr.write("stopped after 3 steps")
sys.exit(1)
"""


def test_a_job_executes_no_file_of_the_current_folder(tmp_path, monkeypatch):
    """Modules on PYTHONPATH are still found."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "queue.py").write_text("open('executed', 'w').close()")
    (tmp_path / "there" / "sitecustomize.py").write_text("open('customised', 'w').close()")
    roots = [str(Path(monge.__file__).parents[1]), str(tmp_path / "there")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(roots))
    subject = Comparison(ComparisonPlan("moons", (), ("made",), "60s"), tmp_path / "none")
    outcome = subject.run_job("made", 0, 1, cwd=str(tmp_path / "here"))
    assert "none/compare.json" in outcome.failure  # it reached its own code
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"queue.py", "customised"}


@pytest.mark.parametrize("way", ["sigterm", "closed"])
def test_stopping_a_comparison_stops_its_jobs(tmp_path, monkeypatch, way):
    (tmp_path / "waiter.py").write_text(WAITER)
    monkeypatch.setattr(comparison, "COMMAND", (sys.executable, str(tmp_path / "waiter.py")))
    subject = Comparison(
        ComparisonPlan("moons", (), ("first", "second", "third"), "60s"), tmp_path
    )
    events, before = subject.run(2), signal.getsignal(signal.SIGTERM)
    assert {next(events).model, next(events).model} == {"first", "second"}
    if way == "closed":
        events.close()
    else:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(KeyboardInterrupt):
            next(events)
    assert not subject.running
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text() == "saved"
    assert not (tmp_path / "third").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stopped_job_is_not_evaluated_and_resumes(tmp_path, monkeypatch):
    """The end of its standard input stops it after a step; it resumes later."""
    subject = Comparison.create(make_plan("moons", ["made"], budget="60steps"), tmp_path / "out")
    reading, writing = os.pipe()
    threading.Thread(target=worker.watch_parent, args=(os.fdopen(reading),), daemon=True).start()
    plain = worker.Run.train
    monkeypatch.setattr(
        worker, "evaluate", lambda run: (run.folder / RESULTS).write_text(str(run.result["step"]))
    )

    def train(self, budget):
        for progress in plain(self, budget):
            if not progress.stopped:
                os.close(writing)
                time.sleep(0.1)
            yield progress

    arguments = (subject.folder, "autoregressive.made", 0, 1, io.StringIO())
    with monkeypatch.context() as patch:
        patch.setattr(worker.Run, "train", train)
        with pytest.raises(RunError, match=r"\d"):
            worker.run_job(*arguments)
    run = subject.folder / "autoregressive.made"
    assert not (run / RESULTS).exists()
    assert monge.load(run).result["step"] < 60
    worker.run_job(*arguments)
    assert (run / RESULTS).read_text() == "60"


SCRIPT = """
import pathlib, sys
from monge.comparison.runner import Comparison
for event in Comparison.read(pathlib.Path(sys.argv[1])).run():
    print(type(event).__name__, flush=True)
"""


@pytest.mark.slow
def test_a_terminated_comparison_resumes(tmp_path):
    """With real processes."""
    subject = Comparison.create(
        ComparisonPlan("moons", (), ("autoregressive.made",), "600steps"), tmp_path
    )
    run = tmp_path / "autoregressive.made"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], text=True, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout.readline() == "JobStarted\n"
        while not (run / "log.jsonl").exists() or not (run / "log.jsonl").read_text():
            time.sleep(0.05)
        parent.terminate()
        assert parent.wait(60) != 0
    assert not (run / RESULTS).exists()
    saved = monge.load(run).result["step"]
    assert 0 < saved < 600
    *_, last = subject.run()
    assert last == Outcome("autoregressive.made", 0, run)
    assert json.loads((run / RESULTS).read_text())["steps"] > saved


class Ray(SimpleNamespace):
    """A cluster of one process: tasks run when their results are requested."""

    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))

    def init(self, **options):
        if options.get("address") == "nowhere":
            raise ConnectionError("no answer")
        self.options, self.first = (
            options,
            os.listdir(),
        )  # Ray puts this folder on the path of workers

    def shutdown(self):
        self.options = None

    def remote(self, function):
        def options(**options):
            return SimpleNamespace(remote=lambda *arguments: (function, *arguments))

        return SimpleNamespace(options=options)

    def wait(self, waiting, num_returns):
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, task):
        function, *arguments = task
        if arguments[1] == "lost":
            raise self.exceptions.RayError("the node died")
        return function(*arguments)

    def cancel(self, task, force):
        pass


def test_jobs_run_as_tasks_of_ray(tmp_path, monkeypatch):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(
        Comparison,
        "run_job",
        lambda self, model, seed, threads, cwd: Outcome(
            model, seed, self.run_folder(model, seed), "it failed" if model == "bad" else None
        ),
    )
    subject = Comparison.create(
        ComparisonPlan("moons", (), ("good", "bad", "lost"), "60s"), tmp_path
    )
    monkeypatch.chdir(tmp_path)
    found = list(ray_backend.run(subject, "auto"))
    assert ray.first == []
    assert Path.cwd() == tmp_path
    assert [outcome.failure for outcome in found[:2]] == [None, "it failed"]
    assert "the node died" in found[2].failure
    assert ray.options is None
    with pytest.raises(RunError, match="nowhere"):
        next(ray_backend.run(subject, "nowhere"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"monge\[ray\]"):
        next(ray_backend.run(subject, "auto"))
