"""Identities of every model hold on all of them, fitted ones included, and fail on broken ones."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import monge
from monge import registry
from monge.cli.main import attempt
from monge.core.abilities import Likelihood
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.verify import subjects
from monge.verify._density import Density
from monge.verify.framework import hold, identities

OURS = [each for each in identities() if each.listing.group == "any_model"]
CLOSED = {
    "autoregressive.count_table",
    "baseline.chow_liu",
    "baseline.gaussian",
    "baseline.independent",
    "baseline.mixture",
    "diffusion.consistency",  # a loss without the gradient of one of its sides
    "predict.perceptron",
    "sequence.linear_ar",
    "transport.entropic_map",
    "transport.sinkhorn_generator",  # a plan found to a tolerance
    "sequence.direct_forecast",  # several losses
    "sequence.recursive_forecast",
}
"""Models whose gradients are not examined."""


def rows_of(members, prefix="x"):
    return [
        row
        for each in OURS
        if each.listing.name.startswith(prefix)
        for row in hold(each, members, every=True)
    ]


LONG = {
    "diffusion.ddpm",
    "diffusion.score_sde",
    "diffusion.vdm",
    "energy.ebm",
    "latent.latent_diffusion",
}
"""Models whose checks take seconds; `monge verify --all` has them too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(entry.name, marks=[pytest.mark.slow] if entry.name in LONG else [])
        for entry in registry.entries()
    ],
)
def test_they_hold_on_every_model(name):
    members = list(subjects.small(name)[:1])
    assert members
    rows = rows_of(members)
    assert not [row for row in rows if row.passed is False]
    passed = {row.id for row in rows if row.passed}
    assert passed >= {"X123"}
    if name not in CLOSED and name not in ("adversarial.gan", "adversarial.wgan"):
        assert "X119" in passed


def made():
    return subjects.subject(
        "made", registry.find("made").smallest_config(subjects.SPACES[0]), subjects.SPACES[0]
    )


def failed(subject, prefix):
    return {row.id for row in rows_of([subject], prefix) if row.passed is False}


def test_a_likelihood_that_reads_other_rows_fails():
    subject = made()
    right = subject.model.likelihood
    subject.model.likelihood = lambda batch: Likelihood(
        right(batch).value - right(batch).value.mean(), "exact"
    )
    assert failed(subject, "x120") == {"X120"}


def test_a_mean_that_reads_other_rows_fails():
    subject = next(subjects.fresh("transport.entropic_map"))
    right = subject.model.mean
    subject.model.mean = lambda given: right(given) - right(given).mean(0)
    assert failed(subject, "x120_means") == {"X120"}
    subject.model.mean = right
    assert failed(subject, "x120_means") == set()


def test_samples_that_ignore_the_generator_fail():
    subject = made()
    right, count = subject.model.sample, iter(range(100))
    subject.model.sample = lambda n, given=None, options=None, generator=None: right(
        n, given, options, make_generator(next(count))
    )
    assert failed(subject, "x121_samples") == {"X121"}
    subject.model.sample = lambda n, *rest, **named: right(n) + 2
    assert failed(subject, "x121_samples") == {"X121"}


def test_a_state_that_is_not_saved_fails():
    subject = made()
    right, shift = subject.model.loss, torch.ones(())
    subject.model.loss = lambda batch: {"nll": right(batch)["nll"] + shift}
    assert failed(subject, "x123_rebuilt_models_have_the_same_loss") == {"X123"}


def flow():
    space = subjects.SPACES[4]
    return subjects.subject("maf", registry.find("maf").smallest_config(space), space)


SLOPE = "x150_log_p_has_no_slope_on_its_own_samples"


@pytest.mark.parametrize("make", [made, flow])
def test_a_density_that_does_not_sum_to_one_fails(make):
    subject = make()
    right, params = subject.model.likelihood, list(subject.model.parameters())
    total = lambda: sum(each.sum() for each in params)  # noqa: E731
    subject.model.likelihood = lambda batch: Likelihood(
        right(batch).value + 0.5 * total(), "exact"
    )
    assert failed(subject, SLOPE) == {"X150"}


def test_samples_that_are_drawn_from_another_density_fail():
    subject = flow()
    right = subject.model.sample
    subject.model.sample = lambda *asked, **named: 1.2 * right(*asked, **named)
    assert failed(subject, SLOPE) == {"X150"}


def test_sequences_that_end_alike_are_one_state():
    space = Space(kind="tokens", shape=(3,), size=3, end=2)
    states = Density(space, lambda x: x.sum(1)).states().long().tolist()
    bodies = [[], *[[a] for a in (0, 1)], *[[a, b] for a in (0, 1) for b in (0, 1)]]
    due = [[*body, *[2] * (3 - len(body))] for body in bodies]
    due += [[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    assert sorted(states) == sorted(due)


def test_weights_are_put_back_after_their_slopes_are_taken():
    subject = made()
    before = [each.clone() for each in subject.model.parameters()]
    rows_of([subject], "x119")
    rows_of([subject], SLOPE)
    assert all(map(torch.equal, before, subject.model.parameters()))


FITTED = {
    "autoregressive.made": ("moons", ("width=16",)),
    "baseline.gaussian": ("moons", ()),
    "energy.rbm": ("digits+binarise", ("hidden=8",)),
    "latent.vae": ("moons", ("net.width=16",)),
    "flow.coupling": ("moons", ("net.width=8", "layers=2")),
    "diffusion.vdm": ("moons", ("net.width=16", "net.depth=2")),
    "adversarial.gan": ("moons", ()),
    "represent.contrastive": ("digits", ()),
    "transport.sinkhorn_generator": ("moons", ()),
    "predict.mlp": ("digits --given image", ()),
    "sequence.rnn": ("digits", ("net.width=8",)),
}
"""A model of each family, the data it is fitted to, and settings that make it small."""


def check_fitted(run, capsys):
    """At least five identities hold on the weights of a run, none fails, and what is skipped has a
    reason."""
    capsys.readouterr()
    assert attempt(["verify", str(run.folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert not [row for row in rows if row["passed"] is False]
    assert sum(row["passed"] is True for row in rows) >= 5
    assert all(len(row["skipped"].split()) > 2 for row in rows if row["skipped"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("diffusion.vdm",) else [])
        for name in FITTED
    ],
)
def test_a_fitted_model_of_every_family_has_five_rows(name, capsys):
    data, settings = FITTED[name]
    data, _, given = data.partition(" --given ")
    event = {"event": "label", "given": [given]} if given else {}
    check_fitted(monge.fit(name, data, *settings, budget="3steps", **event), capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [entry.name for entry in registry.entries()])
def test_every_fitted_model_has_five_rows(name, capsys):
    """With default settings, on the data of its picture in the documentation."""
    path = Path(__file__).parents[2] / "scripts" / "gallery.py"
    spec = importlib.util.spec_from_file_location("gallery", path)
    gallery = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = gallery  # where dataclasses look their types up
    spec.loader.exec_module(gallery)
    plan = gallery.plan_of(registry.entry(name))
    data = plan.data() if callable(plan.data) else plan.data
    check_fitted(monge.fit(name, data, *plan.settings, **plan.options, budget="3steps"), capsys)


def test_every_family_is_fitted():
    assert {name.partition(".")[0] for name in FITTED} == {
        entry.name.partition(".")[0] for entry in registry.entries()
    }
