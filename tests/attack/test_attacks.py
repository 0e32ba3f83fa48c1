"""A share of every attack, with a fresh seed that is printed if it fails."""

import random

import hostile_runs
import pytest
import wrong_commands


@pytest.fixture
def seed():
    return random.SystemRandom().randrange(10**6)


def test_hostile_run_folders_are_used_or_refused_in_a_sentence(seed):
    assert hostile_runs.attack(60, seed) == [], f"seed {seed}"


def test_a_foreign_error_is_found(monkeypatch):
    monkeypatch.setattr(hostile_runs, "use", lambda folder: {}["x"])
    assert len(hostile_runs.attack(2, 0)) == 2


def test_wrong_command_lines_end_in_a_sentence(seed):
    chance = random.Random(seed)
    quick = [case for case in wrong_commands.WRONG if "digits" not in case or case.count(" ") < 3]
    cases = [case.split(" ") for case in chance.sample(quick, 15)]
    assert wrong_commands.attack(cases, must_fail=True) == [], f"seed {seed}"
    more = [wrong_commands.mixed(chance) for _ in range(15)]
    assert wrong_commands.attack(more, must_fail=False) == [], f"seed {seed}"


def test_a_command_that_succeeds_where_it_should_fail_is_found():
    assert wrong_commands.attack([["models"]], must_fail=True) != []
