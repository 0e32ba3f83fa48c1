"""Metrics are compared in their own direction, kept as JSON and shown with their error."""

import math

import pytest
import torch

from monge.core.gaussian_modes import GaussianModes
from monge.core.metric import Metric, Metrics, with_error


def test_better_is_higher_for_likelihoods_and_lower_for_distances():
    for kind in ("exact", "bound", "estimate"):
        assert Metric(2.0, kind).better_than(Metric(1.0, kind))
        assert not Metric(1.0, kind).better_than(Metric(1.0, kind))
    for kind in ("distance", "loss"):
        assert Metric(1.0, kind).better_than(Metric(2.0, kind))
        assert not Metric(1.0, kind).better_than(Metric(1.0, kind))
    assert Metric(-9.0, "exact").better_than(None)
    for value in (math.nan, math.inf, -math.inf):
        assert not Metric(value, "loss").better_than(None)


def test_a_distance_within_its_error_replaces_the_best():
    best = Metric(0.1, "distance")
    assert Metric(0.2, "distance", 0.3).replaces(best)
    assert not Metric(0.2, "distance", 0.2).replaces(best)
    assert not Metric(0.2, "loss", 0.3).replaces(best)
    assert Metric(0.05, "distance").replaces(best)


def test_a_metric_comes_back_from_its_dictionary():
    metric = Metric(1.5, "bound", 0.25, "energy")
    assert Metric.from_dict(metric.to_dict()) == metric
    good = metric.to_dict()
    for wrong in (None, [], {"value": 1}, good | {"kind": "x"}, good | {"unit": 3}):
        with pytest.raises((ValueError, TypeError)):
            Metric.from_dict(wrong)
    for name, value in (("value", True), ("stderr", "1"), ("more", 1), ("value", None)):
        with pytest.raises(ValueError, match="metric"):
            Metric.from_dict(good | {name: value})


def test_tables_of_metrics():
    table = Metrics(a=Metric(0.25, "distance", 0.01, "energy"), long=Metric(-3.0, "exact"))
    assert repr(table) == "a     0.25 ± 0.01  energy  distance\nlong  -3           nats    exact"
    assert table._repr_html_().count("<tr>") == 2
    assert "&lt;b&gt;" in Metrics({"<b>": Metric(1.0, "loss")})._repr_html_()


def test_a_mixture_of_known_modes_has_its_density():
    centres = torch.tensor([[0.0, 0.0], [3.0, 1.0], [-1.0, 2.0]], dtype=torch.float64)
    x = torch.randn(7, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normal = [
        -((x - c) / 0.6).square() / 2 - math.log(0.6 * (2 * math.pi) ** 0.5) for c in centres
    ]
    each = [log_p.sum(-1) for log_p in normal]
    expected = torch.stack(each).logsumexp(0) - math.log(3)
    torch.testing.assert_close(GaussianModes(centres, 0.6)(x), expected)


def test_an_error_has_four_decimals_or_so_many_digits():
    assert with_error(0.123456) == " ± 0.1235"
    assert with_error(0.123456, 2) == " ± 0.12"
    assert with_error(1234.5, 2) == " ± 1200"
    assert with_error(math.nan) == with_error(None) == with_error(0.0, 2) == ""
