"""Mutual information gaps of data with known factors."""

import pytest
import torch

from monge.data.dataset import Split
from monge.run import run
from monge.run.metrics import factor_metrics

FACTORS = ("across", "down", "size", "rotation")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("factors") / "run"
    return run.fit("ae", "shapes", "data.rows=300", "latent=4", budget="2steps", out=folder)


def test_gaps_are_one_if_every_factor_has_a_coordinate_and_zero_if_two_share_it(
    fitted, monkeypatch
):
    def factors(model, rows: Split):
        views = [fitted.source().view(event=name) for name in FACTORS]
        index = views[0].index("train")
        return torch.stack([Split(view, index).whole().x.flatten() for view in views], 1).float()

    monkeypatch.setattr("monge.run.metrics.codes", factors)
    found = factor_metrics(fitted, split="train")
    assert set(found) == {"mig", *(f"mig.{name}" for name in FACTORS)}
    assert found["mig"].value > 0.8
    monkeypatch.setattr("monge.run.metrics.codes", lambda *a: factors(*a).repeat(1, 2))
    assert factor_metrics(fitted, split="train")["mig"].value == pytest.approx(0)


def test_data_without_factors_have_no_gaps(tmp_path):
    plain = run.fit("ae", "iris", "latent=2", budget="1steps", out=tmp_path / "run")
    assert factor_metrics(plain) == {}
