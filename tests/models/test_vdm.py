"""Variational diffusion: the learned schedule, the three terms, the second turn."""

from dataclasses import replace

import pytest
import small_data
import torch

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._units import EntrywiseDenoiser, Units
from monge.models.diffusion.vdm import VDM, LearnedSchedule
from monge.train.trainer import Trainer

T = torch.linspace(0, 1, 101, dtype=torch.float64)


def build(kind="levels", *settings, rows=200):
    space, batch = small_data.make(kind, rows)
    torch.manual_seed(0)
    model = VDM.smallest_config(space).override(*settings).build(space).double()
    batch = replace(batch.double(), row=torch.arange(rows))
    model.initialise_from_data(batch)
    return model, batch


def test_learned_schedule_keeps_its_ends_and_its_slope():
    torch.manual_seed(0)
    gamma = LearnedSchedule.Config(high=7.0, low=-5.0, width=6).build().double()
    for parameter in gamma.shape_params:
        parameter.data.add_(2 * torch.randn_like(parameter))
    t = T.clone().requires_grad_()
    log_snr = gamma.log_snr(t)
    (slope,) = torch.autograd.grad(log_snr.sum(), t)
    torch.testing.assert_close(gamma.derivative(t), slope)
    assert log_snr[[0, -1]].tolist() == pytest.approx([7.0, -5.0])
    assert (slope < 0).all()
    torch.testing.assert_close(gamma.time(log_snr.detach()), T, rtol=0, atol=1e-9)


def test_ends_of_reals_stay_and_those_of_levels_learn():
    assert build("levels")[0].schedule.ends.requires_grad
    assert not build("real")[0].schedule.ends.requires_grad
    assert not build("levels", "schedule.learn_ends=false")[0].schedule.ends.requires_grad
    with pytest.raises(UsageError, match=r"low=-1\b.*0\.368"):
        LearnedSchedule.Config(low=-1.0)


@pytest.mark.parametrize("kind", ["real", "binary", "levels"])
def test_loss_is_the_bound_that_is_scored(kind):
    """Averaged over many samples, the three terms of training are those of the score."""
    model, batch = build(kind)
    with torch.no_grad():
        losses = [{k: v.mean() for k, v in model.loss(batch).items()} for _ in range(60)]
        scored = model.bound_terms(batch, model.LikelihoodConfig(samples=64))
    assert list(losses[0]) == ["prior", "reconstruction", "diffusion"]
    for name in losses[0]:
        each = torch.stack([one[name] for one in losses])
        wanted = getattr(scored, name).mean()
        assert abs(each.mean() - wanted) < 5 * each.std() / 60**0.5 + 0.02, name


def test_bend_does_not_change_the_bound_of_continuous_time():
    model, batch = build("levels")
    batch = batch[:32]
    with torch.no_grad():
        one = model.likelihood(batch).value
        for parameter in model.schedule.shape_params:
            parameter.add_(torch.randn_like(parameter))
        two = model.likelihood(batch).value
        torch.testing.assert_close(one, two)
        model.schedule.ends[0] += 1.0
        assert not torch.allclose(model.likelihood(batch).value, two)


def test_two_updates_share_the_parameters():
    model, _ = build("levels")
    bound, variance = model.updates()
    assert (bound.name, variance.name) == ("bound", "variance")
    assert {id(p) for p in variance.params} == {id(p) for p in model.schedule.shape_params}
    assert len(bound.params) + len(variance.params) == len(list(model.parameters()))
    assert [update.name for update in build("levels", "steps=20")[0].updates()] == ["bound"]


def test_variance_update_lowers_the_variance_of_the_estimate():
    """Of a bend that was spoiled, in which nearly all time is spent at one noise."""
    model, batch = build("levels", rows=400)
    with torch.no_grad():
        model.schedule.size[0] = 4.0

    def spread():
        torch.manual_seed(5)
        with torch.no_grad():
            return torch.stack([model.loss(batch)["diffusion"] for _ in range(20)]).var(0).mean()

    before = spread()
    mover = torch.optim.Adam(model.schedule.shape_params, lr=0.05)
    for _ in range(40):
        mover.zero_grad()
        model.variance_of_bound(batch)["square"].mean().backward(
            inputs=model.schedule.shape_params
        )
        mover.step()
    assert spread() < 0.9 * before


def test_entrywise_denoising_is_the_posterior_of_each_entry():
    space, batch = small_data.make("levels", 500)
    units = Units(space).double()
    alone = EntrywiseDenoiser(space, units).double()
    y = units.to_units(batch.x.double())
    alone.fit(y)
    alpha, sigma = torch.tensor([[0.9]]).double(), torch.tensor([[0.4]]).double()
    z = torch.tensor([[0.3, -0.5, 1.0, 0.0]]).double()
    mean, scale = alone(z, alpha, sigma)
    for d in range(4):
        levels = (torch.arange(4) - units.shift[d]) / units.scale[d]
        weight = (
            alone.log_frequencies[d].exp() * (-0.5 * ((z[0, d] - 0.9 * levels) / 0.4) ** 2).exp()
        )
        weight = weight / weight.sum()
        wanted = (weight * levels).sum()
        assert mean[0, d].item() == pytest.approx(wanted.item())
        square = (weight * (levels - wanted).square()).sum()
        assert scale[0, d].item() == pytest.approx(square.sqrt().item())
    near, _ = alone(0.9 * y, alpha, torch.tensor([[1e-3]]).double())
    torch.testing.assert_close(near, y)


