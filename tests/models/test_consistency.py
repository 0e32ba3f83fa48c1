"""Consistency models: times, curricula, teachers, and steps of sampling."""

from dataclasses import replace

import pytest
import small_data
import torch
from training import advance

import monge
from monge.core.batch import Batch
from monge.core.config import RunRef
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.models.baseline.gaussian import Gaussian
from monge.models.diffusion._ode_samplers import level
from monge.models.diffusion.consistency import LEVEL_DEVIATION, LEVEL_MEAN, Consistency
from monge.models.diffusion.ddpm import DDPM
from monge.models.diffusion.vdm import VDM
from monge.train.trainer import Trainer

REAL = Space(kind="real", shape=(2,), rows=100)


def built(space=REAL, teacher=None, **fields):
    torch.manual_seed(0)
    if teacher is None:
        return replace(Consistency.smallest_config(space), **fields).build(space)
    config = Consistency.Config(teacher=RunRef("there"), **fields)
    return config.build(space, {"teacher": teacher}).double()


def perturbed(space=REAL, kind=DDPM):
    """A diffusion model whose network is not zero."""
    torch.manual_seed(3)
    model = kind.smallest_config(space).build(space)
    with torch.no_grad():
        for param in model.net.parameters():
            param.add_(0.1 * torch.randn_like(param))
    return model.double()


def count_of(model, step):
    """The number of steps between noise and data, from the times of many rows."""
    s, t = model.sample_times(20_000, step)
    return len(torch.cat([s, t]).unique()) - 1


def test_the_number_of_levels_doubles_up_to_the_most():
    model = built(levels=3, max_levels=10, double_every=5)
    assert [count_of(model, step) for step in (0, 4, 5, 10, 10**9)] == [3, 3, 6, 10, 10]


def test_levels_are_lognormal():
    model = built(levels=200).double()
    s, t = model.sample_times(50_000, 0)
    below, above = (level(model.schedule, each).log() for each in (s, t))
    assert (below < above).all()
    for place in (-2.0, 0.0, 2.0):
        wanted = torch.special.ndtr(torch.tensor((place - LEVEL_MEAN) / LEVEL_DEVIATION))
        assert (below < place).double().mean() >= wanted - 0.02
        assert (above < place).double().mean() <= wanted + 0.02


def test_both_sides_share_their_dropout():
    """With one level at a tiny distance both sides agree, unless their dropout differs."""
    net = replace(DDPM.smallest_config(REAL).net, dropout=0.5)
    model = built(diffusion=replace(DDPM.smallest_config(REAL), net=net)).double().train()
    with torch.no_grad():
        for param in model.diffusion.net.parameters():
            param.add_(0.3 * torch.randn_like(param))
    t = torch.full((64,), 0.5).double()
    model.sample_times = lambda n, step: (t - 1e-9, t)
    loss = model.loss(Batch(torch.randn(64, 2).double()))["consistency"]
    apart = level(model.schedule, t) - level(model.schedule, t - 1e-9)
    assert (loss * apart).max() < 1e-6


def test_no_gradient_passes_through_the_side_near_the_data():
    model = built().double()
    rows, seen = Batch(torch.randn(8, 2).double()), []
    right = model.consistency
    model.consistency = lambda *args: seen.append(right(*args)) or seen[-1]
    model.loss(rows)
    assert [each.requires_grad for each in seen] == [False, True]


def test_a_teacher_is_where_it_starts_and_stays_as_it_is():
    teacher = perturbed().requires_grad_(False)
    model = built(teacher=teacher)
    z, t = torch.randn(5, 2).double(), torch.full((5,), 0.6).double()
    nothing = teacher.condition_encoder.empty(5)
    expected, prediction = model.consistency(z, t, nothing), teacher.predict(z, t)
    start = torch.zeros(()).double()
    alpha, sigma = teacher.schedule.alpha(start), teacher.schedule.sigma(start)
    torch.testing.assert_close(expected, alpha * prediction.x0 + sigma * prediction.noise)
    moved = {id(param) for update in model.updates() for param in update.params}
    assert moved == {id(param) for param in model.diffusion.net.parameters()}


def test_what_a_teacher_learned_of_the_data_stays():
    space, rows = small_data.make("levels")
    teacher = replace(DDPM.smallest_config(space), target="residual").build(space)
    teacher.initialise_from_data(rows[:50])
    model = built(space, teacher=teacher)
    model.initialise_from_data(rows[50:100])
    found = model.diffusion.entrywise.log_frequencies
    torch.testing.assert_close(found, teacher.entrywise.log_frequencies.double())


