"""The VAE's bound against models whose evidence is known, and what a code may be asked."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_data import Rows, make
from torch import Tensor

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.bounds import amortisation
from monge.models.baseline.independent import Independent
from monge.models.latent._encoder_decoder import DenseEncoderDecoder
from monge.models.latent._posterior import MAX_LOG_SCALE, FullCovariancePosterior, IAFPosterior
from monge.models.latent._total_correlation import permute_units
from monge.models.latent.vae import VAE, VampPrior
from monge.prob.distributions import GaussianMixture

LINEAR = DenseEncoderDecoder.Config(depth=0)
SMALL = DenseEncoderDecoder.Config(width=8, depth=1)
PLANE = Space(kind="real", shape=(3,), mean=(1.0, -2.0, 10.0), scale=(2.0, 0.5, 4.0))
BITS = Space(kind="binary", shape=(4,), mean=(0.5,))
NOISE = 0.5
"""Scale of p(x_i | z) in the linear model, in standardised coordinates."""


def vae(space: Space, std: float = 0.5, **settings: object) -> VAE:
    config = VAE.Config(**{"latent": 2, "net": SMALL, **settings})
    torch.manual_seed(0)
    model = config.build(space).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


@torch.no_grad()
def linear_gaussian(spread: float = 1.0, shift: float = 0.0) -> tuple[VAE, Tensor]:
    """y = W z + b + noise in standardised coordinates, and the covariance of y. The columns of W
    are orthogonal, so the true posterior is diagonal; q is wider by `spread`, off by `shift`."""
    model = vae(PLANE, net=LINEAR, scale="shared")
    w = torch.tensor([[1.0, 1.0], [2.0, -0.5], [0.0, 0.8]], dtype=torch.float64)  # (D, latent)
    w[:, 1] -= w[:, 0] * (w[:, 0] @ w[:, 1]) / (w[:, 0] @ w[:, 0])
    b = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    variance = 1 / (1 + w.square().sum(0) / NOISE**2)  # (latent,)
    gain = variance[:, None] * w.T / NOISE**2  # (latent, D)
    model.nets.decoder.out.weight.copy_(w)
    model.nets.decoder.out.bias.copy_(b)
    distribution = model.head.distributions()[0]
    assert isinstance(distribution, GaussianMixture)
    model.scales.log_scale.copy_(
        distribution.floor + torch.expm1(math.log(NOISE) - distribution.floor).log()
    )
    log_scale = math.log(spread) + variance.log() / 2
    model.nets.encoder.out.weight.copy_(torch.cat([gain, torch.zeros(2, 3)]))
    model.nets.encoder.out.bias.copy_(
        torch.cat([shift - gain @ b, MAX_LOG_SCALE * torch.atanh(log_scale / MAX_LOG_SCALE)])
    )
    return model, w @ w.T + NOISE**2 * torch.eye(3).double()


def baseline() -> Model:
    return Independent.Config().build(BITS)


def evidence(model: VAE, covariance: Tensor, x: Tensor) -> Tensor:
    """log p(x) in the units of the data."""
    mean, scale = (PLANE.statistic(name).double() for name in ("mean", "scale"))
    distribution = torch.distributions.MultivariateNormal(model.nets.decoder.out.bias, covariance)
    return distribution.log_prob((x - mean) / scale) - scale.log().sum()


def score(model: VAE, batch: Batch | Tensor, samples: int, seed: int = 0):
    with torch.no_grad():
        return model.likelihood(batch, VAE.LikelihoodConfig(samples=samples), make_generator(seed))


def test_the_bound_is_the_evidence_where_q_is_the_posterior():
    model, covariance = linear_gaussian()
    x = model.sample(50, generator=make_generator(1))
    found = score(model, x, 3)
    assert found.kind == "bound"
    torch.testing.assert_close(found.value, evidence(model, covariance, x), atol=1e-9, rtol=0)
    assert found.stderr.amax() < 1e-9


def test_importance_samples_close_the_gap():
    model, covariance = linear_gaussian(spread=1.5, shift=0.2)
    x = model.sample(400, generator=make_generator(1))
    truth = evidence(model, covariance, x).mean().item()
    one, few, many = (score(model, x, k) for k in (1, 10, 1000))
    assert one.value.mean() < few.value.mean() < many.value.mean()
    assert many.value.mean().item() == pytest.approx(truth, abs=0.01)
    assert one.value.mean() < truth - 0.1
    error = many.value - evidence(model, covariance, x)
    assert 0.7 < (error / many.stderr).std() < 1.4  # the stated errors are the size of the errors


def test_samples_follow_the_distribution_that_is_scored():
    model, covariance = linear_gaussian()
    x = model.sample(40_000, generator=make_generator(2))
    scale = PLANE.statistic("scale").double()
    torch.testing.assert_close(
        torch.cov(x.T), covariance * scale * scale[:, None], rtol=0.05, atol=0.1
    )
    log_p = evidence(model, covariance, x)
    entropy = 0.5 * torch.logdet(2 * math.pi * math.e * covariance) + scale.log().sum()
    assert -log_p.mean().item() == pytest.approx(entropy.item(), abs=0.03)


def test_bound_rate_and_divergence_by_quadrature():
    model = vae(BITS, std=0.2, latent=1)
    batch = Batch(torch.tensor([[0.0, 1, 1, 0], [1, 1, 1, 1]]).double())
    z = torch.linspace(-12, 12, 4001).double()[:, None, None].expand(-1, 2, 1)  # (S, B, 1)
    with torch.no_grad():
        joint, q, prior = (
            model.log_joint(batch, z),
            model.log_posterior(batch, z),
            model.log_prior(batch, z),
        )

        def integral(f: Tensor) -> Tensor:
            return torch.trapezoid(f, z[:, :, 0], dim=0)

        truth = integral(joint.exp()).log()
        bound = integral(q.exp() * (joint - q))
        torch.testing.assert_close(
            model.analytic_kl(batch), integral(q.exp() * (q - prior)), atol=1e-9, rtol=0
        )
        torch.testing.assert_close(
            bound + integral(q.exp() * (q - joint + truth)), truth, atol=1e-9, rtol=0
        )
        estimates = score(model, batch[torch.arange(2).repeat(5000)], 1).value.reshape(-1, 2)
    error = estimates.std(0) / 5000**0.5
    assert (bound < truth).all()
    assert ((estimates.mean(0) - bound).abs() < 4 * error).all()


@pytest.mark.parametrize("samples", [1, 2, 11])
def test_a_score_does_not_depend_on_batching(samples):
    model = vae(BITS)
    x = (torch.rand(9, 4, generator=make_generator(3)) < 0.5).double()
    whole = Batch(x, row=torch.arange(9))
    value = score(model, whole, samples).value
    order = torch.tensor([4, 1, 8, 0, 2, 3, 7, 5, 6])
    parts = [score(model, whole[part], samples).value for part in order.split(4)]
    torch.testing.assert_close(torch.cat(parts), value[order], atol=1e-12, rtol=0)
    assert (score(model, whole, samples, seed=1).value != value).all()


def test_beta_weighs_the_loss_and_not_the_score():
    plain, heavy = vae(BITS), vae(BITS, beta=4.0)
    batch = Batch((torch.rand(20, 4, generator=make_generator(3)) < 0.5).double())
    torch.manual_seed(5)
    losses = plain.loss(batch)
    torch.manual_seed(5)
    heavier = heavy.loss(batch)
    torch.testing.assert_close(heavier["reconstruction"], losses["reconstruction"])
    torch.testing.assert_close(heavier["kl"], 4 * plain.analytic_kl(batch))
    torch.testing.assert_close(score(heavy, batch, 1).value, score(plain, batch, 1).value)
    reported = -(heavier["reconstruction"] + heavier["kl"]).mean()
    assert reported < score(heavy, batch, 1000).value.mean() - 0.1


def test_the_terms_of_the_bound_are_those_of_a_score():
    model, batch = (
        vae(BITS),
        Batch((torch.rand(20, 4, generator=make_generator(3)) < 0.5).double()),
    )
    with torch.no_grad():
        terms = model.terms(batch, generator=make_generator(0))
    torch.testing.assert_close(
        -terms["reconstruction"] - terms["kl"], score(model, batch, 1).value
    )
    torch.testing.assert_close(terms["kl"], model.analytic_kl(batch))
    gap = amortisation(model, Rows(batch))["amortisation_gap"]
    assert gap.value > 3 * gap.stderr > 0
    assert amortisation(baseline(), Rows(batch)) == {}


def test_the_rate_is_annealed_and_its_first_nats_are_free():
    batch = Batch((torch.rand(20, 4, generator=make_generator(3)) < 0.5).double())
    model = vae(BITS, anneal=10)
    for step, share in ((0, 0.1), (4, 0.5), (50, 1.0)):
        kl = model.loss(replace(batch, step=step))["kl"]
        torch.testing.assert_close(kl, share * model.analytic_kl(batch))
    free = vae(BITS, free_bits=100.0).loss(batch)["kl"]
    assert free.item() == pytest.approx(200.0)


@pytest.mark.parametrize("kind", sorted(VAE.events))
def test_codes_and_samples_have_their_shapes(kind):
    space, batch = make(kind, 40)
    model = VAE.smallest_config(space).build(space).eval()
    z = model.encode(batch)
    assert z.shape == (40, 2)
    assert model.decode(z).shape == model.sample(40).shape == batch.x.shape
    if kind == "levels":
        assert set(model.sample(200).unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
        assert model.decode(z).min() >= 0
        assert model.decode(z).max() <= 3


@pytest.mark.parametrize(
    "settings",
    [
        {"levels": "categorical"},
        {"components": 3},
        {"scale": "shared"},
        {"scale": "shared", "components": 2},
    ],
)
def test_distributions_of_levels_sum_to_one(settings):
    space = Space(kind="levels", shape=(1,), size=5, mean=(2.0,), scale=(1.5,))
    model = vae(space, latent=1, **settings)
    batch = Batch(torch.arange(5).double()[:, None])
    z = torch.randn(1, 1, generator=make_generator(0), dtype=torch.float64).expand(5, 1)
    total = model.log_given_code(batch, z, z[:, :0]).exp().sum().item()
    assert total == pytest.approx(1, abs=1e-12)


def test_shared_scales_are_learned_once_for_each_entry():
    shared, network = vae(PLANE, scale="shared"), vae(PLANE)
    assert shared.scales.log_scale.shape == (3,)
    assert (shared.nets.decoder.outputs, network.nets.decoder.outputs) == (3, 6)
    z = torch.randn(7, 2, generator=make_generator(0), dtype=torch.float64)
    assert (shared.params(z, z[:, :0]).std(0) > 0).tolist() == [True, False] * 3


def test_unseen_entries_are_marginalised():
    model = vae(BITS)
    z = torch.randn(3, 2, generator=make_generator(0), dtype=torch.float64)
    x = torch.tensor([[0.0, 1, math.nan, 1]]).double().expand(3, 4)
    seen = torch.tensor([[True, True, False, True]]).expand(3, 4)
    log_p = model.log_given_code(Batch(x, observed=seen), z, z[:, :0])
    both = [model.log_given_code(Batch(x.nan_to_num(value)), z, z[:, :0]) for value in (0.0, 1.0)]
    torch.testing.assert_close(log_p, torch.logaddexp(*both))
    model.loss(Batch(x, observed=seen))["reconstruction"].mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_condition_changes_samples_and_codes():
    given = {"label": Space(kind="label", size=2)}
    model = vae(replace(PLANE, given=given))
    first, second = (
        model.sample(5, {"label": Batch(torch.tensor([code]))}, generator=make_generator(0))
        for code in (0, 1)
    )
    assert (first != second).all()
    x = torch.zeros(2, 3).double()
    codes = model.encode(Batch(x, {"label": Batch(torch.tensor([0, 1]))}))
    assert (codes[0] != codes[1]).all()


def test_collapse_and_degenerate_scales_are_diagnosed():
    model, _ = linear_gaussian()
    batch = Batch(model.sample(200, generator=make_generator(0)))
    assert model.diagnose(batch) == []
    with torch.no_grad():
        model.nets.encoder.out.weight.zero_()
        model.scales.log_scale[0] = -50.0
    found = {finding.name: finding for finding in model.diagnose(batch)}
    assert "0 of 2" in found["posterior collapse"].sentence
    assert "1 of 3" in found["degenerate scale"].sentence


def test_a_wild_datum_gets_a_finite_score():
    model = vae(PLANE)
    assert score(model, torch.full((1, 3), 1e6).double(), 8).value.isfinite().all()


def annealed(model: VAE, rows: Batch | Tensor, seed: int = 0, **options: int):
    chosen = model.LikelihoodConfig(method="ais", **options)
    return model.likelihood(rows, chosen, make_generator(seed))


def test_annealing_finds_the_evidence_that_importance_samples_miss():
    model, covariance = linear_gaussian(spread=0.7, shift=0.5)
    x = model.sample(20, generator=make_generator(1))
    truth = evidence(model, covariance, x).mean().item()
    found = annealed(model, x, samples=16, temperatures=40)
    assert found.kind == "bound"
    assert score(model, x, 16).value.mean() < truth - 0.5
    assert found.value.mean().item() == pytest.approx(truth, abs=0.1)


def test_annealed_rows_do_not_depend_on_those_beside_them():
    model = vae(BITS)
    rows = Batch(torch.randint(0, 2, (5, 4), generator=make_generator(0)).double())
    rows = replace(rows, row=torch.arange(5))
    whole = annealed(model, rows, 3, samples=9, temperatures=4)
    parts = [annealed(model, rows[i : i + 2], 3, samples=9, temperatures=4) for i in (0, 2, 4)]
    torch.testing.assert_close(whole.value, torch.cat([part.value for part in parts]))
    assert not torch.equal(whole.value, annealed(model, rows, 4, samples=9, temperatures=4).value)
    assert whole.stderr.shape == (5,)
    assert annealed(model, rows, samples=1, temperatures=4).stderr is None


def test_total_correlation_adds_to_the_elbo_and_not_to_the_bound():
    _, batch = make("binary")
    plain, more = (vae(BITS, total_correlation=weight) for weight in (0.0, 3.0))
    rows = Batch(batch.x[:32, :4].double())
    losses = []
    for model in (plain, more):
        torch.manual_seed(0)
        losses.append(model.loss(rows))
    extra = losses[1].pop("total_correlation")
    assert losses[0].keys() == losses[1].keys()
    assert all(torch.equal(losses[0][name], losses[1][name]) for name in losses[0])
    assert extra.shape == (32,)
    bounds = [model.likelihood(rows, generator=make_generator(0)).value for model in (plain, more)]
    torch.testing.assert_close(*bounds)


def test_units_that_say_the_same_are_correlated():
    """Posteriors of two units with one mean have more total correlation than independent ones."""
    model = vae(BITS, total_correlation=1.0)
    means = torch.randn(64, 2, dtype=torch.float64, generator=make_generator(0))
    found = []
    for mean in (means, means[:, :1].expand(64, 2)):
        h = torch.cat([mean, torch.full_like(mean, -1.0)], 1)
        z = mean + math.exp(-1.0) * torch.randn(200, 64, 2, dtype=torch.float64)
        found.append(float(model.code_log_ratios(h, z).detach().mean()))
    assert found[1] > found[0] + 0.3
    assert found[1] > 0


def test_the_discriminator_has_an_update_of_its_own_and_sees_independent_units():
    correlation, generator = 0.8, make_generator(0)
    model = vae(PLANE, total_correlation=1.0, tc_estimator="discriminator")
    first, second = model.updates()
    own = {id(p) for p in second.params}
    assert own == {id(p) for p in model.discriminator.parameters()}
    assert not own & {id(p) for p in first.params}
    assert second.batches == 2
    codes = torch.randn(20000, 2, dtype=torch.float64, generator=generator)
    codes[:, 1] = correlation * codes[:, 0] + math.sqrt(1 - correlation**2) * codes[:, 1]
    permuted = permute_units(codes)
    assert torch.equal(permuted.sort(0).values, codes.sort(0).values)
    assert abs(float(torch.corrcoef(permuted.T)[0, 1])) < 0.05


@pytest.mark.parametrize(
    "settings",
    [
        {"total_correlation": 1.0, "posterior": FullCovariancePosterior.Config()},
        {"total_correlation": 1.0, "importance_weighted": True},
        {"prior": VampPrior.Config(), "posterior": IAFPosterior.Config()},
        {"prior": VampPrior.Config(), "estimator": "B"},
    ],
)
def test_what_priors_and_penalties_cannot_have_is_refused(settings):
    with pytest.raises(UsageError):
        vae(BITS, **settings)


def test_pseudo_inputs_start_as_rows_and_are_learned():
    _, batch = make("binary", n=50)
    rows = Batch(batch.x[:, :4].double())
    model = vae(BITS, prior=VampPrior.Config(components=8))
    model.initialise_from_data(rows)
    apart = torch.cdist(model.prior.pseudo_inputs.detach(), model.features(rows))
    assert float(apart.amin(1).max()) < 0.1
    assert model.prior.pseudo_inputs.unique(dim=0).shape == (8, 4)
    model.loss(rows)["kl"].mean().backward()
    assert float(model.prior.pseudo_inputs.grad.abs().sum()) > 0
