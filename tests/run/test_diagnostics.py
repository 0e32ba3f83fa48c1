"""Diagnostics: problems found in a training log or by a model, and where they are saved."""

import json
import math
import re

import pytest

import monge
from monge.cli.main import attempt
from monge.core.errors import RunError
from monge.run import diagnostics

QUICK = ("latent=3", "net.width=16", "train.eval_every=20")
COLLAPSED = ("beta=300", "train.lr=0.02", "train.warmup=0", "train.ema_decay=0")


def log(losses, scores, kind="bound", stderr=1.0):
    """Lines of a log with these training losses and held-out scores."""
    return [
        {
            "step": 50 * number,
            "terms": {"loss": loss},
            "held_out": {"value": score, "kind": kind, "stderr": stderr},
        }
        for number, (loss, score) in enumerate(zip(losses, scores, strict=True), 1)
    ]


def names(findings):
    return [finding.name for finding in findings]


BUDGET = {"stopped": "budget"}


def test_over_fitting_is_held_out_rows_getting_worse_while_training_rows_get_better():
    worse = log([9, 8, 7, 6, 5, 4], [-9, -8, -9, -10, -11, -12])
    (found,) = diagnostics.diagnose_log(worse, {"stopped": "patience"})
    assert found.name == "over-fitting"
    assert {"100", "-8", "-12"} <= set(re.findall(r"-?\d+", found.sentence))
    # not if the training loss rises too, the decrease is small, or the metric is a distance
    assert not diagnostics.diagnose_log(
        log([4, 5, 6, 7, 8, 9], [-9, -8, -9, -10, -11, -12]), BUDGET
    )
    assert not diagnostics.diagnose_log(log([9, 8, 7, 6, 5], [-9, -8, -8.1, -8.2, -8.3]), BUDGET)
    assert not diagnostics.diagnose_log(
        log([9, 8, 7, 6, 5], [-9, -8, -9, -10, -11], "distance"), BUDGET
    )


def test_a_fit_that_was_still_improving_is_cut_short():
    rising = log([9, 8, 7, 6, 5], [-9, -8, -7, -6, -5])
    (found,) = diagnostics.diagnose_log(rising, BUDGET)
    assert found.name == "stopped early"
    assert "--resume" in found.remedy
    assert not diagnostics.diagnose_log(rising, {"stopped": "asked"})
    assert not diagnostics.diagnose_log(
        log([9, 8, 7, 6, 5], [-9, -7.04, -7.03, -7.02, -7.01]), BUDGET
    )


def test_findings_are_saved_with_the_run_and_computed_once(tmp_path):
    run = monge.fit("vae", "digits", *QUICK, *COLLAPSED, budget="60steps", out=tmp_path / "run")
    found = run.diagnose()
    assert "posterior collapse" in names(found)
    saved = json.loads((run.folder / "findings.json").read_text())
    assert [each["sentence"] for each in saved["findings"]] == [each.sentence for each in found]
    assert str(run.folder) in found[0].remedy  # what to resume
    assert str(run.folder) not in str(saved)  # so that the folder can be moved
    assert saved["step"] == 60
    card = (run.folder / "card.md").read_text()
    stored = diagnostics.saved_findings(run.folder, 60)
    assert all(diagnostics.sentence(finding) in card for finding in stored)
    again = monge.load(run.folder)
    assert again.diagnose() == found
    # weights of another step have not been diagnosed
    assert diagnostics.saved_findings(run.folder, 61) is None
    (run.folder / "findings.json").write_text("{")
    with pytest.raises(RunError, match=r"findings\.json"):
        again.diagnose()


def test_the_command_line_prints_findings(tmp_path, capsys):
    arguments = [
        "fit",
        "vae",
        "digits",
        *QUICK,
        *COLLAPSED,
        "--budget",
        "60steps",
        "--out",
        str(tmp_path / "run"),
    ]
    assert attempt(arguments) == 0
    assert "posterior collapse" in capsys.readouterr().err
    assert attempt(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "posterior collapse" in [finding["name"] for finding in printed["findings"]]


def test_training_that_barely_began_is_reported():
    log = [{"epoch": 0.4, "step": 15, "held_out": None, "terms": {}}]
    (found,) = diagnostics.barely_began(log, {"stopped": "budget", "step": 15})
    assert found.name == "barely trained"
    assert "15 steps" in found.sentence
    assert not diagnostics.barely_began(log, {"stopped": "complete", "step": 1})
    assert not diagnostics.barely_began(
        [log[0] | {"epoch": 9.0}], {"stopped": "budget", "step": 15}
    )


def test_fits_worse_than_trivial_codes_are_reported(tmp_path):
    """A model of digits that hardly moves is worse than independent pixels, and a value below that
    of the uniform code is reported as such; a fit that barely began is not compared."""
    slow = ("data.rows=200", "train.lr=1e-6")
    begun = monge.fit("made", "digits", *slow, budget="2steps", out=tmp_path / "begun")
    assert begun.diagnose()[0].name == "barely trained"
    run = monge.fit("made", "digits", *slow, budget="5epochs", out=tmp_path / "run")
    names = [finding.name for finding in run.diagnose()]
    assert "barely trained" not in names
    assert {"worse than the uniform code", "worse than independent entries"} & {*names}
    valid, train = run.split(None, "valid"), run.split(None, "train")
    uniform = diagnostics.uniform_code(run.space)
    assert uniform == pytest.approx(-64 * math.log(17))

    def found(value):
        result = {"held_out": {"kind": "exact", "value": value, "stderr": 0.1}}
        findings = diagnostics.worse_than_trivial(run.model, valid, train, result)
        return [finding.name for finding in findings]

    assert found(uniform - 1) == ["worse than the uniform code"]
    assert found(uniform + 1) == ["worse than independent entries"]
    assert found(-20.0) == []
