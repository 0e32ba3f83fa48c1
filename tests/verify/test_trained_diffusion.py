"""The identities that a diffusion law holds by itself fail where it was spoiled on purpose."""

from dataclasses import replace

import pytest
import torch

from monge import registry
from monge.models.diffusion import _guidance
from monge.models.diffusion._parameterisation import DenoiserPrediction
from monge.models.diffusion.ddpm import DDPM
from monge.prob.noise_schedule import NoiseSchedule, PosteriorStep
from monge.verify import subjects, trained_diffusion
from monge.verify import trained_diffusion as denoiser
from monge.verify.framework import SkipIdentity, identities

OWN = {
    each.listing.name: each for each in identities() if each.listing.group == "trained_diffusion"
}
*_, REAL, _, GIVEN, _ = subjects.SPACES


def law(space=REAL, **fields):
    torch.manual_seed(0)
    return subjects.subject("ddpm", replace(DDPM.smallest_config(space), **fields), space)


def held(name, subject):
    torch.manual_seed(0)
    call = OWN[name].call
    with torch.no_grad():
        return call(subject.model, subject.batch) if OWN[name].rows else call(subject.model)


@pytest.mark.parametrize("variance", ["forward", "learned"])
def test_steps_of_other_variance_are_divergences_too(variance):
    found = law(GIVEN, steps=20, variance=variance)
    for name in OWN:
        if name != "x105_own_loss_is_the_bound":  # of a VDM alone
            assert held(name, found).passed, name


def test_a_posterior_of_another_variance_fails(monkeypatch):
    def wrong(self, s, t):
        step = right(self, s, t)
        return PosteriorStep(step.on_z, step.on_x, 1.1 * step.variance, step.forward)

    right = NoiseSchedule.step
    monkeypatch.setattr(NoiseSchedule, "step", wrong)
    for name in (
        "x92_own_ways_are_as_likely_back",
        "x93_scored_steps_are_divergences",
        "x96_own_weights_sum_to_the_ends",
        "x106_own_ddim_with_eta_one_is_ancestral",
    ):
        assert not held(name, law()).passed, name


def test_a_conversion_with_a_wrong_sign_fails(monkeypatch):
    monkeypatch.setattr(
        DenoiserPrediction, "score", property(lambda self: self.noise / self.sigma)
    )
    assert not held("x95_own_parameterisations_agree", law()).passed
    assert not held("x97_own_score_denoises", law()).passed


def test_probes_of_another_variance_fail(monkeypatch):
    right = trained_diffusion.sample_probes
    monkeypatch.setattr(denoiser, "sample_probes", lambda *asked: 1.5 * right(*asked))
    assert not held("x100_implicit_is_denoising_score_matching", law()).passed


def test_guidance_with_exchanged_weights_fails(monkeypatch):
    monkeypatch.setattr(
        _guidance.Guidance, "weight", lambda self, t: (1 - self.strength + 0 * t)[:, None]
    )
    assert not held("x102_own_guidance_mixes_predictions", law(GIVEN)).passed


def test_a_schedule_that_rises_fails(monkeypatch):
    monkeypatch.setattr(NoiseSchedule, "log_snr", lambda self, t: 20 * (t - 0.5).square() - 3)
    assert not held("x104_own_schedule_falls", law()).passed


def test_what_cannot_be_guided_is_skipped():
    for spoiled, reason in ((law(), "given nothing"), (law(GIVEN, drop=0.0), "drop=0")):
        with pytest.raises(SkipIdentity, match=reason):
            held("x102_own_guidance_mixes_predictions", spoiled)


def test_a_family_is_found_by_its_base_class():
    found = {each.name.partition(",")[0] for each in subjects.able(trained_diffusion.Diffusion)}
    assert found == {"ddpm", "vdm", "score_sde"}
    assert registry.find("ddpm") is DDPM
