"""Identities of codes hold on every family of posterior, and fail on what was spoiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from monge import registry
from monge.core.abilities import HasLevels
from monge.core.rng import make_generator
from monge.models.latent import _posterior
from monge.models.latent._posterior import FullCovariancePosterior, IAFPosterior
from monge.models.latent.vae import MixturePrior, VampPrior
from monge.nn.autoregressive.masked_mlp import MaskedMLP
from monge.verify import inference, subjects
from monge.verify.framework import examine, hold, identities, listed

BINARY, *_, REAL_GIVEN = subjects.SPACES
FLOW = IAFPosterior.Config(steps=2, context=2, maps=MaskedMLP.Config(width=8, depth=1))


def subject(name, space=BINARY, **fields):
    """A fresh subject that a test may spoil."""
    return subjects.subject(
        name, replace(registry.find(name).smallest_config(space), **fields), space
    )


def rows_of(member, *ids):
    """The outcome of the identities of these ids that concern the member, by name."""
    rows = {
        each.listing.name: row
        for each in identities()
        if each.needs and each.listing.id in ids
        for row in hold(each, [member], every=True)
    }
    assert rows
    assert not [row.error for row in rows.values() if row.error]
    return rows


def failed(rows):
    return {name for name, row in rows.items() if row.passed is False}


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({"posterior": FullCovariancePosterior.Config()}, {"X58", "X59"}),
        ({"posterior": FLOW}, {"X59"}),
        ({"prior": MixturePrior.Config(components=2)}, {"X58", "X59"}),
        ({"prior": VampPrior.Config(components=2)}, {"X58", "X59"}),
    ],
    ids=["full", "flow", "mixture", "vamp"],
)
def test_every_posterior_and_prior_holds(fields, ids):
    rows = rows_of(subject("vae", **fields), *ids)
    assert not failed(rows)
    assert {row.id for row in rows.values() if row.passed} == ids


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("hvae", {}),
        ("mhvae", {}),
        *(("hvae", {"inference": each}) for each in ("bottom-up", "ladder")),
    ],
    ids=str,
)
def test_levels_hold(name, fields):
    rows = rows_of(subject(name, **fields), "X58", "X59", "X61", "X62")
    assert not failed(rows)
    assert {row.id for row in rows.values() if row.passed} == {"X59", "X61", "X62"}


def test_x62_is_asked_of_all_that_have_levels():
    able = {entry.name for entry in registry.entries() if HasLevels.ability in entry.abilities}
    assert able >= {"latent.hvae", "latent.mhvae"}
    assert {each.id for each in listed() if each.group in ("latent", "inference")} == {
        "X8",
        "X9",
        "X10",
        "X58",
        "X59",
        "X60",
        "X61",
        "X62",
        "X63",
        "X64",
        "X124",
    }


@pytest.mark.parametrize("name", ["hvae", "mhvae"])
def test_a_level_that_is_forgotten_or_misplaced_fails_x62(name):
    member, generator = subject(name), make_generator(0)
    with torch.no_grad():  # levels that hardly depend on each other would hide what is spoiled
        for parameter in member.model.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator))
    right = member.model.level_kls
    assert not failed(rows_of(member, "X62"))
    member.model.level_kls = lambda batch, z: right(batch, z)[..., :1]
    assert failed(rows_of(member, "X62"))
    member.model.level_kls = lambda batch, z: right(batch, z.flip(-1))
    assert failed(rows_of(member, "X62"))


def test_a_chain_that_reads_the_wrong_neighbour_fails_x61():
    """Common error R11: a level decoded from the one below it is another distribution."""
    member = subject("mhvae")
    model = member.model
    prior = model.log_prior
    model.log_prior = lambda batch, z: prior(batch, z.flip(-1))
    model.log_joint = lambda batch, z: (
        prior(batch, z) + model.log_given_code(batch, z, model.context(batch.given, len(batch)))
    )
    right = model.infer
    model.infer = lambda batch, noise: right(batch, noise).flip(-1)
    assert failed(rows_of(member, "X61"))


def test_a_posterior_without_its_volume_fails(monkeypatch):
    draw = IAFPosterior.reparameterise
    monkeypatch.setattr(
        IAFPosterior,
        "reparameterise",
        lambda self, h, noise: (draw(self, h, noise)[0], _posterior.normal_log_prob(noise)),
    )
    each = {one.listing.name: one for one in identities() if one.listing.group == "inference"}
    for name in (
        "x64_gates_are_the_volume_of_an_inverse_flow",
        "x64_an_inverse_flow_is_undone_unit_by_unit",
    ):
        assert examine(each[name]).passed is False
    member = subject("vae", posterior=FLOW)
    assert "x59_score_is_the_bound" in failed(rows_of(member, "X59"))


def test_the_density_needs_the_scale():
    right = _posterior.FactorisedPosterior.reparameterise
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(
            _posterior.FactorisedPosterior,
            "reparameterise",
            lambda self, h, noise: (right(self, h, noise)[0], _posterior.normal_log_prob(noise)),
        )
        torch.manual_seed(0)
        assert not inference.x10_a_reparameterised_density().passed


def test_a_wrong_noise_fails_x58_in_closed_form(monkeypatch):
    right = inference.VAE.log_given_code
    monkeypatch.setattr(
        inference.VAE, "log_given_code", lambda self, *rest: 1.1 * right(self, *rest)
    )
    with torch.no_grad():
        torch.manual_seed(0)
        assert not inference.x58_evidence_of_a_linear_gaussian().passed
        assert not inference.x58_a_bound_is_tight_at_the_posterior().passed


def test_weighted_rows_are_not_pca(monkeypatch):
    loss = inference.AE.loss
    monkeypatch.setattr(
        inference.AE,
        "loss",
        lambda self, batch: {
            "error": loss(self, batch)["error"] * torch.arange(len(batch)) / len(batch)
        },
    )
    with torch.no_grad():
        torch.manual_seed(0)
        assert not inference.x63_a_linear_autoencoder_is_pca().passed
