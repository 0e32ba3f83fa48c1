"""Comparisons: who is let in, who stands first, what a failure costs, and the page about it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from monge import registry
from monge.cli.main import monge
from monge.compare import JUDGED, Candidate, Comparison, Outcome, Plan, leading, plan
from monge.core.error import DataError, RunError, WordError
from monge.core.score import Score
from monge.entrant import ROWS
from monge.leaderboard import leaderboard, mean
from monge.show.page import page, section, table

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
    return plan("moons", models, words, "3steps", 1, (), target, one)


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


def folder_of(place: Path, name: str, value: float, rows: np.ndarray | None) -> Outcome:
    """A run as the leaderboard reads it."""
    run = place / name
    run.mkdir()
    measures = {"energy_distance": Score(value, "distance", 0.1, "energy")}
    if rows is not None:
        np.save(run / ROWS, rows)
        measures["log_likelihood"] = Score(rows.mean(), "exact", 0.1)
    told = {"measures": {k: v.to_dict() for k, v in measures.items()}, "seconds": 1.0, "steps": 3}
    (run / JUDGED).write_text(json.dumps(told))
    return Outcome(name, 0, run)


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


def test_the_error_over_seeds_is_not_smaller_than_that_over_rows():
    apart = mean([Score(0.0, "exact", 0.1), Score(2.0, "exact", 0.2)])
    assert (apart.value, apart.stderr) == (1.0, 1.0)
    assert mean([Score(0.0, "exact", 0.1), Score(0.0, "exact", 0.2)]).stderr == 0.2


def test_a_comparison_fits_judges_reports_and_goes_on(tmp_path):
    """A failure is told and costs nobody else; what is done is not done again."""
    rng = np.random.default_rng(0)
    names = np.array(["red", "blue", "green"])[rng.integers(3, size=300)]
    lines = [f"{name},{number:.3f}" for name, number in zip(names, rng.normal(size=300),
                                                            strict=True)]
    (tmp_path / "two.csv").write_text("\n".join(["colour,size", *lines]))
    (tmp_path / "broken.py").write_text(BROKEN)
    words = ["compare", str(tmp_path / "two.csv"), str(tmp_path / "broken.py"), "made",
             "--budget", "5steps", "--jobs", "2", "--out", str(tmp_path / "out"), "--json"]
    first = CliRunner().invoke(monge, words)
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert {"autoregressive.made", "baseline.tree"} <= {row["model"] for row in told["rows"]}
    assert list(told["failures"].values()) == ["it never could"]
    values = [row["measures"]["log_likelihood"]["value"] for row in told["rows"]]
    assert values == sorted(values, reverse=True)
    judged = tmp_path / "out" / "autoregressive.made" / JUDGED
    stamp = judged.stat().st_mtime_ns
    CliRunner().invoke(monge, words)
    assert judged.stat().st_mtime_ns == stamp
    text = Path(told["report"]).read_text()
    assert "autoregressive.made" in text
    assert "it never could" in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    with pytest.raises(RunError, match="other words"):
        Comparison.begin(planned("made"), tmp_path / "out")


def test_a_page_stands_alone_and_escapes_what_it_shows():
    text = page("a < b", "lead", section("Numbers", table("t", ["name", "x"], [["<i>", 1.5]])),
                section("Nothing"))
    assert "<h1>a &lt; b</h1>" in text
    assert '<th scope="row">&lt;i&gt;</th><td class="number">1.5</td>' in text
    assert "Nothing" not in text
    assert 'name="viewport"' in text