def test_distillation_follows_the_flow_of_its_teacher():
    """z_s is that of the teacher, not of the row: with rows far from it, the losses differ."""
    teacher = perturbed()
    model, seen = built(teacher=teacher), []
    right = model.consistency
    model.consistency = lambda z, t, conditions: seen.append((z, t)) or right(z, t, conditions)
    y = torch.randn(16, 2).double()
    model.loss(Batch(y))
    (z_s, s), (z_t, t) = seen
    alone, ahead = teacher.predict(z_t, t), teacher.predict(z_s, s)
    x0 = (alone.x0 + ahead.x0) / 2  # the step is implicit in its end to higher order
    ratio = (teacher.schedule.sigma(s) / teacher.schedule.sigma(t))[:, None]
    alpha = teacher.schedule.alpha(s)[:, None] - ratio * teacher.schedule.alpha(t)[:, None]
    near = (z_s - (ratio * z_t + alpha * x0)).norm(dim=1).median()
    row = (z_s - (ratio * z_t + alpha * teacher.to_units(Batch(y)))).norm(dim=1).median()
    assert near < 0.1 * row


def test_a_learned_schedule_is_not_learned_further():
    model = built(teacher=perturbed(kind=VDM))
    assert not [p for p in model.diffusion.schedule.parameters() if p.requires_grad]
    assert model.loss(Batch(torch.randn(8, 2).double()))["consistency"].shape == (8,)


def test_each_step_evaluates_the_network_once():
    model, calls = built().double().eval(), []
    right = model.diffusion.predict
    model.diffusion.predict = lambda z, t, c: calls.append(float(t[0])) or right(z, t, c)
    for steps in (1, 2, 4):
        calls.clear()
        options = model.SamplingConfig(steps=steps)
        model.sample(3, options=options, generator=make_generator(0))
        assert len(calls) == steps
        assert calls[0] == 1.0
        assert sorted(calls, reverse=True) == calls


def test_noise_between_steps_is_that_of_the_process():
    """With f that gives z_0 = 0, the z of later steps have the variance of the process."""
    model, seen = built().double().eval(), []
    model.consistency = lambda z, t, c: seen.append((z, t[0])) or torch.zeros_like(z)
    model.sample(20_000, options=model.SamplingConfig(steps=3), generator=make_generator(0))
    noising = model.schedule
    for z, t in seen[1:]:
        variance = noising.step(torch.zeros_like(t), t).forward
        assert z.var().item() == pytest.approx(float(variance), rel=0.03)


def test_a_fitted_teacher_is_distilled_and_kept(tmp_path):
    data = torch.randn(60, 3).numpy()
    teacher = monge.fit("ddpm", data, "net.width=8", budget="3steps", out=tmp_path / "ddpm")
    run = monge.fit(
        "consistency", data, f"teacher={teacher.folder}", budget="3steps", out=tmp_path / "few"
    )
    assert run.model.diffusion.config.net.width == 8
    assert run.model.config.diffusion is None
    kept = run.model.parts["teacher"].net.state_dict()
    assert all(torch.equal(v, kept[k]) for k, v in teacher.model.net.state_dict().items())
    (tmp_path / "ddpm").rename(tmp_path / "elsewhere")
    again = monge.load(run.folder)
    assert torch.equal(again.sample_tensor(4, {}, "steps=1"), run.sample_tensor(4, {}, "steps=1"))


def test_other_teachers_are_refused():
    other = Space(kind="real", shape=(3,), rows=10)
    shifted = replace(REAL, mean=(1.0, 1.0))
    conditional = small_data.conditioned(*small_data.make("real"), "label")[0]
    plain = replace(conditional, given={})
    with pytest.raises(UsageError, match="gaussian"):
        built(teacher=Gaussian.Config().build(REAL))
    for space, mine in ((other, REAL), (shifted, REAL), (conditional, plain)):
        with pytest.raises(UsageError):
            built(mine, teacher=DDPM.smallest_config(space).build(space))
    with pytest.raises(UsageError, match="gaussian"):
        built(diffusion=Gaussian.Config())
    with pytest.raises(UsageError, match="ddpm"):
        built(teacher=perturbed(), diffusion=DDPM.smallest_config(REAL))


def test_shares_of_names_are_kept_better_by_the_default_loss():
    """Names of four fifths and one fifth, early in training: a small `huber` is minimised by the
    median, which is the more frequent name."""
    label = Space(kind="label", shape=(), size=2)
    space = Space(kind="columns", shape=(3,), columns=(label,) * 3, rows=400)
    x = (torch.rand(400, 3, generator=make_generator(0)) < 0.2).float()
    default = Consistency.defaults(space).config.huber
    taught = Consistency.defaults_with(space, {"teacher": "runs/ddpm"}).config
    assert (taught.huber, taught.diffusion) == (default, None)
    off = {}
    for huber in (default, Consistency.Config().huber):
        model = built(space, huber=huber)
        training = Trainer(model, small_data.Rows(Batch(x)), TrainConfig(batch_size=100, lr=0.003))
        advance(training, 150)
        samples = model.eval().sample(4000, generator=make_generator(1))
        off[huber] = (samples.mean(0) - x.mean(0)).abs().max()
    assert off[default] < 0.75 * off[Consistency.Config().huber]
