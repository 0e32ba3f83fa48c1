"""Samplers with the exact score: where they lead, how fast they converge, what they refuse."""

import itertools
from dataclasses import replace

import pytest
import torch

from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._denoisers import MLPDenoiser
from monge.models.diffusion._ode_samplers import DPM, ODE, Heun
from monge.models.diffusion._parameterisation import DenoiserPrediction
from monge.models.diffusion._samplers import DDIM, PC, Ancestral, Langevin, ancestral
from monge.models.diffusion.ddpm import DDPM
from monge.prob.noise_schedule import NoiseSchedule
from monge.verify._noisy_mixtures import NoisyGaussianMixture, line, plane

NOISING = NoiseSchedule.Config().build()
EVERY = [Ancestral, DDIM, PC, Langevin, DPM, Heun, ODE]
DIRECTIONS = torch.nn.functional.normalize(
    torch.randn(2, 16, generator=make_generator(0), dtype=torch.float64), dim=0
)


def normal(n, dims, seed=0):
    return torch.randn(n, dims, generator=make_generator(seed), dtype=torch.float64)


def led(config, distribution, z, noising=NOISING, seed=0, **rest):
    """The path of a sampler that knows the distribution."""
    return list(
        config.build().sample(
            distribution.denoiser(noising), noising, z, make_generator(seed), **rest
        )
    )


def ranks(distribution, t, n=400):
    levels = (torch.arange(n).double() + 0.5) / n
    at = torch.full((1, 1), t).double()
    return distribution.quantile(levels, NOISING.alpha(at), NOISING.sigma(at))


def miss(config, distribution=None, start=1.0):
    """How far from the exact flow a sampler leads, in the mean over ranks."""
    distribution = distribution or line()
    z, truth = ranks(distribution, start), ranks(distribution, 0.0)
    return (led(config, distribution, z, start=start)[-1][0] - truth).abs().mean().item()


@pytest.mark.parametrize("owner", EVERY)
def test_a_path_yields_z_and_x_at_every_step_and_follows_its_noise(owner):
    config = owner.Config(steps=8) if owner is not ODE else ODE.Config(method="rk4", steps=8)
    z = normal(20, 2)
    path, same = (led(config, plane(), z) for _ in range(2))
    assert len(path) == 8 + (owner is ODE)
    assert all(
        torch.equal(a, b)
        for one, two in zip(path, same, strict=True)
        for a, b in zip(one, two, strict=True)
    )
    assert all(part.shape == z.shape and part.isfinite().all() for step in path for part in step)
    other = led(config, plane(), z, seed=1)[-1][0]
    samples = owner in (Ancestral, PC, Langevin)
    assert torch.equal(other, path[-1][0]) is not samples


@pytest.mark.parametrize(
    "config",
    [
        Ancestral.Config(steps=3),
        DDIM.Config(steps=3),
        DDIM.Config(steps=3, eta=0.7),
        DPM.Config(steps=3),
        DPM.Config(steps=3, noise=0.6),
        Heun.Config(steps=3, churn=3.0),
        ODE.Config(method="rk4", steps=2),
        PC.Config(steps=3),
        Langevin.Config(steps=3, corrections=2),
    ],
    ids=str,
)
def test_the_same_noise_gives_the_same_sample_in_every_family_and_by_every_target(config):
    """But for the forward step's variance, which is what it is in the scale of its family."""
    z, ends = normal(10, 2), torch.tensor([0.0, 1.0]).double()
    for shape in ("linear", "cosine", "sigmoid", "logsnr", "edm"):
        wanted = None
        for family, of in itertools.product(
            ("preserving", "exploding", "sub"), ("x0", "noise", "score", "velocity")
        ):
            noising = NoiseSchedule.Config(family=family, shape=shape).build()
            exact, scale = plane().denoiser(noising), noising.spread(ends[1])

            def predict(z, t, exact=exact, of=of):
                prediction = exact(z, t)
                return replace(prediction, of=of, value=getattr(prediction, of))

            *_, (last, _) = config.build().sample(predict, noising, scale * z, make_generator(0))
            found = last / noising.alpha(ends[0])
            wanted = found if wanted is None else wanted
            torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("config", "order"),
    [
        (lambda n: DDIM.Config(steps=n), 1),
        (lambda n: DPM.Config(steps=n, order=1), 1),
        (lambda n: DPM.Config(steps=n, correct=False), 2),
        (lambda n: DPM.Config(steps=n), 2),
        (lambda n: Heun.Config(steps=n), 2),
    ],
)
def test_solvers_have_their_order(config, order):
    ratio = miss(config(40)) / miss(config(80))
    assert 0.75 * 2**order < ratio < 2.6 * 2**order


