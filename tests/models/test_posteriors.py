"""Posteriors, priors, networks and estimators of the VAE, and completion against a known model."""

from __future__ import annotations

import math

import pytest
import torch
from small_data import make
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.latent._encoder_decoder import ConvEncoderDecoder, DenseEncoderDecoder
from monge.models.latent._posterior import (
    MAX_LOG_SCALE,
    FactorisedPosterior,
    FullCovariancePosterior,
    IAFPosterior,
    Posterior,
)
from monge.models.latent.vae import VAE, MixturePrior
from monge.nn.autoregressive.masked_mlp import MaskedMLP
from monge.prob.distributions import GaussianMixture

BITS = Space(kind="binary", shape=(6,), mean=(0.5,))
SMALL = DenseEncoderDecoder.Config(width=8, depth=1)
FLOW = IAFPosterior.Config(steps=2, context=3, maps=MaskedMLP.Config(width=12, depth=1))
NARROW = FactorisedPosterior.Config(initial_scale=0.05)
FAMILIES = [FactorisedPosterior.Config(), NARROW, FullCovariancePosterior.Config(), FLOW]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


@torch.no_grad()
def shaken(module: nn.Module, std: float = 0.5) -> nn.Module:
    generator = make_generator(4)
    for parameter in module.double().eval().parameters():
        parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
    return module


def vae(space: Space = BITS, std: float = 0.5, **settings: object) -> VAE:
    return shaken(VAE.Config(**{"latent": 2, "net": SMALL, **settings}).build(space), std)


def bits(n: int, seed: int = 3) -> Tensor:
    return (torch.rand(n, 6, generator=make_generator(seed)) < 0.5).double()


@pytest.mark.parametrize("config", FAMILIES, ids=lambda c: c.owner.__name__)
def test_a_sample_and_a_given_code_have_one_density(config):
    posterior: Posterior = shaken(config.build(4))
    h, noise = normal(5, posterior.width), normal(3, 5, 4, seed=1)
    with torch.no_grad():
        z, log_q = posterior.reparameterise(h, noise)
        assert z.shape == log_q.shape == (3, 5, 4)
        torch.testing.assert_close(posterior.log_prob(h, z), log_q.sum(-1), atol=1e-9, rtol=0)
        shifted = posterior.log_prob(h, z + 0.1)
    assert (shifted - log_q.sum(-1)).abs().min() > 1e-6


@pytest.mark.parametrize("config", FAMILIES, ids=lambda c: c.owner.__name__)
def test_a_density_is_that_of_the_jacobian(config):
    posterior: Posterior = shaken(config.build(4))
    h, noise = normal(1, posterior.width), normal(4, seed=1)
    jacobian = torch.autograd.functional.jacobian(
        lambda e: posterior.reparameterise(h, e[None, None])[0][0, 0], noise
    )
    density = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum()
    found = posterior.reparameterise(h, noise[None, None])[1].sum()
    torch.testing.assert_close(found, density - torch.linalg.slogdet(jacobian)[1])


def test_a_factorised_posterior_starts_at_its_scale():
    posterior: FactorisedPosterior = NARROW.build(4)
    h, noise = torch.zeros(1, posterior.width).double(), normal(1, 1, 4)
    torch.testing.assert_close(posterior.reparameterise(h, noise)[0], 0.05 * noise)


def test_a_full_covariance_has_the_rate_of_a_gaussian():
    posterior: FullCovariancePosterior = shaken(FullCovariancePosterior.Config().build(4))
    h = normal(5, posterior.width)
    mean, log_scale, lower = posterior.factor(h)
    distribution = MultivariateNormal(mean, scale_tril=lower + torch.diag_embed(log_scale.exp()))
    prior = MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    torch.testing.assert_close(posterior.analytic_kl(h).sum(1), kl_divergence(distribution, prior))
    sampled, _ = posterior.reparameterise(h, normal(40_000, 5, 4, seed=1))
    torch.testing.assert_close(
        torch.cov(sampled[:, 0].T), distribution.covariance_matrix[0], atol=0.1, rtol=0.05
    )


