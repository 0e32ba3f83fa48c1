"""Comparisons: who is let in, who stands first, what a failure costs, and the page about it."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import monge
from monge import cluster, comparing, comparison, entrant, registry
from monge.cli.main import attempt
from monge.cli.main import monge as program
from monge.comparison import JUDGED, Comparison, Outcome, Plan, Started
from monge.core.error import DataError, MongeError, RunError, WordError
from monge.core.score import Score
from monge.entrant import ROWS
from monge.leaderboard import Leaderboard, leaderboard, mean
from monge.lineup import Candidate, leading, plan
from monge.show.page import page, table

BROKEN = '''"""A law that cannot be trained"""
from monge.core.abilities import HasLikelihood
from monge.core.error import DataError
from monge.core.model import Model


class Broken(Model, HasLikelihood):
    events = {"columns"}

    class Config(Model.Config):
        pass

    def loss(self, batch):
        raise DataError("it never could")

    def likelihood(self, batch, how=None, generator=None):
        raise DataError("it never could")

    @classmethod
    def tiny(cls, space):
        return cls.Config()
'''


def planned(*models: str, words: tuple[str, ...] = (), one: bool = False, target=()) -> Plan:
    return plan("moons", models, words, "3steps", target=target, one=one)


def test_every_model_that_takes_the_data_is_in_and_the_others_say_why():
    found = planned()
    assert {"baseline.gaussian", "autoregressive.made", "latent.vae"} <= set(found.models)
    assert set(found.models).isdisjoint(found.refused)
    assert all(reason for reason in found.refused.values())
    laws = {e.name for e in registry.entries()}
    assert set(found.models) | set(found.refused) <= laws


def test_one_of_each_family_is_the_one_that_leads_it():
    named = [Candidate.of(name) for name in ("fvsbn", "made", "vae", "wgan")]
    assert [each.name for each in leading(named)] == ["autoregressive.made", "latent.vae",
                                                        "adversarial.wgan"]
    families = [name.partition(".")[0] for name in planned(one=True).models]
    others = [family for family in families if family != "baseline"]
    assert len(others) == len(set(others)) > 3


def test_baselines_are_always_there():
    names = planned("made").models
    assert names[-1] == "autoregressive.made"
    assert {name.partition(".")[0] for name in names[:-1]} == {"baseline"}


@pytest.mark.parametrize(("models", "words", "error", "said"), [
    (("contrastive",), (), DataError, "is no law"),
    (("nobody",), (), WordError, "there is no model 'nobody'"),
    (("made",), ("width=64",), WordError, "would not concern every model alike"),
    (("predict.mlp",), (), WordError, "--target"),
])
def test_what_cannot_be_compared_is_refused_in_a_sentence(models, words, error, said):
    with pytest.raises(error, match=said):
        planned(*models, words=words)


def folder_of(place: Path, name: str, value: float, rows: np.ndarray | None, seed: int = 0,
              shape: int = 2, fingerprint: str = "a") -> Outcome:
    """A run as the leaderboard reads it."""
    run = place / f"{name}-{seed}"
    run.mkdir()
    space = {"is": "monge.core.space:Space", "kind": "real", "shape": [shape]}
    about = {"format": 1, "space": space, "data": {"fingerprint": fingerprint}}
    (run / "run.json").write_text(json.dumps(about))
    measures = {"energy_distance": Score(value, "distance", 0.1, "energy"),
                "energy_distance_of_real_rows": Score(0.05, "distance", 0.1, "energy")}
    if rows is not None:
        np.save(run / ROWS, rows)
        measures["log_likelihood"] = Score(rows.mean(), "exact", 0.1)
    told = {"measures": {k: v.to_dict() for k, v in measures.items()}, "seconds": 1.0, "steps": 3}
    (run / JUDGED).write_text(json.dumps(told))
    return Outcome(name, seed, run)


def test_laws_stand_by_their_score_and_those_without_by_their_distance(tmp_path):
    rng = np.random.default_rng(0)
    base = rng.normal(0, 5, 400)
    outcomes = [folder_of(tmp_path, "far", 0.9, None), folder_of(tmp_path, "low", 0.1, base - 1),
                folder_of(tmp_path, "near", 0.2, None), folder_of(tmp_path, "high", 0.8, base),
                Outcome("gone", 0, tmp_path / "gone", "it failed")]
    rows = leaderboard(outcomes)
    assert [row.model for row in rows] == ["high", "low", "near", "far"]
    assert rows[0].behind == (0.0, 0.0)
    # The rows differ by 1 exactly, though each mean is uncertain by 5 / sqrt(400).
    assert rows[1].behind == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))
    assert rows[2].behind is None
    assert [row.places for row in rows] == [
        {"likelihood": 1, "distance": 3}, {"likelihood": 2, "distance": 1}, {"distance": 2},
        {"distance": 4}]
    found = Leaderboard.of(Comparison(planned("made"), tmp_path), outcomes)
    assert found.reference["energy_distance"].value == 0.05
    assert found.to_dict()["failures"] == {"gone (seed 0)": "it failed"}


def test_several_seeds_have_an_interval_and_a_wider_difference(tmp_path):
    base = np.random.default_rng(0).normal(0, 5, 400)
    outcomes = [folder_of(tmp_path, name, 0.1, base - low - apart, seed)
                for name, low, apart_by in (("high", 0.0, 0.0), ("low", 1.0, 0.5))
                for seed, apart in enumerate((-apart_by, 0.0, apart_by))]
    high, low = leaderboard(outcomes)
    assert high.interval == (pytest.approx(base.mean()), pytest.approx(base.mean()))
    # Student's t with 2 degrees of freedom: 4.303 standard errors of three values 0.5 apart.
    error = 0.5 / 3 ** 0.5
    assert low.interval[1] - low.interval[0] == pytest.approx(2 * 4.3027 * error, rel=1e-4)
    assert low.behind == (pytest.approx(1.0), pytest.approx(error))
    assert len(low.to_dict()["runs"]) == 3


@pytest.mark.parametrize(("how", "said"), [
    ({"shape": 3}, "is a law of real numbers of shape 3 and .* of real numbers of shape 2"),
    ({"fingerprint": "b"}, "were fitted to different data")])
def test_laws_of_different_spaces_or_data_are_not_compared(tmp_path, how, said):
    outcomes = [folder_of(tmp_path, "one", 0.1, None),
                folder_of(tmp_path, "two", 0.1, None, **how)]
    with pytest.raises(RunError, match=said):
        leaderboard(outcomes)


def test_the_error_over_seeds_is_not_smaller_than_that_over_rows():
    apart = mean([Score(0.0, "exact", 0.1), Score(2.0, "exact", 0.2)])
    assert (apart.value, apart.stderr) == (1.0, 1.0)
    assert mean([Score(0.0, "exact", 0.1), Score(0.0, "exact", 0.2)]).stderr == 0.2


@pytest.fixture
def inside(monkeypatch):
    """Entrants run in this process, one after the other."""
    def enter(self, model, seed, threads, tell=lambda _: None):
        run, out = self.place(model, seed), io.StringIO()
        try:
            if not (run / JUDGED).exists():
                entrant.enter(self.folder, model, seed, threads, out)
                tell(Started(model, seed, json.loads(out.getvalue())))
        except MongeError as error:
            return Outcome(model, seed, run, str(error))
        return Outcome(model, seed, run)

    monkeypatch.setattr(Comparison, "enter", enter)
    monkeypatch.setattr(registry, "entries", lambda: [e for e in ENTRIES if e.name in KNOWN])


ENTRIES = registry.entries()
KNOWN = ("baseline.tree", "autoregressive.made", "adversarial.gan")


def coloured(rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = np.array(["red", "blue", "green"])[rng.integers(3, size=rows)]
    return pd.DataFrame({"colour": names, "size": rng.normal(size=rows).round(3)})


def test_a_comparison_fits_judges_reports_and_goes_on(tmp_path, inside):
    """A failure is told and costs nobody else; what is done is not done again."""
    coloured().to_csv(tmp_path / "two.csv", index=False)
    (tmp_path / "broken.py").write_text(BROKEN)
    words = ["compare", str(tmp_path / "two.csv"), str(tmp_path / "broken.py"), "made",
             "--budget", "5steps", "--out", str(tmp_path / "out"), "--json"]
    first = CliRunner().invoke(program, words)
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert {row["model"] for row in told["rows"]} == {"autoregressive.made", "baseline.tree"}
    assert {row["family"] for row in told["rows"]} == {"autoregressive", "baseline"}
    assert all(row["cost"]["memory"] > 0 for row in told["rows"])
    assert "c2st" in told["reference"]
    assert list(told["failures"].values()) == ["it never could"]
    values = [row["measures"]["log_likelihood"]["value"] for row in told["rows"]]
    assert values == sorted(values, reverse=True)
    judged = tmp_path / "out" / "autoregressive.made" / JUDGED
    stamp = judged.stat().st_mtime_ns
    CliRunner().invoke(program, words)
    assert judged.stat().st_mtime_ns == stamp
    well_made(Path(told["report"]).read_text(), "it never could", "Learning curves", "Settings",
              "Environment", "training rows", "Findings", "colour", "terms of the loss")
    assert attempt(["report", str(judged.parent), "-o", str(tmp_path / "run.html")]) == 0
    well_made((tmp_path / "run.html").read_text(), "Settings", "Environment", "Findings", "colour",
              "learning curves", "terms of the loss")
    with pytest.raises(RunError, match="other words"):
        Comparison.begin(planned("made"), tmp_path / "out")
    coloured(190).to_csv(tmp_path / "two.csv", index=False)
    with pytest.raises(RunError, match="has changed since the comparison"):
        CliRunner().invoke(program, words, catch_exceptions=False)


def well_made(text: str, *said: str) -> None:
    """A page that needs no network and that a screen reader can go through."""
    assert all(each in text for each in said), [each for each in said if each not in text]
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert '<html lang="en">' in text
    assert "prefers-color-scheme: dark" in text
    assert all(mark in text for mark in ("<header>", "<nav aria-label", "<main>"))
    assert all(re.search(r'alt="[^"]{8,}"', tag) for tag in re.findall("<img[^>]*>", text))
    assert text.count("<table>") == text.count("<caption>") == text.count("<thead>")
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    anchors = set(re.findall(r'href="#([^"]+)"', text))
    assert anchors <= set(re.findall(r'id="([^"]+)"', text))


def test_python_compares_a_frame_and_hears_of_each(tmp_path, monkeypatch):
    def enter(self, model, seed, threads, tell):
        tell(Started(model, seed, {}))
        return folder_of(self.folder, model, 0.1, None, seed)

    monkeypatch.setattr(Comparison, "enter", enter)
    monkeypatch.setattr("monge.comparing.report", lambda where, outcomes: where / "report.html")
    heard = []
    found = monge.compare(coloured(), "made", seeds=2, out=tmp_path / "out", tell=heard.append)
    (first, *rest), models = heard, {row.model for row in found.rows}
    assert {"autoregressive.made", "baseline.tree"} <= models
    assert [type(event) for event in rest] == [Started, Outcome] * 2 * len(models)
    assert pd.read_csv(first.plan.data).equals(coloured())
    assert found.to_dict()["report"] == str(tmp_path / "out" / "report.html")
    kept, _ = comparing.kept((np.eye(3), np.arange(3)), tmp_path)
    assert np.array_equal(np.load(kept)["y"], np.arange(3))
    with pytest.raises(DataError, match="cannot be handed to the entrants"):
        monge.compare(object(), out=tmp_path / "other")


def test_data_that_no_model_takes_say_why_a_line_each(monkeypatch):
    few = [entry for entry in ENTRIES if entry.name in ("predict.mlp", "represent.contrastive")]
    monkeypatch.setattr(registry, "entries", lambda: few)
    with pytest.raises(DataError, match="no model takes moons:\n  ") as caught:
        planned()
    assert len(str(caught.value).splitlines()) == 3


WAITER = """
import pathlib, sys
where, model = pathlib.Path(sys.argv[1]), sys.argv[2]
print('{"step": 1.0}', flush=True)
sys.stdin.read()
(where / model).write_text("saved")
sys.stderr.write("stopped after 3 steps")
sys.exit(1)
"""


@pytest.mark.parametrize("way", ["sigterm", "closed"])
def test_who_stops_a_comparison_stops_its_entrants(tmp_path, monkeypatch, way):
    (tmp_path / "waiter.py").write_text(WAITER)
    monkeypatch.setattr(comparison, "COMMAND", (sys.executable, str(tmp_path / "waiter.py")))
    subject = Comparison(Plan("moons", (), ("first", "second", "third"), "60s"), tmp_path)
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


def test_an_entrant_that_was_stopped_is_not_judged_and_goes_on(tmp_path, monkeypatch):
    """It hears of it from its standard input, leaves at the end of a step, and goes on later."""
    subject = Comparison.begin(plan("moons", ["made"], budget="60steps"), tmp_path / "out")
    reading, writing = os.pipe()
    threading.Thread(target=entrant.heed, args=(os.fdopen(reading),), daemon=True).start()
    plain = entrant.Run.train
    monkeypatch.setattr(entrant, "judge", lambda run: (run.folder / JUDGED).write_text(
        str(run.result["step"])))

    def train(self, budget):
        for progress in plain(self, budget):
            if not progress.stopped:
                os.close(writing)
                time.sleep(0.1)
            yield progress

    words = (subject.folder, "autoregressive.made", 0, 1, io.StringIO())
    with monkeypatch.context() as patch:
        patch.setattr(entrant.Run, "train", train)
        with pytest.raises(RunError, match="compare again and it goes on"):
            entrant.enter(*words)
    run = subject.folder / "autoregressive.made"
    assert not (run / JUDGED).exists()
    assert monge.load(run).result["step"] < 60
    entrant.enter(*words)
    assert (run / JUDGED).read_text() == "60"


SCRIPT = """
import pathlib, sys
from monge.comparison import Comparison
for event in Comparison.read(pathlib.Path(sys.argv[1])).run():
    print(type(event).__name__, flush=True)
