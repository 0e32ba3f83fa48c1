"""Identities of the game hold, and each fails on a game that was spoiled on purpose."""

from dataclasses import replace

import pytest
import torch

from monge import registry
from monge.verify import adversarial, critics, subjects
from monge.verify.framework import identities

REAL = subjects.SPACES[4]


@pytest.fixture(autouse=True)
def seeded():
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        yield


ALONE = [
    each
    for each in identities()
    if each.needs is None and each.listing.group in ("adversarial", "critics")
]


@pytest.mark.parametrize("identity", ALONE, ids=lambda each: each.listing.name)
def test_it_holds_whatever_is_drawn(identity):
    for seed in (1, 2):
        torch.manual_seed(seed)
        found = identity.call()
        assert found.passed, found


def test_there_is_one_for_each_of_the_section():
    listed = {
        each.listing.id
        for each in identities()
        if each.listing.group in ("adversarial", "critics")
    }
    assert listed == {"X72", *(f"X{number}" for number in range(82, 91) if number != 89)}


def test_a_loss_without_its_half_fails(monkeypatch):
    right = adversarial.discriminator_terms

    def doubled(*arguments):
        return {name: 2 * term for name, term in right(*arguments).items()}

    monkeypatch.setattr(adversarial, "discriminator_terms", doubled)
    assert not adversarial.x86_loss_is_the_cross_entropy_of_a_balanced_batch().passed


def test_swapped_generator_losses_fail(monkeypatch):
    right = adversarial.generator_terms
    other = {"minimax": "nonsaturating", "nonsaturating": "minimax"}
    monkeypatch.setattr(adversarial, "generator_terms", lambda game, a: right(other[game], a))
    assert not adversarial.x84_gradients_at_the_best_discriminator().passed
    assert not adversarial.x85_minimax_saturates_where_the_other_does_not().passed


def test_a_ratio_that_forgets_smoothing_fails(monkeypatch):
    monkeypatch.setattr(adversarial, "log_ratio", lambda game, a, label_smoothing: a)
    assert not adversarial.x82_trained_discriminator_is_the_best_one().passed


def test_a_divergence_against_the_ratio_fails(monkeypatch):
    """Common error R14: compared with p / (p + q) instead of the mean of both."""

    def wrong(p, q):
        return (adversarial.kl(p, p / (p + q)) + adversarial.kl(q, q / (p + q))) / 2

    monkeypatch.setattr(adversarial, "jensen_shannon", wrong)
    assert not adversarial.x82_value_at_the_best_is_the_divergence().passed


def test_a_critic_that_jumps_fails():
    subject = subjects.subject("wgan", registry.find("wgan").smallest_config(REAL), REAL)
    assert critics.x72_a_critic_gives_no_more_than_k_times_the_distance(
        subject.model, subject.batch
    ).passed
    right = subject.model.criticise
    subject.model.criticise = lambda rows: 1000 * right(rows)
    assert not critics.x72_a_critic_gives_no_more_than_k_times_the_distance(
        subject.model, subject.batch
    ).passed


def test_a_model_whose_loss_is_not_its_value_fails():
    config = replace(registry.find("gan").smallest_config(REAL))
    subject = subjects.subject("gan", config, REAL)
    check = adversarial.x86_a_models_loss_is_its_value
    assert check(subject.model, subject.batch).passed
    right = subject.model.logits
    subject.model.logits = lambda batch: tuple(2 * each for each in right(batch))
    model = subject.model
    model.discriminator_loss = lambda batch: adversarial.discriminator_terms(
        "minimax", *right(batch)
    )
    assert not check(model, subject.batch).passed
