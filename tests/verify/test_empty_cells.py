"""The identities of empty cells hold, and each fails on what was spoiled on purpose."""

import pytest
import torch

from monge.prob.distributions import CategoricalDistribution
from monge.prob.mixed_number import MixedNumber
from monge.verify import empty_cells


@pytest.mark.parametrize("owner", [MixedNumber, CategoricalDistribution])
def test_a_value_that_is_not_given_present_fails_x115(monkeypatch, owner):
    monkeypatch.setattr(owner, "present", lambda self, params: params)
    assert not empty_cells.x115_a_cell_is_its_flag_and_its_value().passed


@pytest.mark.parametrize("owner", [MixedNumber, CategoricalDistribution])
def test_a_flag_that_is_left_out_fails_x115(monkeypatch, owner):
    """The likelihood of the values alone, as if every cell were present."""
    monkeypatch.setattr(owner, "log_present", lambda self, params: torch.zeros(params.shape[:-1]))
    assert not empty_cells.x115_a_cell_is_its_flag_and_its_value().passed


def test_a_share_that_is_kept_for_empty_cells_fails_x116(monkeypatch):
    """One cell in a hundred is taken to be empty, however many rows have none."""
    true = MixedNumber.fit

    def spoiled(self, x, seen):
        true(self, x, seen)
        if self.optional:
            self.share[:, -1] = 0.01 * self.share.sum(1)

    monkeypatch.setattr(MixedNumber, "fit", spoiled)
    assert not empty_cells.x116_a_flag_that_is_always_present_costs_nothing().passed


def test_a_value_that_depends_on_the_flag_of_a_full_column_fails_x116(monkeypatch):
    true = MixedNumber.log_prob
    monkeypatch.setattr(
        MixedNumber, "log_prob", lambda self, params, x: true(self, params, x + 1e-6)
    )
    assert not empty_cells.x116_a_flag_that_is_always_present_costs_nothing().passed
