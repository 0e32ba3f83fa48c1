"""Every common error is rejected by a control, or listed with the reason why none can be."""

import json
import math
import re
from dataclasses import replace

from monge.cli.main import attempt
from monge.verify.errata.uncomputable import PROSE
from monge.verify.framework import Control, examine, identities, listed

CONTROLS = [each for each in identities() if each.listing.group == "errata"]


RETIRED = {"R101", "R117", "R118"}


def test_every_identity_and_every_common_error_has_its_place():
    ids = {each.id for each in listed()}
    assert {each for each in ids if each[0] == "X"} == {f"X{n}" for n in range(1, 151)}
    controls = {each for each in ids if each[0] == "R"}
    assert controls | set(PROSE) == {f"R{n}" for n in range(1, 127)} - RETIRED
    assert not controls & set(PROSE)
    errata = [each for each in listed() if each.group == "errata"]
    assert {each.id for each in errata} == controls
    statements = [each.statement for each in errata] + [each for _, each, _ in PROSE.values()]
    assert all(re.fullmatch(r"Common error: .+; correct: .+", each) for each in statements)
    assert max(map(len, statements)) <= 92


def test_a_control_needs_the_wrong_one_rejected_and_the_right_one_held():
    assert examine(control(1.0, 0.0, 0.1)).passed is True
    assert examine(control(math.nan, 0.0, 0.1)).passed is True
    assert examine(control(0.05, 0.0, 0.1)).passed is False
    assert examine(control(1.0, 0.2, 0.1)).passed is False
    assert examine(control(1.0, math.nan, 0.1)).passed is False


def control(wrong, right, tolerance):
    return replace(CONTROLS[0], call=lambda: Control(wrong, right, tolerance))


def run_json(capsys, *args):
    code = attempt(["verify", *args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_verb_shows_where_it_is_from_and_what_is_wrong(capsys):
    code, value = run_json(capsys, "R36", "x4")
    assert code == 0
    assert {row["id"]: row["source"] for row in value["rows"]} == {
        each.id: each.source for each in listed() if each.id in {"X4", "R36"}
    }
    assert {row["id"]: row["wrong"] is None for row in value["rows"]} == {"X4": True, "R36": False}
    assert attempt(["verify", "R36"]) == 0
    assert "1.99" in capsys.readouterr().out
    code, value = run_json(capsys, "R109")
    assert [row["skipped"] for row in value["rows"]] == [PROSE["R109"][2]]
    assert attempt(["verify", "R109"]) == 0
    assert "FCN" in capsys.readouterr().out
