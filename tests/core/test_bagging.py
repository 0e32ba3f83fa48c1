"""Bootstraps of training rows, and the rows that a member has not seen."""

from dataclasses import replace

import pytest
import small_data
import torch
from ensembles import mixture, regression, trained

import monge
from monge import registry
from monge.cli.main import attempt
from monge.core.ensemble import Ensemble, bootstrap
from monge.core.errors import UsageError
from monge.core.train_config import TrainConfig
from monge.evaluate.likelihood import chunks
from monge.evaluate.out_of_bag import out_of_bag
from monge.train.trainer import Trainer


def test_a_bootstrap_samples_with_replacement_and_knows_its_rows():
    every = torch.arange(1000)
    bag = bootstrap(7, every, 1000)
    assert torch.equal(bag, torch.cat([bootstrap(7, part, 1000) for part in every.split(300)]))
    assert 0.58 < bag.unique().numel() / 1000 < 0.68
    assert not torch.equal(bag, bootstrap(8, every, 1000))


@pytest.mark.parametrize(("name", "kind"), [("made", "real"), ("gaussian", "real")])
def test_bagged_members_see_their_bag_alone(name, kind, monkeypatch):
    model, rows = mixture(name, kind, members=2, steps=0, bag=True)
    seen = {}
    updates = [
        replace(
            update,
            loss=lambda batch, update=update: (
                seen.setdefault(update.name, []).append(batch.row),
                update.loss(batch),
            )[1],
        )
        for update in model.updates()
    ]
    monkeypatch.setattr(model, "updates", lambda: updates)
    trainer = Trainer(model, rows, TrainConfig(batch_size=100))
    for _ in range(12):
        trainer.train_step(1.0)
    out = model.left_out(torch.arange(1000))  # (K, n)
    for own, batches in zip(out, seen.values(), strict=True):
        assert own[torch.cat(batches)].sum() == 0
        assert 0.3 < own.double().mean() < 0.45


def test_out_of_bag_scores_use_only_members_that_have_not_seen_the_row():
    model, rows = mixture("gaussian", "real", members=3, steps=1, bag=True)
    train = small_data.Rows(rows.all[:600])
    batch = train.whole()
    found, out = model.out_of_bag(batch).value, model.left_out(batch.row)
    each = torch.stack([member.likelihood(batch).value for member in model.members])
    for row in range(40):
        mine = each[out[:, row], row].exp()
        assert (
            found[row].isnan()
            if not len(mine)
            else found[row].exp().item() == pytest.approx(mine.mean().item())
        )
    assert found.isnan().double().mean().item() == pytest.approx(0.632**3, abs=0.08)
    (score,) = out_of_bag(model, chunks(train)).values()
    assert score.value == pytest.approx(found[~found.isnan()].mean().item())
    assert out_of_bag(mixture("gaussian", "real", steps=1)[0], chunks(train)) == {}


def test_out_of_bag_error_is_higher_than_the_error_on_rows_that_were_seen():
    space, batch = regression(200)
    config = Ensemble.Config(
        member=registry.find("predict.mlp").smallest_config(space), members=4, bag=True
    )
    train_config = TrainConfig(batch_size=200, lr=2e-2, warmup=0)
    model = trained(config, space, batch, 150, train_config).model.eval()
    rows = small_data.Rows(batch.double())
    measured = out_of_bag(model, chunks(rows))
    own = (model.mean(rows.all.given) - rows.all.x).square().mean().sqrt().item()
    assert set(measured) == {"out_of_bag_log_likelihood", "out_of_bag_rmse"}
    assert measured["out_of_bag_rmse"].value > own


def test_bags_without_an_ensemble_are_refused(capsys):
    with pytest.raises(UsageError, match="--ensemble 5"):
        monge.fit("made", "moons", bag=True)
    assert attempt(["fit", "made", "moons", "--bag"]) == 2
    assert attempt(["fit", "--resume", "x", "--ensemble", "2"]) == 2
    with pytest.raises(UsageError, match="members=0"):
        Ensemble.Config(member=registry.find("made").Config(), members=0)
