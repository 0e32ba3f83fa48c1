"""Identities of samplers fail where a sampler is spoiled."""

import pytest
import torch

from monge.models.diffusion import _ode_samplers, _samplers
from monge.verify import _noisy_mixtures, diffusion_sampling
from monge.verify import diffusion_sampling as sampling


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_what_is_denoised_is_the_mean_of_what_it_comes_from():
    """By the score: alpha E[x|z] = z + sigma^2 grad log p(z)."""
    law, z = _noisy_mixtures.plane(), torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    alpha, sigma = torch.full((6, 1), 0.8).double(), torch.full((6, 1), 0.6).double()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(law.log_prob(z, alpha, sigma).sum(), z)
    torch.testing.assert_close(alpha * law.denoised(z, alpha, sigma), z + sigma.square() * slope)


def test_ddim_that_forgets_what_noise_replaces_fails_x106(monkeypatch):
    right = _samplers.ddim

    def louder(prediction, noising, s, t, eta, noise):
        return right(prediction, noising, s, t, eta, None if noise is None else 1.1 * noise)

    monkeypatch.setattr(sampling, "ddim", louder)
    assert not diffusion_sampling.x106_ddim_keeps_the_marginals().passed
    assert not diffusion_sampling.x106_ddim_with_eta_one_is_ancestral().passed


def test_a_field_that_is_too_slow_fails_x107(monkeypatch):
    right = _ode_samplers.velocity

    def slower(predict, noising, angle, zeta):
        slope, x0 = right(predict, noising, angle, zeta)
        return 0.99 * slope, x0

    monkeypatch.setattr(sampling, "velocity", slower)
    assert not diffusion_sampling.x107_flow_gives_the_density().passed


def test_noise_that_commutes_fails_x103(monkeypatch):
    monkeypatch.setattr(sampling, "GAMMA", 1.0)
    assert not diffusion_sampling.x103_tilting_does_not_commute_with_noise().passed


@pytest.mark.slow
def test_draws_of_a_denoiser_that_is_wrong_fail_x108(monkeypatch):
    assert diffusion_sampling.x108_samplers_reach_the_distribution().passed
    assert diffusion_sampling.x108_flows_keep_ranks().passed
    assert diffusion_sampling.x108_langevin_samples_the_distribution().passed
    right = _noisy_mixtures.NoisyGaussianMixture.denoised
    monkeypatch.setattr(
        _noisy_mixtures.NoisyGaussianMixture, "denoised", lambda *args: 0.97 * right(*args)
    )
    assert not diffusion_sampling.x108_samplers_reach_the_distribution().passed
    assert not diffusion_sampling.x108_flows_keep_ranks().passed
