"""Comparisons: which models take part, their ranking, failures, and the report."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from comparisons import planned, saved_outcome

import monge
from monge import registry
from monge.cli.main import attempt
from monge.cli.main import monge as program
from monge.comparison import api, runner, worker
from monge.comparison.runner import RESULTS, Comparison, JobStarted, Outcome
from monge.core.errors import DataError, MongeError, RunError
from monge.report.html import page, table

BROKEN = '''"""A model that cannot be trained"""
from monge.core.abilities import HasLikelihood
from monge.core.errors import DataError
from monge.core.model import Model


class Broken(Model, HasLikelihood):
    events = {"columns"}

    class Config(Model.Config):
        pass

    def loss(self, batch):
        raise DataError("it never could")

    def likelihood(self, batch, options=None, generator=None):
        raise DataError("it never could")

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()
'''


@pytest.fixture
def in_process(monkeypatch):
    """Jobs run in this process, one after the other."""

    def run_job(self, model, seed, threads, workers=1, on_start=lambda _: None):
        run, out = self.run_folder(model, seed), io.StringIO()
        try:
            if not (run / RESULTS).exists():
                worker.run_job(self.folder, model, seed, threads, out)
                on_start(JobStarted(model, seed, json.loads(out.getvalue())))
        except MongeError as error:
            return Outcome(model, seed, run, str(error))
        return Outcome(model, seed, run)

    monkeypatch.setattr(Comparison, "run_job", run_job)
    monkeypatch.setattr(registry, "entries", lambda: [e for e in ENTRIES if e.name in KNOWN])


ENTRIES = registry.entries()
KNOWN = ("baseline.independent", "autoregressive.made", "adversarial.gan")


def coloured(rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = np.array(["red", "blue", "green"])[rng.integers(3, size=rows)]
    return pd.DataFrame({"colour": names, "size": rng.normal(size=rows).round(3)})


def test_a_comparison_fits_evaluates_reports_and_resumes(tmp_path, in_process):
    """A failure is reported and does not stop the others; finished jobs are not repeated."""
    coloured().to_csv(tmp_path / "two.csv", index=False)
    (tmp_path / "broken.py").write_text(BROKEN)
    arguments = [
        "compare",
        str(tmp_path / "two.csv"),
        str(tmp_path / "broken.py"),
        "made",
        "--budget",
        "5steps",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    first = CliRunner().invoke(program, arguments)
    assert first.exit_code == 0, first.output
    printed = json.loads(first.stdout)
    assert {row["model"] for row in printed["rows"]} == {
        "autoregressive.made",
        "baseline.independent",
    }
    assert {row["family"] for row in printed["rows"]} == {"autoregressive", "baseline"}
    assert all(row["cost"]["parameters"] >= 0 for row in printed["rows"])
    assert "c2st" in printed["reference"]
    assert list(printed["failures"].values()) == ["it never could"]
    values = [row["metrics"]["log_likelihood"]["value"] for row in printed["rows"]]
    assert values == sorted(values, reverse=True)
    results = tmp_path / "out" / "autoregressive.made" / RESULTS
    stamp = results.stat().st_mtime_ns
    CliRunner().invoke(program, arguments)
    assert results.stat().st_mtime_ns == stamp
    check_page(
        Path(printed["report"]).read_text(),
        "it never could",
        "Learning curves",
        "Settings",
        "Environment",
        "training rows",
        "Findings",
        "colour",
        "terms of the loss",
    )
    assert attempt(["report", str(results.parent), "-o", str(tmp_path / "run.html")]) == 0
    check_page(
        (tmp_path / "run.html").read_text(),
        "Settings",
        "Environment",
        "Findings",
        "colour",
        "terms of the loss",
    )
    with pytest.raises(RunError, match="5steps"):
        Comparison.create(planned("made"), tmp_path / "out")
    coloured(190).to_csv(tmp_path / "two.csv", index=False)
    with pytest.raises(RunError, match=r"two\.csv"):
        CliRunner().invoke(program, arguments, catch_exceptions=False)


def check_page(text: str, *parts: str) -> None:
    """A page with these parts that needs no network and that a screen reader can read."""
    assert all(each in text for each in parts), [each for each in parts if each not in text]
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


def test_python_compares_a_frame_and_gets_every_event(tmp_path, monkeypatch):
    def run_job(self, model, seed, threads, workers, on_start):
        on_start(JobStarted(model, seed, {}))
        return saved_outcome(self.folder, model, 0.1, None, seed)

    monkeypatch.setattr(Comparison, "run_job", run_job)
    monkeypatch.setattr(
        "monge.comparison.api.report", lambda folder, outcomes: folder / "report.html"
    )
    events = []
    found = monge.compare(
        coloured(), "made", seeds=2, out=tmp_path / "out", on_event=events.append
    )
    (first, *rest), models = events, {row.model for row in found.rows}
    assert {"autoregressive.made", "baseline.independent"} <= models
    assert [type(event) for event in rest] == [JobStarted, Outcome] * 2 * len(models)
    assert pd.read_csv(first.plan.data).equals(coloured())
    assert found.to_dict()["report"] == str(tmp_path / "out" / "report.html")
    saved, _ = api.save_arrays((np.eye(3), np.arange(3)), tmp_path)
    assert np.array_equal(np.load(saved)["y"], np.arange(3))
    with pytest.raises(DataError, match="object"):
        monge.compare(object(), out=tmp_path / "other")


def test_a_page_is_self_contained_and_escaped():
    text = page(
        "a < b", "lead", {"Numbers": [table("t", ["name", "x"], [["<i>", 1.5]])], "Nothing": [""]}
    )
    assert "<h1>a &lt; b</h1>" in text
    assert '<th scope="row">&lt;i&gt;</th><td class="number">1.5</td>' in text
    assert "Nothing" not in text
    assert 'name="viewport"' in text


def test_processes_share_the_cores_and_keep_to_the_environment(monkeypatch):
    monkeypatch.setattr(runner, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [runner.threads_each(n) for n in (1, 3, 20)] == [8, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [runner.threads_each(n) for n in (1, 3, 20)] == [3, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # by level of nesting
    assert runner.threads_each(1) == 8
