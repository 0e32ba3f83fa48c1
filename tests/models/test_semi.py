"""Learning from rows without a label: what the contract test cannot check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.data import loading as data
from monge.models._views import cut_out, transform_images
from monge.models.predict.mlp import MLPPredictor
from monge.models.predict.semi import SemiSupervised
from monge.nn.mlp import MLP

METHODS = ("fixmatch", "pseudo_label", "mean_teacher")
NET = MLPPredictor.Config(net=MLP.Config(width=16, depth=1, init="he"))


def few(method="fixmatch", **settings):
    """A model of two classes, and rows of which every fourth has a label."""
    x = torch.randn(64, 2, generator=make_generator(0))
    inputs = Space(kind="real", shape=(2,), name="x", mean=(0.0, 0.0), scale=(1.0, 1.0))
    space = Space(kind="label", size=2, name="y", rows=64, given={"x": inputs})
    known = torch.arange(64) % 4 == 0
    y = torch.where(known, (x[:, 0] > 0).long(), 0)
    torch.manual_seed(0)
    model = SemiSupervised.Config(method=method, predictor=NET, **settings).build(space)
    return model, Batch(y, {"x": Batch(x)}, observed=known)


@pytest.mark.parametrize("method", METHODS)
def test_a_hidden_label_is_not_read(method):
    model, batch = few(method, threshold=0.0)
    other = replace(batch, x=torch.where(batch.observed, batch.x, 1))
    for name in model.loss(batch):
        values = []
        for rows in (batch, other):
            torch.manual_seed(1)
            values.append(model.loss(rows)[name])
        assert torch.equal(*values)


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_a_label_move_the_predictor(method):
    model, batch = few(method, threshold=0.0)
    model.predictor.out.weight.data.normal_(generator=make_generator(2))
    model.train()
    term = model.loss(batch)["unlabelled"].mean()
    grads = torch.autograd.grad(term, list(model.predictor.parameters()), allow_unused=True)
    assert sum(float(grad.abs().sum()) for grad in grads if grad is not None) > 0
    labelled = batch[batch.observed]
    assert float(model.loss(labelled)["unlabelled"].detach().mean()) == 0
    without = model.loss(batch[~batch.observed])
    assert float(without["nll"].detach().mean()) == 0


def test_the_loss_of_labels_is_that_of_labelled_rows_alone():
    model, batch = few("pseudo_label")
    model.eval()
    own = model.predictor.loss(batch[batch.observed])["nll"].mean()
    torch.testing.assert_close(model.loss(batch)["nll"].mean(), own)


def test_only_confident_rows_count():
    model, batch = few(threshold=1.0)
    assert float(model.loss(batch)["unlabelled"].detach().mean()) == 0
    model, batch = few(threshold=0.5)
    assert float(model.loss(batch)["unlabelled"].detach().mean()) > 0


def test_the_weight_of_rows_without_a_label_rises():
    model, _ = few(unlabelled_weight=4.0, ramp_up=8)
    assert [model.weight(step) for step in (0, 3, 7, 100)] == [0.5, 2.0, 4.0, 4.0]


def test_no_gradient_passes_the_teacher():
    model, batch = few("mean_teacher")
    assert not any(param.requires_grad for param in model.teacher.parameters())
    before = model.teacher.out.weight.clone()
    model.predictor.out.weight.data.add_(1.0)
    model.move_teacher(batch)
    assert not torch.equal(model.teacher.out.weight, before)


def test_strong_views_of_images_and_of_masked_rows():
    shape = (1, 16, 16)
    image = Space(kind="levels", shape=shape, size=256, name="x", mean=(7.0,), scale=(1.0,))
    space = Space(kind="label", size=2, name="y", rows=64, given={"x": image})
    model = SemiSupervised.Config(predictor=NET, rotate=0, shear=0, zoom=0, shift=0).build(space)
    x = torch.full((32, *shape), 200.0)
    cut = model.augment(Batch(x), image).x
    share = (cut == 7.0).float().mean()
    assert 0.05 < share < 0.17  # a square of 0.4 sides, in part outside
    assert set(cut.unique().tolist()) == {7.0, 200.0}
    seen = torch.rand(32, *shape, generator=make_generator(0)) < 0.5
    hidden = model.augment(Batch(x, observed=seen), image)
    assert hidden.observed is None
    vector = Space(kind="real", shape=(3,), name="v", mean=(0.0,) * 3, scale=(1.0,) * 3)
    rows = torch.arange(96.0).reshape(32, 3)
    mask = rows % 2 == 0
    mixed = model.augment(Batch(rows, observed=mask), vector)
    assert torch.equal(mixed.observed, mixed.x % 2 == 0)  # a value keeps its mask
    assert torch.equal(mixed.x % 3, rows % 3)  # and its column
    assert 0.02 < (mixed.x != rows).float().mean() < 0.5


def test_images_are_sheared_and_cut():
    images = torch.zeros(8, 1, 9, 9)
    images[:, :, :, 4] = 1.0
    still = transform_images(images, 0.0, 0.0, 0.0, 0.0)
    torch.testing.assert_close(still, images)
    slanted = transform_images(images, 0.0, 0.0, 0.0, 0.8)
    torch.testing.assert_close(slanted[..., 4, :], images[..., 4, :])  # the middle row stays
    assert (slanted[..., 0, :] - images[..., 0, :]).abs().mean() > 0.02
    assert (cut_out(images + 5, 1.0, torch.zeros(())) == 0).flatten(1).any(1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["predictor=logistic"], "logistic"),
        (["predictor=perceptron"], "perceptron"),
        (["predictor=vae"], "vae"),
        (["predictor=recurrent", "method=fixmatch"], "sequence"),
        (["predictor.members=3"], "members"),
    ],
)
def test_other_predictors_are_refused(settings, message):
    table = pd.DataFrame({"x": np.arange(40.0), "y": ["a", "b"] * 20})
    with pytest.raises(UsageError, match=message):
        monge.fit("predict.semi", table, *settings, target="y", budget="2steps")


def test_runs_inside_the_predictor_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = monge.fit("predict.mlp", "iris", target="label", budget="2steps", progress=False)
    with pytest.raises(UsageError, match=r"predictor\.start"):
        monge.fit("predict.semi", "iris", f"predictor.start={run.folder}", budget="2steps")


def rows(n=80, empty=0.5):
    """A table whose last column has empty cells."""
    x = np.random.default_rng(0).normal(size=(n, 2))
    y = np.where(x[:, 0] > 0, "up", "down").astype(object)
    y[np.random.default_rng(1).random(n) < empty] = None
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})


def test_training_rows_without_a_target_stay_and_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = data.open(rows())
    view, plain = (source.view(target="y", unlabelled=each) for each in (True, False))
    count = len(source.splits["train"])
    assert view.space.rows == len(view.training()) == count
    assert len(plain.training()) == len(view.split("train")) < count
    whole = view.training().whole()
    assert whole.observed.tolist() == view.has_target[source.rows_of("train")].tolist()
    for split in ("valid", "test"):  # held-out rows have a value
        assert len(view.split(split)) == len(plain.split(split))
        assert view.split(split).whole().observed.all()
    (note,) = [note for note in view.notes if "learned from" in note]
    assert str(int((~whole.observed).sum())) in note
    run = monge.fit("predict.semi", rows(), target="y", budget="3steps", progress=False)
    again = monge.load(run.folder)
    assert len(again.open_view(rows()).training()) == count
    assert len(run.predict()) == len(source.splits["test"])  # those without a value too


def test_labels_are_hidden_from_a_model_that_learns_without_them():
    source = data.open("digits", "labels=100", "labelled_share=0.25")
    view = source.view(target="label", unlabelled=True)
    assert len(view.split("train")) == 100
    batch = view.training().whole()
    known = batch.observed
    assert float(known.double().mean()) == pytest.approx(0.25, abs=0.01)
    assert (batch.x[~known] == 0).all()
    assert (batch.x[known].bincount(minlength=10) > 0).all()
    assert len(view.training().index.unique()) == len(source.splits["train"])
    given = source.view(given=["label"], unlabelled=True).training().whole()
    assert given.observed is None
    assert torch.equal(given.given["label"].observed.sort().values, known.sort().values)
    (part,) = view.training().parts(10**6)
    assert torch.equal(part.whole().observed, known)


def test_the_share_of_labelled_rows_needs_rows_without_a_label():
    source = data.open("digits", "labels=100", "labelled_share=0.25")
    with pytest.raises(UsageError, match="labelled_share"):
        source.view(target="label").training()
