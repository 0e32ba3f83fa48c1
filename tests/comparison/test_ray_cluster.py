"""Comparisons and searches on a real cluster of Ray with two nodes, one of which is lost."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

import monge
from monge.comparison import ray_backend
from monge.comparison.plan import ComparisonPlan
from monge.comparison.runner import RESULTS, Comparison
from monge.core.errors import UsageError
from monge.train import checkpoint

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A head without CPUs and two nodes with one each; files of the current folder must not be
    imported."""
    from ray.cluster_utils import Cluster

    for name in ("queue.py", "monge.py", "sitecustomize.py"):
        (tmp_path / name).write_text("open('executed', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "4")
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": NODE["object_store_memory"]},
    )
    made.nodes = [made.add_node(**NODE) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    made.shutdown()
    assert not (tmp_path / "executed").exists()


def lose_node_once(cluster, folder, seen: list[int]) -> threading.Thread:
    """Kill the node of the first fit in the folder that has a checkpoint, when it has one."""

    def wait_and_kill() -> None:
        while not (saved := [*folder.glob("*/last.safetensors")]):
            time.sleep(0.1)
        seen.append(checkpoint.about(saved[0])["step"])
        cluster.remove_node(cluster.nodes[0], allow_graceful=False)
        cluster.remove_node(cluster.nodes[1], allow_graceful=False)  # the fit was on one of them
        cluster.add_node(**NODE)

    thread = threading.Thread(target=wait_and_kill, daemon=True)
    thread.start()
    return thread


def outcomes(cluster, folder, budget: str, workers: int) -> list[str | None]:
    """Why each fit of a comparison failed."""
    plan = ComparisonPlan("moons", (), ("autoregressive.made",), budget)
    subject = Comparison.create(plan, folder)
    found = ray_backend.run(subject, cluster.address, workers=workers)
    return [outcome.failure for outcome in found]


def test_a_lost_node_costs_the_progress_since_a_checkpoint(cluster, tmp_path):
    seen: list[int] = []
    killer = lose_node_once(cluster, tmp_path / "out", seen)
    assert outcomes(cluster, tmp_path / "out", "4000steps", 1) == [None]
    killer.join(1)
    assert seen
    assert seen[0] > 0
    run = tmp_path / "out" / "autoregressive.made"
    assert json.loads((run / RESULTS).read_text())["steps"] > seen[0]
    steps = [entry["step"] for entry in monge.load(run).log]
    assert steps == sorted(set(steps))


def test_trials_run_side_by_side_and_survive_a_lost_node(cluster, tmp_path):
    out, active = tmp_path / "search", []

    def lose() -> None:
        while len([*out.glob("trial-*/last.safetensors")]) < 2:
            active.append(len([*out.glob("trial-*/run.json")]))
            time.sleep(0.1)
        cluster.remove_node(cluster.nodes[0], allow_graceful=False)

    threading.Thread(target=lose, daemon=True).start()
    found = monge.tune(
        "made",
        "moons",
        "width=8..32",
        trials=4,
        budget="1500steps",
        out=out,
        ray=cluster.address,
    )
    assert max(active) >= 2
    assert [each.state for each in found.trials if each.state == "failed"] == []
    assert len(found.trials) == 4
    assert monge.load(found.run).result["step"] > 0
    with pytest.raises(UsageError, match=r"\b9\b"):
        monge.tune(
            "made",
            "moons",
            "width=8..32",
            trials=5,
            out=out,
            ray=cluster.address,
            threads=9,
            budget="1500steps",
        )


def test_a_fit_of_two_workers_is_one_task(cluster, tmp_path):
    cluster.remove_node(cluster.nodes[0])
    cluster.add_node(num_cpus=2, object_store_memory=NODE["object_store_memory"])
    assert outcomes(cluster, tmp_path / "out", "20steps", 2) == [None]
    run = monge.load(tmp_path / "out" / "autoregressive.made")
    assert run.metadata["train"]["shards"] == 2
    assert os.getcwd() == str(tmp_path)