def test_the_flow_is_solved_to_its_tolerance_from_any_time():
    assert miss(ODE.Config(tolerance=1e-6)) < 1e-5
    assert miss(ODE.Config(tolerance=1e-6), start=0.6) < 1e-5
    assert miss(ODE.Config(tolerance=1e-2)) > 1e-5


def test_correction_pays_where_steps_are_few():
    assert miss(DPM.Config(steps=10)) < 0.7 * miss(DPM.Config(steps=10, correct=False))
    assert miss(DPM.Config(steps=10, order=1)) > 3 * miss(DPM.Config(steps=10))


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_fresh_noise_is_what_is_lost_at_every_share_of_it(noise):
    """Where x is known, z stays that of q(z_s | x): mean alpha x and variance sigma^2."""
    x = torch.tensor([0.7, -1.2]).double()

    def predict(z, t):
        alpha, sigma = NOISING.alpha(t)[:, None], NOISING.sigma(t)[:, None]
        return DenoiserPrediction(z, alpha, sigma, "x0", x.expand_as(z))

    t = torch.tensor(0.8).double()
    z = NOISING.alpha(t) * x + NOISING.sigma(t) * normal(20_000, 2)
    config, g = DPM.Config(steps=4, noise=noise), make_generator(1)
    times = config.build().times(NOISING, z, 0.8, 0)[1:]
    path = config.build().sample(predict, NOISING, z, g, start=0.8)
    for s, (found, _) in zip(times, path, strict=True):
        alpha, sigma = NOISING.alpha(s), NOISING.sigma(s)
        spread = (found - alpha * x) / sigma
        assert float(spread.mean().abs()) < 0.02
        assert float(spread.std()) == pytest.approx(1, abs=0.02)


def test_fresh_noise_corrects_an_error_that_was_made_at_much_noise():
    """The first prediction is wrong by 1; what is left of it at the end, with and without."""
    exact, z = plane().denoiser(NOISING), normal(4000, 2)

    def first_wrong(z, t):
        prediction = exact(z, t)
        return prediction.map_x0(lambda x: x + (t[:, None] > 0.99))

    def left(noise):
        config = DPM.Config(steps=25, noise=noise)
        means = [
            [*config.build().sample(predict, NOISING, z, make_generator(0))][-1][0].mean(0)
            for predict in (exact, first_wrong)
        ]
        return float((means[0] - means[1]).norm())

    assert left(1.0) < 0.5 * left(0.0)


def test_images_have_fresh_noise_from_twenty_steps_on_by_default():
    image = Space(kind="levels", shape=(1, 8, 8), size=17, mean=(8.0,), scale=(5.0,))
    vector = replace(image, shape=(64,))
    for space, steps, noise in ((image, 25, 1.0), (image, 10, 0.0), (vector, 25, 0.0)):
        model = DDPM.smallest_config(space).build(space)
        options = model.SamplingConfig(sampler=DPM.Config(steps=steps))
        assert model.sampling_options(options).sampler.noise == noise
        chosen = replace(options, sampler=DPM.Config(steps=steps, noise=0.3))
        assert model.sampling_options(chosen).sampler.noise == 0.3
    few = replace(DDPM.smallest_config(image), steps=8).build(image)
    assert few.sampling_options(None).sampler.noise == 0.0


@pytest.mark.parametrize("spacing", ["time", "log_snr", "edm"])
def test_the_default_spacing_halves_the_error_of_any_other_where_steps_are_few(spacing):
    assert miss(DPM.Config(steps=10)) < 0.5 * miss(DPM.Config(steps=10, spacing=spacing))


def projected(distribution, n):
    """Exact quantiles of the distribution's projections, (n, directions)."""
    levels, alpha = (torch.arange(n).double() + 0.5) / n, torch.ones(1, 1).double()
    shadows = (
        NoisyGaussianMixture(
            distribution.weights, distribution.means @ direction[:, None], distribution.scales
        )
        for direction in DIRECTIONS.T
    )
    return torch.cat([shadow.quantile(levels, alpha, 0 * alpha) for shadow in shadows], 1)