def test_the_sampled_kl_of_a_flow_has_a_control_variate():
    """By numbers of mean 0, and wholly as long as its maps are the identity."""
    posterior: IAFPosterior = FLOW.build(4).double()
    h, noise = normal(5, posterior.width), normal(20_000, 5, 4, seed=1)
    with torch.no_grad():
        for std, most in ((0.0, 1e-6), (0.1, 0.3)):
            shaken(posterior, std)
            z, log_q = posterior.reparameterise(h, noise)
            sampled_kl = log_q - torch.distributions.Normal(0.0, 1.0).log_prob(z)
            added = posterior.control_variate(h, noise)
            assert (added.mean(0).abs() < 5 * added.std(0) / 20_000**0.5).all()
            before, after = (each.sum(-1).std(0) for each in (sampled_kl, sampled_kl + added))
            assert (after < most * before).all()


def correlated() -> tuple[VAE, Tensor]:
    """y = W z + noise whose two units are far from independent given x, with covariance of y."""
    space = Space(kind="real", shape=(3,))
    model = vae(
        space,
        net=DenseEncoderDecoder.Config(depth=0),
        scale="shared",
        posterior=FullCovariancePosterior.Config(),
    )
    w = torch.tensor([[1.0, 0.9], [0.8, 1.0], [0.0, 0.1]], dtype=torch.float64)
    precision = torch.eye(2).double() + w.T @ w / 0.25
    covariance = torch.linalg.inv(precision)
    factor = torch.linalg.cholesky(covariance)
    raw = MAX_LOG_SCALE * torch.atanh(factor.diagonal().log() / MAX_LOG_SCALE)
    with torch.no_grad():
        model.nets.decoder.out.weight.copy_(w)
        model.nets.decoder.out.bias.zero_()
        distribution = model.head.distributions()[0]
        assert isinstance(distribution, GaussianMixture)
        model.scales.log_scale.copy_(
            distribution.floor + torch.expm1(math.log(0.5) - distribution.floor).log()
        )
        model.nets.encoder.out.weight.zero_()
        model.nets.encoder.out.weight[:2] = covariance @ w.T / 0.25
        model.nets.encoder.out.bias.copy_(
            torch.cat([torch.zeros(2), raw, 2 * factor[1, :1] / factor[1, 1]])
        )
    return model, w @ w.T + 0.25 * torch.eye(3).double()


def test_a_full_posterior_is_tight_where_units_depend_on_each_other():
    model, covariance = correlated()
    x = model.sample(50, generator=make_generator(1))
    truth = MultivariateNormal(torch.zeros(3).double(), covariance).log_prob(x)
    with torch.no_grad():
        found = model.likelihood(x, VAE.LikelihoodConfig(samples=4), make_generator(0))
        torch.testing.assert_close(found.value, truth, atol=1e-9, rtol=0)
        model.nets.encoder.out.bias[-1] = 0.0  # without the covariance it is a bound again
        assert (
            model.likelihood(x, VAE.LikelihoodConfig(samples=1)).value.mean() < truth.mean() - 0.1
        )