"""


@pytest.mark.slow
def test_a_comparison_that_is_terminated_goes_on(tmp_path):
    """With the processes that people have."""
    subject = Comparison.begin(Plan("moons", (), ("autoregressive.made",), "600steps"), tmp_path)
    run = tmp_path / "autoregressive.made"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], text=True,
                          stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == "Started\n"
        while not (run / "log.jsonl").exists() or not (run / "log.jsonl").read_text():
            time.sleep(0.05)
        parent.terminate()
        assert parent.wait(60) != 0
    assert not (run / JUDGED).exists()
    kept = monge.load(run).result["step"]
    assert 0 < kept < 600
    *_, last = subject.run()
    assert last == Outcome("autoregressive.made", 0, run)
    assert json.loads((run / JUDGED).read_text())["steps"] > kept


class Ray(SimpleNamespace):
    """A cluster of this process: tasks run when they are asked for."""

    exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))

    def init(self, **how):
        if how.get("address") == "nowhere":
            raise ConnectionError("nobody answers")
        self.how = how

    def shutdown(self):
        self.how = None

    def remote(self, function):
        def options(**how):
            return SimpleNamespace(remote=lambda *words: (function, *words))

        return SimpleNamespace(options=options)

    def wait(self, waiting, num_returns):
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, task):
        function, *words = task
        if words[1] == "lost":
            raise self.exceptions.RayError("the node died")
        return function(*words)

    def cancel(self, task, force):
        pass


def test_entrants_run_as_tasks_of_ray(tmp_path, monkeypatch):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(Comparison, "enter", lambda self, model, seed, threads: Outcome(
        model, seed, self.place(model, seed), "it failed" if model == "bad" else None))
    subject = Comparison.begin(Plan("moons", (), ("good", "bad", "lost"), "60s"), tmp_path)
    found = list(cluster.run(subject, "auto"))
    assert [outcome.failure for outcome in found] == [
        None, "it failed", "its machine was lost (the node died); compare again"]
    assert ray.how is None
    with pytest.raises(RunError, match="no Ray cluster at nowhere"):
        next(cluster.run(subject, "nowhere"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WordError, match=r"pip install 'monge\[ray\]'"):
        next(cluster.run(subject, "auto"))


def test_a_page_stands_alone_and_escapes_what_it_shows():
    text = page("a < b", "lead", {"Numbers": [table("t", ["name", "x"], [["<i>", 1.5]])],
                                  "Nothing": [""]})
    assert "<h1>a &lt; b</h1>" in text
    assert '<th scope="row">&lt;i&gt;</th><td class="number">1.5</td>' in text
    assert "Nothing" not in text
    assert 'name="viewport"' in text
