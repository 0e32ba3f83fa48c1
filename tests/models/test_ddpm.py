"""DDPM: targets, weights, two scores against known distributions, invalid settings."""

import itertools
import math
from dataclasses import replace

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion import _likelihood as accounting
from monge.models.diffusion._denoisers import MLPDenoiser, TransformerDenoiser, UNetDenoiser
from monge.models.diffusion._parameterisation import (
    DenoiserPrediction,
    regression_target,
    stable_target,
)
from monge.models.diffusion._units import Units, log_normal_interval, max_log_snr
from monge.models.diffusion.ddpm import DDPM
from monge.models.diffusion.score_sde import ScoreSDE
from monge.prob.noise_schedule import NoiseSchedule
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

REAL = Space(kind="real", shape=(2,), name="x", rows=1000)
IMAGE = Space(
    kind="levels",
    shape=(1, 7, 6),
    size=5,
    name="x",
    rows=100,
    mean=(2.0,),
    scale=(1.4,),
    low=(0.0,),
    high=(4.0,),
)
SERIES = Space(kind="real", shape=(9, 2), name="x", rows=100)
COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double()


def build(space, *settings, net=None):
    torch.manual_seed(0)
    config = DDPM.smallest_config(space)
    config = replace(config, net=net) if net else config
    return config.override(*settings).build(space).double()


