"""What a row says it examines is code that its check entered."""

import sys
from pathlib import Path

import pytest

import monge
from monge.verify.framework import MATHEMATICS, examine, identities

LIBRARY = f"{Path(monge.__file__).parent}/"
ALONE = [each for each in identities() if each.needs is None]
PASSED_THROUGH = {"core.config", "core.abilities", "core.model", "core.batch", "core.space"}
"""The contract, through which models and networks are built and called."""


def module_of(path):
    """The module below the library, `verify` for all of its own, None for other code."""
    if not path.startswith(LIBRARY):
        return None
    name = path.removeprefix(LIBRARY).removesuffix(".py").replace("/", ".")
    name = name.removesuffix(".__init__")
    return None if name in PASSED_THROUGH else "verify" if name.startswith("verify") else name


def entered(call, named=()):
    """The modules of the library that code of `verify` calls, directly or through torch; once all
    of `named` are among them, nothing more is noted, which is quicker."""
    found, names = set(), {}

    def name_of(frame):
        path = frame.f_code.co_filename
        if path not in names:
            names[path] = module_of(path)
        return names[path]

    def note(frame, event, _):
        if event != "call" or (name := name_of(frame)) in (None, "verify"):
            return
        before = frame.f_back
        while before is not None and name_of(before) is None:
            before = before.f_back
        if before is not None and name_of(before) == "verify":
            found.add(name)
            if named and found >= named:
                sys.setprofile(earlier)

    earlier = sys.getprofile()
    sys.setprofile(note)
    try:
        row = call()
    finally:
        sys.setprofile(earlier)
    return row, found


@pytest.mark.parametrize("each", ALONE, ids=lambda each: each.listing.name)
def test_a_row_examines_what_it_names(each):
    named = set(each.listing.examines) - {MATHEMATICS}
    row, found = entered(lambda: examine(each), named)
    assert row.passed, row
    assert row.examines, "name a module of the library, or mathematics only"
    assert set(row.examines) - {MATHEMATICS} <= found
    assert row.is_mathematics or found


def test_code_that_is_not_called_is_noticed():
    _, found = entered(lambda: examine(ALONE[0]))
    assert "nn.recurrent" not in found
