"""Comparisons and searches on a real cluster of Ray with two nodes, one of which is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import monge
from monge.train import checkpoint

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
COMPARE = """
import sys
from pathlib import Path
from monge.comparison import ray_backend
from monge.comparison.plan import ComparisonPlan
from monge.comparison.runner import Comparison
address, folder, budget, workers = sys.argv[1:]
plan = ComparisonPlan("moons", (), ("autoregressive.made",), budget)
subject = Comparison.create(plan, Path(folder))
(found,) = ray_backend.run(subject, address, workers=int(workers))
sys.exit(found.failure)
"""
"""A comparison of one model without baselines."""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A head without CPUs; files of the current folder must not be imported."""
    from ray.cluster_utils import Cluster

    for name in ("queue.py", "monge.py", "sitecustomize.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    head = {"num_cpus": 0, "object_store_memory": NODE["object_store_memory"]}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()
    assert not (tmp_path / "executed").exists()


def started(*command: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", *command], stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for(job: subprocess.Popen[str], *paths: Path) -> None:
    while not all(path.exists() for path in paths):
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.1)


def test_a_lost_node_costs_the_progress_since_a_checkpoint(cluster, tmp_path):
    first, run = cluster.add_node(**NODE), tmp_path / "out" / "autoregressive.made"
    words = (cluster.address, str(tmp_path / "out"), "3000steps", "1")
    job = started("-c", COMPARE, *words)
    wait_for(job, run / "last.safetensors")
    cluster.add_node(**NODE)
    step = checkpoint.about(run / "last.safetensors")["step"]
    cluster.remove_node(first, allow_graceful=False)
    assert job.wait() == 0, job.stderr.read()
    found = monge.load(run)
    assert found.result["step"] > step > 0
    steps = [entry["step"] for entry in found.log]
    assert steps == sorted(set(steps))


def test_trials_run_side_by_side_and_survive_a_lost_node(cluster, tmp_path):
    first = cluster.add_node(**NODE)
    cluster.add_node(**NODE)
    out = tmp_path / "search"
    words = ["made", "moons", "width=8..32", "--trials", "3", "--budget", "1000steps"]
    words += ["--out", str(out), "--ray", cluster.address]
    job = started("-m", "monge", "tune", *words)
    wait_for(job, *(out / f"trial-000{number}" / "last.safetensors" for number in (0, 1)))
    cluster.remove_node(first, allow_graceful=False)
    assert job.wait() == 0, job.stderr.read()
    lines = job.stderr.read()
    assert "failed" not in lines
    assert sum(line.startswith("trial ") for line in lines.splitlines()) == 3
    (best,) = out.glob("trial-*/best.safetensors")
    assert checkpoint.about(best)["step"] > 0
    many = started("-m", "monge", "tune", *words, "--threads", "9")
    assert many.wait() == 2
    assert "9 CPUs" in many.stderr.read()


def test_a_fit_of_two_workers_is_one_task(cluster, tmp_path):
    cluster.add_node(num_cpus=2, object_store_memory=NODE["object_store_memory"])
    job = started("-c", COMPARE, cluster.address, str(tmp_path / "out"), "20steps", "2")
    assert job.wait() == 0, job.stderr.read()
    run = monge.load(tmp_path / "out" / "autoregressive.made")
    assert run.metadata["train"]["shards"] == 2
