"""The identities of ensembles hold, and each fails on what was spoiled on purpose."""

import torch

from monge.verify import ensemble


def test_noise_that_leans_fails_x46(monkeypatch):
    """With a mean of its own the noise belongs to the bias too, and the cross term stays."""
    monkeypatch.setattr(ensemble, "NOISE", torch.tensor([-0.5, 0.7], dtype=torch.float64))
    assert not ensemble.x46_error_is_bias_variance_and_noise().passed


def test_bootstraps_that_are_not_independent_fail_x47(monkeypatch):
    right = ensemble.bootstrap
    monkeypatch.setattr(ensemble, "bootstrap", lambda seed, *rest: right(seed // 2, *rest))
    assert not ensemble.x47_bagging_leaves_the_correlated_variance().passed


def test_draws_without_replacement_fail_x47(monkeypatch):
    monkeypatch.setattr(ensemble, "bootstrap", lambda seed, index, n: torch.randperm(n))
    assert not ensemble.x47_distinct_rows_of_a_bootstrap().passed
    monkeypatch.setattr(ensemble, "bootstrap", lambda seed, index, n: index // 2 * 2)
    assert not ensemble.x47_distinct_rows_of_a_bootstrap().passed