def test_completion_samples_the_conditional_given_what_was_seen():
    model, covariance = correlated()
    x = torch.tensor([[1.5, math.nan, math.nan]]).double().expand(4000, 3)
    question = Batch(x, observed=x.isfinite())
    known = covariance[0, 0]
    mean = covariance[1:, 0] / known * 1.5
    rest = covariance[1:, 1:] - torch.outer(covariance[1:, 0], covariance[1:, 0]) / known
    for options in (VAE.SamplingConfig(), VAE.SamplingConfig(method="gibbs", sweeps=30)):
        filled = model.complete(question, options, make_generator(0))
        assert (filled[:, 0] == 1.5).all()
        torch.testing.assert_close(filled[:, 1:].mean(0), mean, atol=0.06, rtol=0)
        torch.testing.assert_close(torch.cov(filled[:, 1:].T), rest, atol=0.1, rtol=0)
    with torch.no_grad():  # a poor encoder misleads pseudo-Gibbs, which weights put right
        model.nets.encoder.out.bias[0] += 0.4
    poor, right = (
        model.complete(question, options, make_generator(0))[:, 1].mean()
        for options in (
            VAE.SamplingConfig(method="gibbs", sweeps=30),
            VAE.SamplingConfig(samples=256),
        )
    )
    assert abs(poor - mean[0]) > 0.2
    assert abs(right - mean[0]) < 0.5 * abs(poor - mean[0])


def test_a_mixture_of_codes_is_scored_as_it_is_sampled():
    model = vae(prior=MixturePrior.Config(components=3))
    grid = torch.linspace(-25, 25, 501, dtype=torch.float64)
    z = torch.cartesian_prod(grid, grid)  # (N, 2)
    with torch.no_grad():
        log_p = model.prior.log_prob(z)[:, 0]
        cell = (grid[1] - grid[0]) ** 2
        assert float(log_p.exp().sum() * cell) == pytest.approx(1, abs=1e-6)
        mean = (log_p.exp()[:, None] * z).sum(0) * cell
        sampled = model.prior.sample(20_000, make_generator(0))
    torch.testing.assert_close(sampled.mean(0), mean, atol=0.03, rtol=0)
    assert model.analytic_kl(Batch(bits(4))) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"posterior": FLOW},
        {"prior": MixturePrior.Config(components=3)},
        {"posterior": FullCovariancePosterior.Config()},
    ],
    ids=str,
)
def test_the_bound_of_every_family_stays_below_the_evidence(settings):
    model, batch = vae(std=0.2, **settings), Batch(bits(16))
    truth = evidence(model, batch).mean().item()
    with torch.no_grad():
        one, many = (
            model.likelihood(batch, VAE.LikelihoodConfig(samples=k), make_generator(0))
            .value.mean()
            .item()
            for k in (1, 500)
        )
    assert one < truth - 0.01
    assert many == pytest.approx(truth, abs=0.15)


@torch.no_grad()
def evidence(model: VAE, batch: Batch) -> Tensor:
    """log p(x) with the two units of the code summed out on a grid."""
    grid = torch.linspace(-8, 8, 81, dtype=torch.float64)
    z = torch.cartesian_prod(grid, grid)[:, None].expand(-1, len(batch), -1)  # (N, B, 2)
    return model.log_joint(batch, z).logsumexp(0) + 2 * math.log(grid[1] - grid[0])


def test_estimators_agree_in_the_mean_and_b_is_quieter():
    batch = Batch(bits(1).expand(4000, 6))
    torch.manual_seed(0)
    with torch.no_grad():
        a, b = (sum(vae(std=0.3, estimator=name).loss(batch).values()) for name in "AB")
    error = (a.var() / len(a) + b.var() / len(b)).sqrt()
    assert abs(a.mean() - b.mean()) < 4 * error
    assert b.std() < a.std()


def test_weighted_training_raises_the_weighted_bound():
    batch = Batch(bits(2000))
    model, plain = vae(samples=10, importance_weighted=True), vae(samples=10)
    torch.manual_seed(0)
    with torch.no_grad():
        bound = -model.loss(batch)["bound"]
        scored = model.likelihood(batch, VAE.LikelihoodConfig(samples=10), make_generator(0)).value
        lower = -sum(plain.loss(batch).values())
    assert abs(bound.mean() - scored.mean()) < 4 * (bound - scored).std() / len(batch) ** 0.5
    assert lower.mean() < bound.mean() - 0.05


