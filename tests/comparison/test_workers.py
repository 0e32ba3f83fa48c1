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
from functools import partial
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
    failure = subject.processes.run(subject.arguments("made", 0, 1, 1), cwd=tmp_path / "here")
    assert "none/compare.json" in failure  # it reached its own code
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
    assert not subject.processes.running
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text() == "saved"
    assert not (tmp_path / "third").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stopped_job_is_not_evaluated_and_resumes(tmp_path, monkeypatch):
    """The end of its standard input stops it after a step; it resumes later."""
    subject = Comparison.create(make_plan("moons", ["made"], budget="400steps"), tmp_path / "out")
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
    assert monge.load(run).result["step"] < 400
    worker.run_job(*arguments)
    assert (run / RESULTS).read_text() == "400"


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
            self.asked = options
            return SimpleNamespace(remote=lambda *arguments: partial(function, *arguments))

        return SimpleNamespace(options=options)

    def cluster_resources(self):
        return {"CPU": 4.0, "GPU": float(self.gpus)}

    def wait(self, waiting, num_returns, timeout):
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, task):
        if "lost" in task.args[0]:
            raise self.exceptions.RayError("the node died")
        return task()

    def cancel(self, task, force):
        pass


def test_jobs_run_as_tasks_of_ray(tmp_path, monkeypatch):
    ray = Ray(gpus=0)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("MONGE_SOMETHING", "known")
    seen = []

    def run(self, arguments, cwd, environment):
        seen.append((cwd, environment["MONGE_SOMETHING"]))
        return "it failed" if "bad" in arguments else None

    monkeypatch.setattr(comparison.FitProcesses, "run", run)
    subject = Comparison.create(
        ComparisonPlan("moons", (), ("good", "bad", "lost", "done"), "60s"), tmp_path
    )
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / RESULTS).write_text("")
    monkeypatch.chdir(tmp_path)
    found = {outcome.model: outcome.failure for outcome in ray_backend.run(subject, "auto", 2)}
    assert ray.first == []
    assert Path.cwd() == tmp_path
    assert found["good"] is found["done"] is None
    assert found["bad"] == "it failed"
    assert "the node died" in found["lost"]
    assert seen == [(str(tmp_path), "known")] * 2
    assert ray.options is None
    assert (ray.asked["num_cpus"], ray.asked["num_gpus"]) == (2, 0)
    with pytest.raises(RunError, match="nowhere"):
        next(ray_backend.run(subject, "nowhere"))
    with pytest.raises(UsageError, match=r"\b6\b.*\b4\b"):
        next(ray_backend.run(subject, "auto", 3, 2))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"monge\[ray\]"):
        next(ray_backend.run(subject, "auto"))


def test_each_process_of_a_fit_asks_for_a_gpu_where_there_are_any(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", Ray(gpus=3))
    with ray_backend.Cluster("auto", 1, 2) as cluster:
        assert (cluster.cpus, cluster.gpus) == (2, 2)
        assert cluster.slots == 1
    with pytest.raises(UsageError, match=r"\b4 GPUs"), ray_backend.Cluster("auto", 1, 4):
        pass


def test_a_task_stops_its_fit_when_asked_and_waits_for_one_that_was_left(tmp_path, monkeypatch):
    (tmp_path / "waiter.py").write_text(WAITER)
    monkeypatch.setattr(comparison, "COMMAND", (sys.executable, str(tmp_path / "waiter.py")))
    locked = iter([True, True, False])
    monkeypatch.setattr(ray_backend.storage, "is_locked", lambda path: next(locked))
    run = tmp_path / "fit"
    threading.Timer(0.5, ray_backend.stop_file(run).touch).start()
    why = ray_backend.run_task([str(tmp_path), "saved"], str(run), str(tmp_path / "no"), {})
    assert why == "stopped after 3 steps"
    assert (tmp_path / "saved").read_text() == "saved"
    assert next(locked, None) is None
