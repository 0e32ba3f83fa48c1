"""The semi-supervised VAE: what the contract test cannot check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import monge
from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.predict.m2 import M2

INPUTS = Space(kind="real", shape=(3,), name="x", mean=(0.0,) * 3, scale=(1.0,) * 3)


def few(kind="label"):
    """A model of three classes, or of two, and rows of which every fourth has a label."""
    size = {"label": 3, "binary": 2}[kind]
    space = Space(kind=kind, size=size, name="y", rows=64, given={"x": INPUTS})
    torch.manual_seed(0)
    model = M2.smallest_config(space).build(space).double()
    x = torch.randn(64, 3, dtype=torch.float64, generator=make_generator(0))
    known = torch.arange(64) % 4 == 0
    y = torch.where(known, torch.arange(64) // 4 % size, 0)
    y = y if kind == "label" else y.double()
    return model, Batch(y, {"x": Batch(x)}, observed=known)


@pytest.mark.parametrize("kind", ["label", "binary"])
def test_a_hidden_label_is_not_read(kind):
    model, batch = few(kind)
    other = replace(batch, x=torch.where(batch.observed, batch.x, 1))
    values = []
    for rows in (batch, other):
        torch.manual_seed(1)
        values.append(model.loss(rows))
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])


def test_terms_by_hand():
    """Every row without a label is scored given every class."""
    model, batch = few()
    model.initialise_from_data(batch)
    model.eval()
    torch.nn.init.normal_(model.predictor.out.weight)  # so that rows have different classes
    torch.manual_seed(2)
    losses = model.loss(batch)
    labelled, rest = batch[batch.observed], batch[~batch.observed]
    torch.manual_seed(2)  # noise is drawn in the same order
    own = sum(model.vae.loss(Batch(labelled.given["x"].x, {"y": Batch(labelled.x)})).values())
    own = own - model.log_prior[labelled.x]
    torch.testing.assert_close(losses["labelled"][0], own.sum() / 64)
    log_q = model.marginals(rest.given).probabilities[0].log()
    rows = torch.arange(len(rest)).repeat_interleave(3)
    classes = torch.arange(3).repeat(len(rest))
    each = sum(model.vae.loss(Batch(rest.given["x"].x[rows], {"y": Batch(classes)})).values())
    free = (log_q.exp() * (each.reshape(-1, 3) - model.log_prior + log_q)).sum(1)
    torch.testing.assert_close(losses["unlabelled"][0], free.sum() / 64)
    nll = -model.likelihood(labelled).value.mean()
    torch.testing.assert_close(losses["nll"][0], model.config.classifier_weight * nll)


def test_batches_of_one_sort_of_rows_have_a_loss():
    model, batch = few()
    for rows in (batch[batch.observed], batch[~batch.observed]):
        assert all(term.isfinite().all() for term in model.loss(rows).values())


def test_the_prior_of_classes_is_that_of_labelled_rows():
    model, batch = few()
    model.initialise_from_data(batch)
    counts = torch.bincount(batch.x[batch.observed], minlength=3) + 1.0
    torch.testing.assert_close(model.log_prior.exp(), (counts / counts.sum()).double())


def test_inputs_of_a_class_are_those_of_the_class(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    frame = pd.DataFrame({"a": 6 * y + rng.normal(size=300), "b": rng.normal(size=300)})
    frame["y"] = np.where(y, "up", "down").astype(object)
    frame.loc[rng.random(300) < 0.8, "y"] = None
    run = monge.fit("predict.m2", frame, target="y", budget="150steps", progress=False)
    assert run.evaluate()["accuracy"].value > 0.9
    means = [run.model.sample_inputs(torch.full((200,), code))[:, 0].mean() for code in (0, 1)]
    assert means[1] - means[0] > 3  # down, up


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (["classifier=logistic"], UsageError),
        (["classifier=cnn"], UsageError),
        (["vae=hvae"], UsageError),
        (["vae.total_correlation=1"], UsageError),
        (["vae.free_bits=1"], UsageError),
    ],
)
def test_other_parts_are_refused(settings, error):
    with pytest.raises(error):
        monge.fit("predict.m2", "iris", *settings, target="label", budget="2steps")


def test_other_targets_are_refused():
    for space in (
        Space(kind="binary", shape=(5,), name="y", given={"x": INPUTS}),
        Space(kind="label", size=2, name="y", given={"x": INPUTS, "z": INPUTS}),
        Space(kind="label", size=2, name="y"),
    ):
        with pytest.raises(DataError, match=r"m2"):
            monge.registry.check_compatible("m2", M2, space)
