"""A share of every attack, with a fresh seed that is printed if it fails."""

import os
import random
import subprocess
import sys
from pathlib import Path

import fuzz_api
import hostile_data
import hostile_runs
import pytest
import resumes
import save_crashes
import surroundings
import wrong_commands

from monge import registry
from monge.core.files import replacing
from monge.train import checkpoint
from monge.train.trainer import EMA


@pytest.fixture
def seed():
    return random.SystemRandom().randrange(10**6)


def run_script(name, tries, seed):
    """An attack whose processes are forked, in a process without threads."""
    return subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name(name)),
            f"--tries={tries}",
            f"--seed={seed}",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_hostile_run_folders_are_used_or_refused_in_a_sentence(seed):
    assert hostile_runs.attack(20, seed) == [], f"seed {seed}"


def test_a_foreign_error_is_found(monkeypatch):
    monkeypatch.setattr(hostile_runs, "use", lambda folder: {}["x"])
    monkeypatch.setattr(hostile_runs, "use_comparison", lambda folder: {}["x"])
    assert len(hostile_runs.attack(2, 0)) == 2


def test_hostile_data_are_read_or_refused_in_a_sentence(seed):
    assert hostile_data.attack(20, seed) == [], f"seed {seed}"


def test_code_that_runs_and_markup_of_names_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(
        hostile_data, "use", lambda path, fitted, out: (out.parent / "ran").mkdir()
    )
    assert len(hostile_data.attack(2, 0)) == 2
    for name in hostile_data.MARKUP:
        (tmp_path / "page.html").write_text(f"<p>{name}</p>")
        with pytest.raises(AssertionError):
            hostile_data.check_page(tmp_path / "page.html")


def test_calls_with_random_arguments_raise_only_errors_of_ours(seed):
    assert fuzz_api.attack(20, seed) == [], f"seed {seed}"


def test_a_call_that_raises_another_error_is_found(monkeypatch):
    monkeypatch.setattr(fuzz_api, "calls", lambda folder: {"call": lambda draw: {}["x"]})
    assert fuzz_api.attack(3, 0)


def test_wrong_command_lines_end_in_a_sentence(seed):
    assert wrong_commands.attack(20, seed) == [], f"seed {seed}"
    more = [wrong_commands.mixed(random.Random(seed + place)) for place in range(15)]
    assert wrong_commands.attack_cases(more, must_fail=False) == [], f"seed {seed}"


def test_a_command_that_succeeds_where_it_should_fail_is_found():
    assert wrong_commands.attack_cases([["models"]], must_fail=True) != []


def test_a_run_resumes_after_a_crash_at_any_write(seed):
    assert save_crashes.attack(8, seed) == [], f"seed {seed}"


def test_a_checkpoint_that_is_written_in_place_is_found(monkeypatch):
    def in_place(path):
        yield path

    monkeypatch.setattr(checkpoint, "replacing", save_crashes.contextlib.contextmanager(in_place))
    assert checkpoint.replacing is not replacing
    assert save_crashes.attack(30, 0)


def test_a_model_resumes_at_any_step(seed):
    assert resumes.attack(2, seed, smallest=(True,)) == [], f"seed {seed}"


@pytest.mark.slow
def test_every_model_resumes_at_any_step(seed):
    assert resumes.attack(2 * len(registry.entries()), seed) == [], f"seed {seed}"


def test_an_average_that_is_not_restored_is_found(monkeypatch):
    monkeypatch.setattr(EMA, "restore", lambda self, weights: None)
    assert resumes.difference("autoregressive.made", True, 3, random.Random(0)) is not None


def test_kills_lose_nothing(seed):
    done = run_script("kills.py", 2, seed)
    assert done.returncode == 0, f"seed {seed}: {done.stdout} {done.stderr[-2000:]}"


def test_commands_work_in_odd_surroundings(seed):
    quick = [name for name in surroundings.CASES if name not in surroundings.SLOW]
    assert surroundings.attack(1, seed, quick) == [], f"seed {seed}"


@pytest.mark.slow
def test_commands_work_in_all_odd_surroundings():
    done = run_script("surroundings.py", 100, 0)
    assert done.returncode == 0, f"{done.stdout} {done.stderr[-2000:]}"


@pytest.mark.slow
def test_many_kills_lose_nothing(seed):
    done = run_script("kills.py", 100, seed)
    assert done.returncode == 0, f"seed {seed}: {done.stdout} {done.stderr[-2000:]}"
