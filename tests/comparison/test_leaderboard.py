"""Which models take part in a comparison, and their ranking."""

from __future__ import annotations

import numpy as np
import pytest
from comparisons import planned, saved_outcome

from monge import registry
from monge.comparison.leaderboard import Leaderboard, leaderboard, mean
from monge.comparison.plan import Candidate, first_per_family
from monge.comparison.runner import Comparison, Outcome
from monge.core.errors import DataError, RunError, UsageError
from monge.core.metric import Metric


def test_every_model_that_supports_the_data_takes_part_and_others_have_a_reason():
    found = planned()
    assert {"baseline.gaussian", "autoregressive.made", "latent.vae"} <= set(found.models)
    assert set(found.models).isdisjoint(found.refused)
    assert all(reason for reason in found.refused.values())
    names = {e.name for e in registry.entries()}
    assert set(found.models) | set(found.refused) <= names


def test_one_per_family_is_the_one_of_highest_priority():
    named = [Candidate.of(name) for name in ("fvsbn", "made", "vae", "wgan")]
    assert [each.name for each in first_per_family(named)] == [
        "autoregressive.made",
        "latent.vae",
        "adversarial.wgan",
    ]
    families = [name.partition(".")[0] for name in planned(one=True).models]
    others = [family for family in families if family != "baseline"]
    assert len(others) == len(set(others)) > 3


def test_baselines_are_always_there():
    names = planned("made").models
    assert names[-1] == "autoregressive.made"
    assert {name.partition(".")[0] for name in names[:-1]} == {"baseline"}


@pytest.mark.parametrize(
    ("models", "overrides", "error", "value"),
    [
        (("contrastive",), (), DataError, "contrastive"),
        (("nobody",), (), UsageError, "'nobody'"),
        (("made",), ("width=64",), UsageError, "width=64"),
        (("predict.mlp",), (), UsageError, "--target"),
    ],
)
def test_what_cannot_be_compared_is_refused(models, overrides, error, value):
    with pytest.raises(error, match=value):
        planned(*models, overrides=overrides)


def test_models_are_ranked_by_likelihood_and_those_without_by_distance(tmp_path):
    rng = np.random.default_rng(0)
    base = rng.normal(0, 5, 400)
    outcomes = [
        saved_outcome(tmp_path, "far", 0.9, None),
        saved_outcome(tmp_path, "low", 0.1, base - 1),
        saved_outcome(tmp_path, "near", 0.2, None),
        saved_outcome(tmp_path, "high", 0.8, base),
        Outcome("gone", 0, tmp_path / "gone", "it failed"),
    ]
    rows = leaderboard(outcomes)
    assert [row.model for row in rows] == ["high", "low", "near", "far"]
    assert rows[0].gap_to_best == (0.0, 0.0)
    # The rows differ by exactly 1, although each mean has a standard error of 5 / sqrt(400).
    assert rows[1].gap_to_best == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))
    assert rows[2].gap_to_best is None
    assert [row.ranks for row in rows] == [
        {"likelihood": 1, "distance": 3},
        {"likelihood": 2, "distance": 1},
        {"distance": 2},
        {"distance": 4},
    ]
    found = Leaderboard.of(Comparison(planned("made"), tmp_path), outcomes)
    assert found.reference["energy_distance"].value == 0.05
    assert found.to_dict()["failures"] == {"gone (seed 0)": "it failed"}


def test_several_seeds_have_an_interval_and_a_wider_difference(tmp_path):
    base = np.random.default_rng(0).normal(0, 5, 400)
    outcomes = [
        saved_outcome(tmp_path, name, 0.1, base - low - apart, seed)
        for name, low, apart_by in (("high", 0.0, 0.0), ("low", 1.0, 0.5))
        for seed, apart in enumerate((-apart_by, 0.0, apart_by))
    ]
    high, low = leaderboard(outcomes)
    assert high.interval == (pytest.approx(base.mean()), pytest.approx(base.mean()))
    # Student's t with 2 degrees of freedom: 4.303 standard errors of three values 0.5 apart.
    error = 0.5 / 3**0.5
    assert low.interval[1] - low.interval[0] == pytest.approx(2 * 4.3027 * error, rel=1e-4)
    assert low.gap_to_best == (pytest.approx(1.0), pytest.approx(error))
    assert len(low.to_dict()["runs"]) == 3


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"shape": 3}, r"\b3\b.*\b2\b"),
        ({"fingerprint": "b"}, "two-0 .* one-0|one-0"),
        ({"overrides": ("seed=1", "missing=ignore")}, r"table \(missing=ignore\) in two-0"),
        ({"overrides": ("space=plain",)}, r"table \(space=plain\) in two-0 and table in one-0"),
        ({"overrides": ("constraints=a>b",)}, r"constraints=a>b"),
        ({"optional": True}, "two-0 and table in one-0"),
        ({"atoms": [0.0]}, "two-0 and table in one-0"),
    ],
)
def test_models_of_different_spaces_or_data_are_not_compared(tmp_path, options, values):
    outcomes = [
        saved_outcome(tmp_path, "one", 0.1, None),
        saved_outcome(tmp_path, "two", 0.1, None, **options),
    ]
    with pytest.raises(RunError, match=values):
        leaderboard(outcomes)


def test_the_error_over_seeds_is_not_smaller_than_that_over_rows():
    apart = mean([Metric(0.0, "exact", 0.1), Metric(2.0, "exact", 0.2)])
    assert (apart.value, apart.stderr) == (1.0, 1.0)
    assert mean([Metric(0.0, "exact", 0.1), Metric(0.0, "exact", 0.2)]).stderr == 0.2


def test_data_that_no_model_supports_list_a_reason_for_each(monkeypatch):
    few = [
        entry
        for entry in registry.entries()
        if entry.name in ("predict.mlp", "represent.contrastive")
    ]
    monkeypatch.setattr(registry, "entries", lambda: few)
    with pytest.raises(DataError, match="moons") as caught:
        planned()
    assert all(entry.name in str(caught.value) for entry in few)
