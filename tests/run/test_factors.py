"""Metrics of disentanglement on data with known factors."""

import pytest
import torch

from monge.data.batches import Split
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
        index = torch.from_numpy(views[0].index("train"))
        return torch.stack([Split(view, index).whole().x.flatten() for view in views], 1).float()

    monkeypatch.setattr("monge.run.metrics.codes", factors)
    found = factor_metrics(fitted, split="train")
    dci = ("disentanglement", "completeness", "informativeness")
    assert set(found) == {
        "mig",
        *(f"mig.{name}" for name in FACTORS),
        *(f"dci_{name}" for name in dci),
        "beta_vae_score",
    }
    assert found["mig"].value > 0.8
    assert found["dci_disentanglement"].value > 0.7
    assert found["dci_completeness"].value > 0.7
    assert found["beta_vae_score"].value > 0.97
    monkeypatch.setattr("monge.run.metrics.codes", lambda *a: factors(*a).repeat(1, 2))
    twice = factor_metrics(fitted, split="train")
    assert twice["mig"].value == pytest.approx(0)
    assert twice["dci_completeness"].value < found["dci_completeness"].value - 0.1


def test_data_without_factors_have_no_gaps(tmp_path):
    plain = run.fit("ae", "iris", "latent=2", budget="1steps", out=tmp_path / "run")
    assert factor_metrics(plain) == {}
