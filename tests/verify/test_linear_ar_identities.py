"""The identities of autoregression hold, and each fails on what was spoiled on purpose."""

import torch

from monge.verify import linear_ar
from monge.verify import linear_ar as series
from monge.verify.framework import examine, identities

OURS = [each for each in identities() if each.listing.group == "linear_ar"]


def failing():
    return {each.listing.name for each in OURS if examine(each).passed is False}


def test_a_stationary_start_where_the_notes_begin_at_the_mean_fails(monkeypatch):
    right = linear_ar.built
    monkeypatch.setattr(series, "built", lambda phi, start: right(phi, "stationary"))
    assert failing() == {"x109_variance_grows_from_the_mean"}


def test_the_mean_as_start_of_a_stationary_series_fails(monkeypatch):
    right = linear_ar.built
    monkeypatch.setattr(series, "built", lambda phi, start: right(phi, "mean"))
    assert failing() == {"x109_exact_likelihood_is_the_product_of_conditionals"}


def test_a_wrong_variance_of_the_first_value_fails(monkeypatch):
    right = linear_ar.autocovariance
    monkeypatch.setattr(series, "autocovariance", lambda phi, v, lags: 1.01 * right(phi, v, lags))
    assert len(failing()) == 4


def test_a_recursion_with_the_wrong_sign_fails(monkeypatch):
    monkeypatch.setattr(series, "is_stationary", lambda phi: (phi.abs() < 1).all(-1))
    assert failing() == {"x109_stationary_where_roots_lie_inside"}
    monkeypatch.setattr(
        series, "levinson", lambda gamma: (gamma[1:] / gamma[0], torch.ones(3, dtype=gamma.dtype))
    )
    assert "x109_yule_walker_equations" in failing()
