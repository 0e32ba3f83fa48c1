"""Tests import the helper modules of this folder by name, write only to their own runs folder and
have no deadline per example."""

import gc
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

gc.disable()  # until all tests are collected: none of them is garbage
settings.register_profile("monge", deadline=None)  # a busy machine is no failure
settings.load_profile("monge")
sys.path.insert(0, str(Path(__file__).parent))

SUBJECTS = {"test_contract.py", "test_contract_sequences.py", "test_verify.py"}
"""Files whose tests share a trained model between equal parameters; others share per file."""
NUMBERS = itertools.count()


class SharedFixtureScheduling(LoadScopeScheduling):
    """Tests that share something expensive run in one process, which makes it once."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        _, _, subject = test.partition("[")
        return (subject or test) if Path(file).name in SUBJECTS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return SharedFixtureScheduling(config, log)


def pytest_collection_modifyitems(items):
    """Small pieces of work come last, so that no process ends long after the others."""
    items.sort(key=lambda item: item.path.name in SUBJECTS)


def pytest_collection_finish():
    """Modules and tests, which stay, are not looked through for garbage again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _own_runs_folder(request, tmp_path_factory, monkeypatch):
    """Each test has its own runs folder, made with the first run."""
    own = "tmp_path" in request.fixturenames
    folder = (
        request.getfixturevalue("tmp_path") / "runs"
        if own
        else tmp_path_factory.getbasetemp() / f"runs-{next(NUMBERS)}"
    )
    monkeypatch.setenv("MONGE_RUNS", str(folder))
    monkeypatch.delenv("MONGE_DATA", raising=False)


@pytest.fixture
def bf16():
    """Leaves a test out where the processor cannot multiply matrices in bfloat16."""
    from monge.train.precision import processor_has_bf16

    if not processor_has_bf16():
        pytest.skip("this processor has no products of bfloat16 matrices")
