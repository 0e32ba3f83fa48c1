"""Residuals that were seen over seeds, processors and threads, beside their tolerances."""

import json
from pathlib import Path

from monge.verify.framework import listed
from monge.verify.mutants import MUTANTS

KEPT = json.loads(
    (Path(__file__).parents[2] / "results" / "verify" / "residuals.json").read_text()
)
ROOM = 10


def test_tolerances_have_room_on_both_sides():
    """Ten times the largest residual of rounding, and a tenth of that of the smallest fault."""
    rows = KEPT["identities"]
    rounding = {name: row for name, row in rows.items() if row.get("rounding")}
    assert len(rounding) > 200
    tight = [n for n, row in rounding.items() if row["tolerance"] < ROOM * row["largest"]]
    assert tight == []
    failed = [name for name, row in rows.items() if row.get("largest", 0) > row["tolerance"]]
    assert failed == []
    faults = {n: row for n, row in rows.items() if "smallest_fault" in row and n in rounding}
    near = [n for n, row in faults.items() if row["smallest_fault"] < ROOM * row["tolerance"]]
    assert near == []


def test_they_are_those_of_the_identities_that_there_are():
    names = {each.name for each in listed()}
    assert set(KEPT["identities"]) <= names
    assert {mutant.check for mutant in MUTANTS} <= set(KEPT["identities"])
    processors = {how.split(",")[0] for how in KEPT["conditions"]}
    assert len(processors) >= 2
    threads = {how.split(",")[1].strip() for how in KEPT["conditions"]}
    assert threads == {"1 threads", "2 threads"}
