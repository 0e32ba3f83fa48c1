"""Tests import the small worlds by name, write no runs but their own, and know no deadline."""

import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("monge", deadline=None)  # a busy machine is no failure
settings.load_profile("monge")
sys.path.insert(0, str(Path(__file__).parent))

SUBJECTS = {"test_contract.py", "test_contract_sequences.py", "test_verify.py"}
"""Files whose tests share a model with those of the same parameters; others share by file."""
NUMBERS = itertools.count()


class Sharing(LoadScopeScheduling):
    """Tests that share what is dear to make run in one process, which makes it once."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        _, _, subject = test.partition("[")
        return (subject or test) if Path(file).name in SUBJECTS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Sharing(config, log)


def pytest_collection_modifyitems(items):
    """Small pieces of work come last, so that no process is left alone with a large one."""
    items.sort(key=lambda item: item.path.name in SUBJECTS)


@pytest.fixture(autouse=True)
def _runs_apart(request, tmp_path_factory, monkeypatch):
    """Each test has a place of its own, which is made when a run is."""
    own = "tmp_path" in request.fixturenames
    place = (
        request.getfixturevalue("tmp_path") / "runs"
        if own
        else tmp_path_factory.getbasetemp() / f"runs-{next(NUMBERS)}"
    )
    monkeypatch.setenv("MONGE_RUNS", str(place))
    monkeypatch.delenv("MONGE_DATA", raising=False)