class Exact:
    """The distribution N(0, C) evaluated through the functions that score networks."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.roots, self.axes = torch.linalg.eigh(COVARIANCE)

    def predict(self, z, log_snr):
        alpha, sigma = accounting.alpha_sigma_columns(self.schedule, log_snr)
        gain = alpha * self.roots / (alpha.square() * self.roots + sigma.square())
        return DenoiserPrediction(z, alpha, sigma, "x0", (gain * (z @ self.axes)) @ self.axes.T)

    def ask(self, y, steps=0):
        return accounting.LikelihoodInputs(
            self.predict, self.schedule, Units(REAL).double(), y, torch.arange(len(y)), 0, steps
        )


def gaussian_rows(n=500):
    g = torch.Generator().manual_seed(1)
    y = torch.randn(n, 2, generator=g, dtype=torch.float64) @ torch.linalg.cholesky(COVARIANCE).T
    zero = torch.zeros(2).double()
    return y, torch.distributions.MultivariateNormal(zero, COVARIANCE).log_prob(y)


@pytest.mark.parametrize("family", ["preserving", "exploding", "sub"])
def test_continuous_bound_of_the_exact_denoiser_is_the_likelihood(family):
    y, truth = gaussian_rows()
    terms = accounting.denoising_bound(
        Exact(NoiseSchedule.Config(family=family).build()).ask(y), 256
    )
    away = terms.value - truth
    assert abs(away.mean()) < 4 * away.std() / len(away) ** 0.5 + 2e-3
    assert away.std() < 0.3
    assert terms.stderr.mean() < 0.3


def test_discrete_bound_loses_what_the_identity_predicts():
    """Of N(0, I) the loss over T steps is known in closed form (X105)."""
    schedule = NoiseSchedule.Config(shape="logsnr", high=6.0, low=-6.0).build()
    exact = Exact(schedule)
    exact.roots, exact.axes = torch.ones(2).double(), torch.eye(2).double()
    y = gaussian_rows(4000)[0] @ torch.linalg.inv(torch.linalg.cholesky(COVARIANCE)).T
    terms = accounting.denoising_bound(exact.ask(y, steps=10), 64)
    snr = schedule.snr(schedule.grid(10, y))
    loss = 2 * (0.5 * (snr[:-1] - snr[1:]) / (1 + snr[1:])).sum()
    error = terms.diffusion.std() / len(y) ** 0.5
    assert abs(terms.diffusion.mean() - loss) < 4 * error
    assert terms.diffusion.mean() > 2 * 0.5 * math.log1p(math.exp(6.0))  # the continuous loss


@pytest.mark.parametrize("family", ["preserving", "exploding"])
def test_flow_of_the_exact_denoiser_is_the_likelihood(family):
    y, truth = gaussian_rows(50)
    exact = Exact(NoiseSchedule.Config(family=family).build())
    found = accounting.ode_log_likelihood(exact.ask(y), accounting.Solver(tolerance=1e-6), None)[
        :, 0
    ]
    assert (found - truth).mean().abs() < 5e-3
    assert (found - truth).abs().max() < 0.1


def test_wrong_denoiser_scores_less():
    y, truth = gaussian_rows()
    exact = Exact(NoiseSchedule.Config().build())
    exact.roots = torch.tensor([1.0, 1.0]).double()
    assert (accounting.denoising_bound(exact.ask(y), 64).value - truth).mean() < -0.05


def test_stderr_of_hutchinson_covers_the_exact_trace():
    model = build(REAL)
    rows = Batch(torch.randn(6, 2, generator=make_generator(0)).double())
    exact = model.likelihood(rows, model.LikelihoodConfig(method="ode", trace="exact"))
    guess = model.likelihood(
        rows, model.LikelihoodConfig(method="ode", trace="hutchinson", probes=40)
    )
    assert exact.kind == guess.kind == "estimate"
    assert exact.stderr is None
    assert ((exact.value - guess.value).abs() < 6 * guess.stderr + 1e-3).all()


def test_last_step_of_levels_sums_to_one():
    units = Units(IMAGE).double()
    codes = torch.arange(5).double()[:, None].expand(5, 42)
    y = units.to_units(codes.reshape(5, 1, 7, 6))
    for mean, scale in ((0.3, 0.7), (-4.0, 0.05), (9.0, 2.0)):
        each = [
            units.log_prob(
                row[None, :1].expand(1, 42),
                torch.full((1, 42), mean).double(),
                torch.tensor(scale).double(),
            )
            / 42
            for row in y
        ]
        assert torch.cat(each).exp().sum().item() == pytest.approx(1, abs=1e-9)


def test_log_between_in_the_tails():
    a, b = torch.tensor([30.0, -1.0, -40.0]).double(), torch.tensor([31.0, 1.0, -39.0]).double()
    found = log_normal_interval(a, b)
    assert found[0].item() == pytest.approx(-454.3212, abs=1e-3)
    assert found[1].item() == pytest.approx(math.log(0.682689492137), abs=1e-9)
    assert found.isfinite().all()


@pytest.mark.parametrize("of", ["x0", "noise", "score", "velocity", "residual"])
def test_every_target_trains_and_samples(of):
    space, batch = small_data.make("real", 300)
    model = build(space, f"target={of}")
    batch = batch.double()
    losses = [sum(v.mean() for v in model.loss(batch).values()) for _ in range(2)]
    assert all(loss.isfinite() for loss in losses)
    assert model.sample(4, generator=make_generator(0)).isfinite().all()


def test_weights_are_those_of_the_docstring():
    """A network that gives zero: the loss is the weight times the mean of what it misses."""
    space, batch = small_data.make("real", 20_000)
    batch = batch.double()
    for of in ("x0", "noise", "velocity"):
        for weight in ("simple", "snr", "min_snr", "elbo"):
            model = build(space, f"target={of}", f"weight={weight}", "schedule.shape=logsnr")
            torch.manual_seed(1)
            found = model.loss(batch)["denoising"].mean()
            torch.manual_seed(1)
            y, t = model.to_units(batch), model.stratified_times(len(batch))
            noise = torch.randn_like(y)
            alpha, sigma = model.schedule.alpha(t)[:, None], model.schedule.sigma(t)[:, None]
            z, nothing = alpha * y + sigma * noise, torch.zeros_like(y)
            error = (
                (DenoiserPrediction(z, alpha, sigma, of, nothing).noise - noise).square().mean(1)
            )
            snr = model.schedule.snr(t)
            own = (regression_target(of, y, noise, alpha, sigma)).square().mean(1)
            wanted = {
                "simple": own,
                "snr": error,
                "elbo": -0.5 * model.schedule.derivative(t) * error,
                "min_snr": (5 / snr).clamp(max=1) * error,
            }[weight]
            assert found.item() == pytest.approx(wanted.mean().item(), rel=1e-9)


def test_learned_variance_is_bounded_by_its_ends_and_lowers_the_bound():
    space, batch = small_data.make("real", 400)
    batch = replace(batch.double(), row=torch.arange(400))
    model = build(space, "steps=10", "variance=learned")
    prediction = model.predict(torch.randn(5, 2).double(), torch.full((5,), 0.5).double())
    assert ((prediction.share > 0) & (prediction.share < 1)).all()
    assert set(model.loss(batch)) == {"denoising", "variance"}
    scores = {}
    for variance in ("posterior", "forward"):
        other = build(space, "steps=10", f"variance={variance}")
        scores[variance] = other.likelihood(batch).value.mean()
    assert scores["forward"] != scores["posterior"]
    model.loss(batch)["variance"].sum().backward()
    assert model.net.net.out.weight.grad[:2].abs().max() == 0  # the mean is not moved by it
    assert model.net.net.out.weight.grad[2:].abs().max() > 0


@pytest.mark.parametrize(
    "net",
    [
        MLPDenoiser.Config(width=8),
        UNetDenoiser.Config(width=4, multipliers=(1, 2)),
        TransformerDenoiser.Config(width=8, depth=1, heads=2, patch=1),
    ],
)
@pytest.mark.parametrize("space", [REAL, SERIES, IMAGE], ids=["vector", "series", "image"])
def test_every_network_reads_every_shape(net, space):
    model = build(space, net=net)
    for parameter in model.net.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    z, t = torch.randn(3, space.dims).double(), torch.rand(3).double()
    whole = model.predict(z, t).value
    assert whole.shape == (3, space.dims)
    torch.testing.assert_close(model.predict(z[1:], t[1:]).value, whole[1:])
    assert not torch.allclose(model.predict(z, t / 2).value, whole)


def test_conditions_of_all_kinds_are_used():
    space = replace(
        IMAGE,
        given={
            "label": Space(kind="label", size=3, name="label"),
            "text": Space(kind="tokens", shape=(4,), size=6, name="text", varies=True),
            "small": Space(kind="real", shape=(2, 3, 3), name="small"),
        },
    )
    given = {
        "label": Batch(torch.tensor([0, 2])),
        "text": Batch(torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]]), length=torch.tensor([3, 2])),
        "small": Batch(torch.randn(2, 2, 3, 3).double()),
    }
    for net in (MLPDenoiser.Config(width=8), UNetDenoiser.Config(width=4, multipliers=(1, 2))):
        model = build(space, net=net)
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
        z, t = torch.randn(1, 42).double().expand(2, 42), torch.full((2,), 0.5).double()
        plain = model.predict(z, t, model.encode_conditions(given, 2)).value
        assert not torch.allclose(plain[0], plain[1])
        for name, other in (
            ("label", given["label"][[1, 1]]),
            ("text", given["text"][[1, 1]]),
            ("small", given["small"][[1, 1]]),
        ):
            changed = model.predict(z, t, model.encode_conditions({**given, name: other}, 2)).value
            assert not torch.allclose(changed[0], plain[0]), name
            torch.testing.assert_close(changed[1], plain[1])
        hidden = model.encode_conditions(given, 2).keep_rows(torch.tensor([False, False]))
        torch.testing.assert_close(model.predict(z, t, hidden).value, model.predict(z, t).value)


def test_padding_of_a_text_is_not_read():
    space = replace(REAL, given={"text": Space(kind="tokens", shape=(4,), size=6, varies=True)})
    model = build(space)
    length = torch.tensor([2])
    one, two = (
        model.encode_conditions(
            {"text": Batch(torch.tensor([[1, 2, pad, pad]]), length=length)}, 1
        )
        for pad in (0, 5)
    )
    torch.testing.assert_close(one.vector, two.vector)


def test_terms_sum_to_the_score():
    space, batch = small_data.make("levels", 50)
    model, rows = build(space), replace(batch.double(), row=torch.arange(50))
    named, value = model.terms(rows), model.likelihood(rows).value
    torch.testing.assert_close(-sum(named.values()), value)
    assert list(named)[:2] == ["prior", "reconstruction"]


@pytest.mark.parametrize("variance", ["posterior", "learned", "forward"])
def test_terms_of_steps_are_what_the_steps_cost(variance):
    """A fresh network is the denoiser of N(0, I), whose steps back have the forward variance."""
    space, batch = small_data.make("real", 100)
    rows = replace(batch.double(), row=torch.arange(100))
    model = build(space, "steps=5", f"variance={variance}")
    with torch.no_grad():
        named, value = model.terms(rows), model.likelihood(rows).value
    torch.testing.assert_close(-sum(named.values()), value)
    gap = named["gap of 5 steps"].mean()
    assert abs(gap) < 0.1 if variance == "forward" else gap > 0.1


def test_score_is_that_of_the_distribution_in_units_of_the_data():
    """A network of zero velocity is the distribution N(mean, scale^2)."""
    space, batch = small_data.make("real", 100)
    model, x = build(space), batch.x[:20].double()
    found = model.score(Batch(x))
    mean, scale = (torch.tensor(v).double() for v in (space.mean, space.scale))
    torch.testing.assert_close(found, -(x - mean) / scale.square(), rtol=1e-3, atol=1e-3)


def test_a_short_fit_nears_a_known_distribution():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 2, generator=g) @ torch.linalg.cholesky(COVARIANCE).T.float()
    space = small_data.fitted(REAL, x)
    model = build(space, "net.width=64").float()
    train_config = replace(DDPM.defaults(space).train, batch_size=256)
    trainer = Trainer(model, small_data.Rows(Batch(x)), train_config, seed=0)
    for _ in fit(trainer, Budget(steps=250)):
        pass
    trainer.ema.put(trainer.ema.weights)
    y, truth = gaussian_rows(300)
    found = model.eval().likelihood(Batch(y.float()), model.LikelihoodConfig(samples=256)).value
    assert -0.2 < (found - truth).mean() < 0.03
    sampled = model.sample(2000, generator=make_generator(0)).double()
    assert (sampled.T.cov() - COVARIANCE).abs().max() < 0.15


def test_invalid_settings_are_refused():
    with pytest.raises(UsageError, match="steps=0"):
        DDPM.Config(steps=0)
    with pytest.raises(UsageError, match="variance=forward"):
        DDPM.Config(variance="forward")
    with pytest.raises(UsageError, match=r"7x6.*patch=4"):
        build(IMAGE, net=TransformerDenoiser.Config(patch=4))
    model = build(IMAGE)
    with pytest.raises(DataError, match=r"0 to 4.*\b9\b"):
        model.likelihood(Batch(torch.full((1, 1, 7, 6), 9.0).double()))


def test_the_start_of_levels_separates_neighbours():
    assert max_log_snr(REAL) == 10
    ratio = math.exp(max_log_snr(IMAGE) / 2) / 1.4  # deviations between two levels
    assert ratio == pytest.approx(8, rel=0.03)


@pytest.mark.parametrize(
    ("shape", "patch", "batch_size", "levels"),
    [
        ((3, 32, 32), 1, 16, 4),  # colour: no squares of pixels, and many small steps
        ((3, 64, 64), 2, 16, 4),
        ((1, 28, 28), 2, 32, 2),  # with clusters
        ((1, 26, 26), 2, 32, 1),  # 13 positions to a side cannot be halved
        ((3, 16, 16), 1, 64, 2),
    ],
)
def test_large_images_have_small_batches_and_colour_32_positions_a_side(
    shape, patch, batch_size, levels
):
    space = Space(kind="levels", shape=shape, size=256, rows=8000)
    found = DDPM.defaults(space)
    assert isinstance(found.config.net, UNetDenoiser.Config)
    assert (found.config.net.patch, found.train.batch_size) == (patch, batch_size)
    assert len(found.config.net.multipliers) == levels
    assert found.config.target == ("residual" if shape[0] == 1 else "velocity")
    model = found.config.build(space)
    assert model.loss(Batch(torch.zeros(2, *shape)))["denoising"].shape == (2,)


def test_a_stable_target_has_the_mean_of_the_row_given_its_noise():
    """Over all batches of three rows of a distribution of three points, at each z."""
    points = torch.tensor([[-1.0, 0.3], [0.2, 1.0], [0.9, -0.8]], dtype=torch.float64)
    shares = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    alpha, sigma = (torch.full((1, 1), value, dtype=torch.float64) for value in (0.8, 0.6))
    for z in torch.tensor([[[0.1, 0.2]], [[-0.7, 0.4]], [[2.0, -1.0]]], dtype=torch.float64):
        density = torch.exp(-0.5 * ((z - alpha * points) / sigma).square().sum(1))
        truth = shares * density @ points / (shares @ density)
        total, found = 0.0, torch.zeros(2, dtype=torch.float64)
        for rows in itertools.product(range(3), repeat=3):
            chance = shares[list(rows)].prod() * density[rows[0]]  # the first is noised to z
            total += chance
            batch = points[list(rows)]
            noise = (z - alpha * batch[:1]) / sigma
            mean, other = (part[0] for part in stable_target(z, batch, noise, alpha, sigma))
            assert torch.allclose(alpha * mean + sigma * other, z, atol=1e-12)
            found += chance * mean
        assert torch.allclose(found / total, truth, atol=1e-12)


def test_a_stable_target_is_the_row_where_there_is_hardly_any_noise():
    y = 3 + 1e-4 * torch.arange(64.0)[:, None].expand(64, 2)  # near each other, far from 0
    alpha, sigma = torch.ones(64, 1), torch.full((64, 1), 1e-5)
    assert torch.equal(stable_target(y, y, torch.zeros_like(y), alpha, sigma)[0], y)


@pytest.mark.parametrize("owner", [DDPM, ScoreSDE])
def test_a_stable_target_expects_a_model_without_conditions(owner):
    told = replace(REAL, given={"label": Space(kind="label", shape=(), size=3, name="label")})
    with pytest.raises(UsageError):
        owner.Config(stable_target=True).build(told)
    assert not owner.defaults(told).config.stable_target
    assert owner.defaults(REAL).config.stable_target


@pytest.mark.parametrize("owner", [DDPM, ScoreSDE])
def test_a_stable_target_leaves_less_of_the_loss(owner):
    """The same weights, rows and noise: what the target no longer varies by is missing."""
    losses = {}
    for stable in (False, True):
        torch.manual_seed(0)
        model = owner.Config(stable_target=stable).build(REAL)
        batch = Batch(torch.randn(256, 2))
        torch.manual_seed(1)
        losses[stable] = model.loss(batch)["denoising"].mean().item()
    assert losses[True] < losses[False]