@pytest.mark.parametrize(("alpha", "sigma"), [(0.3, 0.95), (0.9, 0.4), (0.97, 0.25)])
def test_many_levels_are_denoised_by_runs_and_a_background_of_one_level_at_once(alpha, sigma):
    """Beside the posterior over all 256 levels; even levels within the runs give the same."""
    space = Space(kind="levels", shape=(2,), size=256, rows=5120, mean=(30.0,), scale=(80.0,))
    units = Units(space).double()
    alone = EntrywiseDenoiser(space, units).double()
    x = torch.arange(256.0).double().repeat_interleave(20)[:, None].repeat(1, 2)
    x[:, 1] = x[:, 1].where(torch.arange(5120) % 5 == 0, 0.0)  # a pixel of the background
    alone.fit(units.to_units(x))
    levels = ((torch.arange(256) - units.shift[:, None]) / units.scale[:, None]).double()
    weight = torch.stack([torch.bincount(column, minlength=256) for column in x.long().T])
    z = torch.tensor([[0.2, -0.35], [1.5, 2.0], [-0.4, 0.7]]).double()
    mean, scale = alone(z, *torch.tensor([alpha, sigma]).double()[:, None, None].expand(2, 3, 1))
    posterior = (-0.5 * ((z[..., None] - alpha * levels) / sigma) ** 2).exp() * weight
    posterior = posterior / posterior.sum(2, keepdim=True)
    wanted = (posterior * levels).sum(2)
    square = (posterior * (levels - wanted[..., None]) ** 2).sum(2)
    spread = square.sqrt().clamp_min(1e-3)
    assert ((mean - wanted).abs() < 0.01 * spread).all()
    torch.testing.assert_close(scale, spread, rtol=0.01, atol=0)
    evidence = torch.tensor([[1.0, -2.0], [-3.0, 0.5], [4.0, 2.0]]).double()
    first = alone.estimate(z, *torch.tensor([[[alpha]], [[sigma]]]).double(), None)
    posterior = posterior * (evidence[..., None] * levels / sigma).exp()
    wanted = (posterior * levels).sum(2) / posterior.sum(2)
    assert ((first.refine(evidence)[0] - wanted).abs() < 0.02 * spread).all()
    y = units.to_units(torch.zeros(1, 2).double())
    exact, _ = alone(y, torch.ones(1, 1).double(), torch.full((1, 1), 2e-3).double())
    torch.testing.assert_close(exact[0, 1], y[0, 1])


def test_training_begins_at_a_model_of_independent_entries():
    """Before training, the bound is near what independent entries reach."""
    space = Space(kind="levels", shape=(3,), size=6, rows=4000, mean=(2.0,), scale=(1.3,))
    g = torch.Generator().manual_seed(0)
    shares = torch.tensor(
        [
            [0.5, 0.1, 0.1, 0.1, 0.1, 0.1],
            [0.05, 0.05, 0.4, 0.4, 0.05, 0.05],
            [0.02, 0.9, 0.02, 0.02, 0.02, 0.02],
        ]
    )
    x = torch.multinomial(shares, 4000, True, generator=g).T.double()
    torch.manual_seed(0)
    model = VDM.smallest_config(space).build(space).double()
    model.initialise_from_data(Batch(x))
    entropy = -(shares.double() * shares.double().log()).sum()
    with torch.no_grad():
        found = model.likelihood(Batch(x), model.LikelihoodConfig(samples=64)).value.mean()
    assert -entropy - 0.05 < found < -entropy + 0.05


def test_a_resumed_model_restores_the_shares():
    model, batch = build("levels")
    batch = batch[:32]
    other = model.config.build(model.space).double()
    with torch.no_grad():
        assert not torch.allclose(other.likelihood(batch).value, model.likelihood(batch).value)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.likelihood(batch).value, model.likelihood(batch).value)


def test_a_short_fit_learns_bits():
    space, batch = small_data.make("binary", 600)
    torch.manual_seed(0)
    model = VDM.smallest_config(space).build(space)
    trainer = Trainer(
        model, small_data.Rows(batch), replace(VDM.defaults(space).train, batch_size=128), 0
    )
    for _ in range(100):
        trainer.train_step(1.0)
    with torch.no_grad():
        score = model.eval().likelihood(batch).value.mean()
    shares = batch.x.mean(0)
    independent = (shares * shares.log() + (1 - shares) * (1 - shares).log()).sum()
    assert score > independent + 0.1
    x = model.sample(2000, generator=make_generator(0))
    assert (x.mean(0) - shares).abs().max() < 0.06
    assert x.T.cov()[0, 1:].min() > 0.02  # bits hang together, as those of the data do
