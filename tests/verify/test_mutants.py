"""Every fault that is injected in memory is caught by its check, and leaves nothing behind."""

import json
from dataclasses import replace

import pytest

from monge.cli.main import attempt as run
from monge.nn.layers import dropout
from monge.verify import mutants
from monge.verify.framework import listed
from monge.verify.mutants import (
    MUTANTS,
    Mutant,
    StaleMutantError,
    altered,
    attempt,
    check_of,
    function_at,
    injected,
)

SLOW = {"first weights kept", "gain of another function", "attention weights unscaled"}
"""Faults whose checks take more than a second."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.name in SLOW else [])
        for each in MUTANTS
    ],
)
def test_a_fault_is_caught_by_its_check(mutant):
    result = attempt(mutant)
    assert result.caught, result
    assert result.without is not None
    assert result.without <= result.tolerance


def test_faults_are_named_once_and_checked_by_what_exists():
    names = [each.name for each in MUTANTS]
    assert len(names) == len(set(names))
    known = {each.name: each for each in listed()}
    for each in MUTANTS:
        assert each.check in known
        assert (check_of(each).needs is not None) == bool(each.model)
        assert not known[each.check].is_mathematics
        assert each.statement.endswith(".")


HARMLESS = Mutant(
    "harmless",
    "Nothing changes.",
    "nn.layers.dropout:drop_elements",
    "MASK_LEVELS / (MASK_LEVELS - parts)",
    "1.0 * MASK_LEVELS / (MASK_LEVELS - parts)",
    "x27_dropout_keeps_the_mean",
)


def test_a_change_without_effect_is_not_caught():
    result = attempt(HARMLESS)
    assert not result.caught
    assert result.without == result.with_fault


def test_the_code_is_put_back_even_after_an_error():
    right = dropout.drop_elements.__code__

    def interrupted():
        with injected(HARMLESS):
            assert dropout.drop_elements.__code__ is not right
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert dropout.drop_elements.__code__ is right


def test_code_that_has_changed_is_an_error():
    function = function_at("nn.layers.dropout:drop_elements")
    with pytest.raises(StaleMutantError, match="drop_elements"):
        altered(function, "what is not there", "1.0")
    with pytest.raises(StaleMutantError, match=r"\d times"):
        altered(function, "x", "y")
    result = attempt(replace(HARMLESS, old="what is not there"))
    assert not result.caught
    assert "drop_elements" in result.reason


@pytest.mark.parametrize(
    ("where", "piece"),
    [
        ("solve.transport.sinkhorn:Plan.sharp", "self.value"),  # a property
        ("models.latent.vae:VAE.smallest_config", "cls.Config"),  # a class method
        ("models.adversarial._lipschitz:Clipping.project", "-bound"),  # decorated
        ("models.latent.vae:VAE.__init__", "self.masking = None"),  # uses super()
        ("core.ensemble:StackedModels.buffers", "found.items()"),  # a cached property
    ],
)
def test_functions_of_every_kind_can_be_altered(where, piece):
    function = function_at(where)
    code = altered(function, piece, piece)
    assert (code.co_name, code.co_freevars) == (function.__name__, function.__code__.co_freevars)
    assert code.co_varnames == function.__code__.co_varnames


def test_the_command_shows_each_fault_with_its_check(capsys):
    chosen = [
        each.name for each in MUTANTS if each.name in ("reset gate scaled", "kernel flipped")
    ]
    assert run(["verify", "--mutants", *chosen, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["caught"], value["of"]) == (2, 2)
    assert {row["name"] for row in value["mutants"]} == set(chosen)
    for row in value["mutants"]:
        assert row["without"] <= row["tolerance"] < row["with_fault"]
    assert run(["verify", "--mutants", "nonsense"]) == 2


def test_a_fault_that_is_not_caught_is_an_exit_code(capsys, monkeypatch):
    monkeypatch.setattr(mutants, "MUTANTS", (HARMLESS,))
    monkeypatch.setattr("monge.cli.verify.MUTANTS", (HARMLESS,))
    monkeypatch.setattr("monge.cli.verify.attempt_all", lambda chosen: map(attempt, chosen))
    assert run(["verify", "--mutants"]) == 1
    assert "harmless" in capsys.readouterr().out