@pytest.mark.slow
def test_ten_steps_of_dpm_are_no_worse_than_250_ancestral_ones():
    distribution, n = plane(), 16_000
    zero, truth = torch.zeros(n).double(), projected(distribution, n)

    def distance(config):
        z = led(config, distribution, normal(n, 2), seed=50)[-1][0]
        x = distribution.denoiser(NOISING)(z, zero).x0
        return ((x @ DIRECTIONS).sort(0)[0] - truth).abs().mean()

    slow = distance(Ancestral.Config(steps=250))
    assert distance(DPM.Config(steps=10)) < 1.1 * slow
    assert distance(DPM.Config(steps=10, spacing="time")) > 1.1 * slow
    assert distance(DDIM.Config(steps=10)) > 1.1 * slow


def test_a_grid_is_followed_and_more_steps_than_it_has_are_refused():
    z = normal(3, 1)
    for owner in (Ancestral, DDIM, PC, DPM, Heun, Langevin):
        for spacing in ("middle", "time", "log_snr", "edm"):
            times = owner.Config(steps=7, spacing=spacing).build().times(NOISING, z, 1.0, 20)
            places = (20 * times).tolist()
            assert places[0] == 20
            assert places[-1] == 0
            assert len(set(places)) == 8
            assert places == [round(place) for place in sorted(places, reverse=True)]
        assert len(owner.Config().build().times(NOISING, z, 1.0, 4)) == 5
        with pytest.raises(UsageError, match=r"20.*steps=21"):
            owner.Config(steps=21).build().times(NOISING, z, 1.0, 20)
        with pytest.raises(UsageError, match="steps=0"):
            owner.Config(steps=0)
    with pytest.raises(UsageError, match="steps=0"):
        NOISING.grid(0)


def test_the_variance_of_a_step_is_the_posteriors_the_forward_steps_or_between():
    s, t = torch.tensor([0.3, 0.6]).double()
    z, x, noise = normal(4, 2), normal(4, 2, 1), normal(4, 2, 2)
    step = NOISING.step(s, t)
    alpha, sigma = NOISING.alpha(t).expand(4, 1), NOISING.sigma(t).expand(4, 1)

    def spread(variance, share=None):
        prediction = DenoiserPrediction(z, alpha, sigma, "x0", x, share)
        samples, mean = (
            ancestral(prediction, NOISING, z, s, t, n, variance) for n in (noise, 0 * noise)
        )
        return ((samples - mean) / noise).square()

    assert step.variance < step.forward
    torch.testing.assert_close(spread("posterior"), step.variance.expand(4, 2))
    torch.testing.assert_close(spread("forward"), step.forward.expand(4, 2))
    torch.testing.assert_close(spread("learned"), step.variance.expand(4, 2))
    half = (step.variance * step.forward).sqrt().expand(4, 2)
    torch.testing.assert_close(spread("learned", torch.full((4, 2), 0.5).double()), half)


def test_churn_adds_noise_and_preserves_the_distribution():
    distribution, n = line(), 4000
    z = normal(n, 1)
    still, stirred = (
        led(Heun.Config(steps=30, churn=churn), distribution, z)[-1][0] for churn in (0.0, 8.0)
    )
    assert (still - stirred).abs().mean() > 0.05
    truth = ranks(distribution, 0.0, n)
    assert (stirred.sort(0)[0] - truth).abs().mean() < 0.06


def test_a_model_of_few_steps_takes_no_more():
    space = Space(kind="real", shape=(2,), mean=(0.0, 0.0), scale=(1.0, 1.0), rows=100)
    model = DDPM.Config(net=MLPDenoiser.Config(width=8, depth=1), steps=6).build(space)
    for owner in EVERY:
        assert model.sample(3, None, model.SamplingConfig(sampler=owner.Config())).shape == (3, 2)
        fixed = {"method": "rk4"} if owner is ODE else {}
        with pytest.raises(UsageError, match=r"\b6 steps.*steps=7"):
            model.sample(3, None, model.SamplingConfig(sampler=owner.Config(steps=7, **fixed)))
    with pytest.raises(UsageError, match="steps=0"):
        DDPM.Config(steps=0)
