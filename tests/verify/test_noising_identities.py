"""The identities of diffusion hold, and their negative controls fail."""

import pytest
import torch

from monge.verify import diffusion, score_matching
from monge.verify.framework import examine, identities

OWN = [each for each in identities() if each.listing.group in ("diffusion", "score_matching")]


@pytest.mark.parametrize("identity", OWN, ids=lambda each: each.listing.name)
def test_identity_holds(identity):
    row = examine(identity)
    assert row.error is None
    assert row.passed, row


def test_every_number_of_the_group_is_there():
    assert {each.listing.id for each in OWN} == {f"X{n}" for n in (*range(91, 103), 104, 105)}


def test_the_printed_consistency_form_is_not_the_bound():
    """It is off by tenths of a nat, and nearly always below."""
    torch.manual_seed(0)
    chains = [diffusion.NoisingChain.make(4) for _ in range(50)]
    lost = torch.stack([each.bound() - each.consistency(as_printed=True) for each in chains])
    assert lost.mean() > 0.3
    assert (lost > 0).all()


def test_a_wrong_weight_is_caught(monkeypatch):
    """(1 - abar)^2 for (1 - a)^2, a common error, fails the identity of weights."""

    def wrong(self, s, t):
        found = plain(self, s, t)
        return found._replace(on_x=self.alpha(s) * self.sigma(t).square())

    plain = diffusion.NoiseProcess.step
    monkeypatch.setattr(diffusion.NoiseProcess, "step", wrong)
    assert not diffusion.x96_weight_is_the_fall_of_the_snr().passed
    assert not diffusion.x92_posterior_is_bayes_rule().passed


def test_a_wrong_conversion_is_caught(monkeypatch):
    monkeypatch.setattr(
        score_matching.DenoiserPrediction, "score", property(lambda self: -self.noise)
    )
    torch.manual_seed(0)
    assert not score_matching.x98_score_is_the_mean_noise().passed
