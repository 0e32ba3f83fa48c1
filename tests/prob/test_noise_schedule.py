"""Schedules: closed forms against autograd and simulation, ends, inverses, invalid settings."""

import itertools
import math

import pytest
import torch

from monge.core.errors import UsageError
from monge.prob.noise_schedule import CURVES, NoiseSchedule

SHAPES = ("linear", "cosine", "sigmoid", "logsnr", "edm")
FAMILIES = ("preserving", "exploding", "sub")
EVERY = list(itertools.product(SHAPES, FAMILIES))
T = torch.linspace(0, 1, 101, dtype=torch.float64)


def make(shape="cosine", family="preserving", **fields):
    return NoiseSchedule.Config(shape=shape, family=family, **fields).build()


@pytest.mark.parametrize(("shape", "family"), EVERY)
def test_log_snr_falls_between_its_ends_and_is_inverted(shape, family):
    schedule = make(shape, family, high=8.0, low=-7.0)
    log_snr = schedule.log_snr(T)
    assert log_snr[0].item() == pytest.approx(8.0, abs=1e-9)
    assert log_snr[-1].item() == pytest.approx(-7.0, abs=1e-9)
    assert (log_snr.diff() < 0).all()
    torch.testing.assert_close(schedule.time(log_snr), T, rtol=0, atol=1e-12)
    assert schedule.time(torch.tensor([99.0, -99.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shift_moves_the_curve_between_the_same_ends(shape):
    """lambda of the shifted curve is that of the curve at the same place plus the shift."""
    schedule = make(shape, high=8.0, low=-7.0, shift=-1.5)
    log_snr = schedule.log_snr(T)
    assert log_snr[[0, -1]].tolist() == pytest.approx([8.0, -7.0], abs=1e-9)
    torch.testing.assert_close(schedule.time(log_snr), T, rtol=0, atol=1e-12)
    wide = make(shape, high=9.5, low=-5.5)
    torch.testing.assert_close(log_snr, wide.log_snr(T) - 1.5)
    torch.testing.assert_close(schedule.derivative(T), wide.derivative(T))


@pytest.mark.parametrize(("shape", "family"), EVERY)
def test_slope_drift_and_diffusion_are_derivatives(shape, family):
    """f = d log alpha / dt and g^2 = d sigma^2 / dt - 2 f sigma^2."""
    schedule, t = make(shape, family), T.clone().requires_grad_()

    def slope(value):
        if not value.requires_grad:
            return torch.zeros_like(t)
        return torch.autograd.grad(value.sum(), t, retain_graph=True)[0]

    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    torch.testing.assert_close(schedule.derivative(t), slope(schedule.log_snr(t)))
    drift = slope(alpha.log())
    torch.testing.assert_close(schedule.drift(t), drift)
    noise = slope(sigma.square()) - 2 * drift * sigma.square()
    torch.testing.assert_close(schedule.diffusion(t), noise, rtol=1e-8, atol=1e-10)


def test_families_scale_one_process():
    for family in FAMILIES:
        schedule = make("linear", family)
        ratio = schedule.alpha(T) / schedule.sigma(T)
        torch.testing.assert_close(ratio.square(), make("linear").snr(T))
    assert (make(family="exploding").alpha(T) == 1).all()
    sub = make(family="sub")
    torch.testing.assert_close(sub.sigma(T), 1 - sub.alpha_bar(T))


def test_linear_is_the_limit_of_the_steps_of_the_paper():
    """1000 steps of variance 1e-4 to 0.02; in the limit their product is an integral."""
    beta = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    shares = torch.cumprod(1 - beta, 0)
    schedule = make("linear", high=12.0, low=-10.0)
    for step in (100, 500, 900):
        lost = schedule.curve.lost(torch.tensor(step / 1000, dtype=torch.float64))
        assert lost.item() == pytest.approx(-shares[step - 1].log().item(), rel=1e-2)


def test_step_is_sampled_by_simulation():
    """Mean and variance of z_s given a small window of z_t, x fixed."""
    schedule, g = make("logsnr", high=2.0, low=-4.0), torch.Generator().manual_seed(0)
    s, t = (torch.tensor(v, dtype=torch.float64) for v in (0.3, 0.5))
    x, n = 0.7, 2_000_000
    gaussian = torch.randn(2, n, generator=g, dtype=torch.float64)
    step = schedule.step(s, t)
    z_s = schedule.alpha(s) * x + schedule.sigma(s) * gaussian[0]
    z_t = schedule.alpha(t) / schedule.alpha(s) * z_s + step.forward.sqrt() * gaussian[1]
    near = z_s[(z_t - 0.2).abs() < 0.02]
    mean = step.on_z * 0.2 + step.on_x * x
    error = (step.variance / len(near)).sqrt()
    assert abs(near.mean() - mean) < 5 * error
    assert near.var().item() == pytest.approx(step.variance.item(), rel=0.02)


def test_grid_has_both_ends():
    assert make().grid(4).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert make().grid(3, T).dtype == torch.float64
    with pytest.raises(UsageError, match="steps=0"):
        make().grid(0)


def test_an_end_that_is_not_noise_is_refused_with_its_snr():
    with pytest.raises(UsageError, match=r"low=-1 .*0\.368"):
        NoiseSchedule.Config(low=-1.0)
    with pytest.raises(UsageError, match="shape=cosin"):
        NoiseSchedule.Config(shape="cosin")
    assert math.exp(NoiseSchedule.Config(low=-4.0).low) < 0.02


@pytest.mark.parametrize(("shape", "family"), EVERY)
def test_a_step_back_from_the_later_marginal_is_the_earlier_one(shape, family):
    """q(z_s | x) from q(z_t | x) and q(z_s | z_t, x), and q(z_t | x) from q(z_s | x)."""
    schedule = make(shape, family)
    s, t = T[:-1], T[1:]
    step, (a_s, a_t) = schedule.step(s, t), (schedule.alpha(s), schedule.alpha(t))
    v_s, v_t = schedule.sigma(s).square(), schedule.sigma(t).square()
    torch.testing.assert_close(step.on_z * a_t + step.on_x, a_s)
    torch.testing.assert_close(step.on_z.square() * v_t + step.variance, v_s)
    torch.testing.assert_close((a_t / a_s).square() * v_s + step.forward, v_t)
    torch.testing.assert_close(schedule.spread(t), (a_t.square() + v_t).sqrt())


def test_curves_are_their_formulas():
    u, rho = T[1:-1], 3.0
    sigmoid = [torch.sigmoid(torch.tensor(v, dtype=torch.float64)) for v in (-3.0, 3.0)]
    share = {  # alpha squared of a variance-preserving process
        "linear": torch.exp(-(0.1 * u + (20 - 0.1) * u.square() / 2)),
        "cosine": torch.cos(math.pi * u / 2).square(),
        "sigmoid": (sigmoid[1] - torch.sigmoid(6 * u - 3)) / (sigmoid[1] - sigmoid[0]),
        "logsnr": torch.sigmoid(-u),
        "edm": 1 / (1 + u ** (2 * rho)),
    }
    for name, curve in CURVES.items():
        torch.testing.assert_close(torch.sigmoid(curve(rho).height(u)), share[name])
        torch.testing.assert_close(curve(rho).place(curve(rho).height(u)), u)