@pytest.mark.parametrize("config", FAMILIES, ids=lambda c: c.owner.__name__)
def test_refining_closes_the_amortisation_gap_row_by_row(config):
    model, options = vae(std=0.3, posterior=config), VAE.LikelihoodConfig(samples=1, refine=30)
    batch = Batch(bits(24), row=torch.arange(24))
    truth = evidence(model, batch).mean()
    with torch.no_grad():
        plain = model.likelihood(batch, VAE.LikelihoodConfig(samples=1), make_generator(0)).value
        own = model.likelihood(batch, options, make_generator(0)).value
        apart = torch.cat(
            [model.likelihood(part, options, make_generator(0)).value for part in batch.chunk(3)]
        )
    torch.testing.assert_close(own, apart, atol=1e-9, rtol=0)
    error = own.std() / len(own) ** 0.5
    assert plain.mean() + 0.1 < own.mean() < truth + 3 * error
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 10)])
@pytest.mark.parametrize("scale", ["shared", "network"])
def test_convolutions_give_each_entry_its_parameters(shape, scale):
    space = Space(
        kind="levels", shape=shape, size=5, mean=(2.0,) * shape[0], scale=(1.0,) * shape[0]
    )
    config = VAE.Config(
        latent=3, scale=scale, net=ConvEncoderDecoder.Config(widths=(4, 6), width=8)
    )
    torch.manual_seed(0)
    model = config.build(space).double()
    params = model.params(normal(7, 3), torch.zeros(7, 0).double())
    assert params.shape == (7, model.head.width)
    start = model.head.mean(model.head.initial_params()[None].double())
    with torch.no_grad():
        model.nets.out.weight.zero_()
    torch.testing.assert_close(
        model.decode(normal(2, 3)).reshape(2, -1), start.expand(2, -1), atol=1e-6, rtol=0
    )
    changed = model.params(normal(7, 3), torch.zeros(7, 0).double())
    assert torch.equal(changed[0], changed[1])
    assert not torch.equal(params[0], params[1])


def test_dense_networks_mirror_each_other():
    model = VAE.Config(latent=2, net=DenseEncoderDecoder.Config(widths=(8, 5))).build(BITS)
    encoder, decoder = (
        [layer.out_features for layer in net.hidden]
        for net in (model.nets.encoder, model.nets.decoder)
    )
    assert (encoder, decoder) == ([8, 5], [5, 8])


def test_invalid_settings_are_refused():
    cases = [
        (lambda: vae(latent=7), r"\b6\b.*latent=7"),
        (lambda: vae(posterior=FLOW, estimator="B"), "estimator=B"),
        (lambda: vae(prior=MixturePrior.Config(), estimator="B"), "estimator=A"),
        (
            lambda: VAE.Config(importance_weighted=True, free_bits=0.5),
            "free_bits=0.5",
        ),
        (lambda: vae(net=ConvEncoderDecoder.Config()), "net=convolution"),
        (lambda: VAE.LikelihoodConfig(samples=0), "samples=0"),
    ]
    for act, value in cases:
        with pytest.raises(UsageError, match=value):
            act()
    with pytest.raises(UsageError, match=r"net\.widths=32,64"):
        VAE.Config(latent=2, net=ConvEncoderDecoder.Config(widths=())).build(make("levels", 2)[0])
    with pytest.raises(DataError, match=r"\b2 units.*\b5\b"):
        vae().decode(torch.zeros(3, 5).double())


def test_families_are_chosen_by_overrides():
    config = VAE.Config().override(
        "posterior=iaf",
        "posterior.steps=1",
        "prior=mixture",
        "prior.components=4",
        "net=convolution",
        "net.widths=8,16",
    )
    assert isinstance(config.posterior, IAFPosterior.Config)
    assert (config.posterior.steps, config.prior.components) == (1, 4)
    assert config.net == ConvEncoderDecoder.Config(widths=(8, 16))
    assert VAE.Config.from_dict(config.to_dict()) == config
