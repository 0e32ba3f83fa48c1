"""Progressive distillation: its stages, its teachers, and the step that is two."""

from dataclasses import replace

import pytest
import small_data
import torch
from training import advance, assert_unbroken

import monge
from monge.core.batch import Batch
from monge.core.config import RunRef
from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.models.diffusion.ddpm import DDPM
from monge.models.diffusion.distilled import Distilled
from monge.train.trainer import Trainer

SPACE = Space(kind="real", shape=(2,), rows=100)
ROWS = Batch(torch.randn(200, 2, generator=torch.Generator().manual_seed(0)))


def built(**fields):
    torch.manual_seed(0)
    return replace(Distilled.smallest_config(SPACE), **fields).build(SPACE)


def trainer(**fields):
    return Trainer(
        built(**fields), small_data.Rows(ROWS), TrainConfig(batch_size=50, lr=0.01, ema_decay=0.9)
    )


def steps_of_sampling(model):
    times, right = [], model.diffusion.predict
    model.diffusion.predict = lambda z, t, c: times.append(float(t[0])) or right(z, t, c)
    model.sample(1, generator=make_generator(0))
    model.diffusion.predict = right
    return len(times)


def weights(model):
    return torch.cat([param.detach().flatten() for param in model.net.parameters()]).clone()


def test_steps_are_halved_until_the_last():
    model = built(steps=2, halvings=3, stage_steps=5, teacher_steps=4)
    found = [model.student_steps(step) for step in (0, 4, 8, 9, 13, 14, 19, 10**9)]
    assert found == [8, 8, 8, 4, 4, 2, 2, 2]
    for step, steps in {0: 16, 3: 16, 4: 8, 9: 4, 14: 2, 10**6: 2}.items():
        assert model.renew_teacher(replace(ROWS, step=step))["steps"].item() == steps
        assert steps_of_sampling(model) == steps  # a fit that ends here samples by these
    state = model.state_dict()
    del state["trained_steps"]  # as an earlier version saved it
    model.renew_teacher(replace(ROWS, step=0))
    model.load_state_dict(state)
    assert steps_of_sampling(model) == 2


def test_a_student_becomes_the_teacher_at_each_stage():
    training = trainer(steps=1, halvings=2, stage_steps=3, teacher_steps=2)
    model, equal = training.model, []
    seen = []
    for _ in range(12):
        before = weights(model.diffusion)
        advance(training, 1)
        seen.append(weights(model.reference))
        equal.append(torch.equal(seen[-1], before))
    assert equal == [step in (2, 5) for step in range(12)]
    assert torch.equal(seen[5], seen[-1])  # the last teacher stays


def test_a_fit_that_is_resumed_in_a_stage_goes_on_alike(tmp_path):
    assert_unbroken(
        lambda: trainer(steps=1, halvings=2, stage_steps=2, teacher_steps=1), tmp_path, 3
    )


def test_the_first_teacher_is_trained_by_its_own_loss():
    model = built(teacher_steps=3)
    model.initialise_from_data(ROWS)
    assert set(model.loss(replace(ROWS, step=2))) == {"denoising"}
    assert set(model.loss(replace(ROWS, step=3))) == {"distillation"}


def test_a_student_that_predicts_the_target_has_no_loss():
    """At a network that always predicts the same x, two steps are one."""
    teacher = DDPM.smallest_config(SPACE).build(SPACE).double()
    config = Distilled.Config(teacher=RunRef("there"), steps=4, halvings=1)
    model = config.build(SPACE, {"teacher": teacher}).double()
    fixed = torch.tensor([[0.3, -0.2]]).double()
    for each in (model.diffusion, model.reference):
        right = each.predict
        each.predict = lambda z, t, c, right=right: right(z, t, c).map_x0(
            lambda x: fixed.expand_as(x)
        )
    assert model.loss(ROWS.double())["distillation"].max() < 1e-20


def test_samples_take_the_steps_of_the_last_student():
    model, times = built(steps=3).double().eval(), []
    right = model.diffusion.predict
    model.diffusion.predict = lambda z, t, c: times.append(float(t[0])) or right(z, t, c)
    model.sample(2, generator=make_generator(0))
    assert times == pytest.approx([1, 2 / 3, 1 / 3])
    times.clear()
    model.sample(2, options=model.SamplingConfig(steps=1), generator=make_generator(0))
    assert times == [1.0]


def test_a_fitted_teacher_is_distilled(tmp_path):
    data = torch.randn(60, 3).numpy()
    teacher = monge.fit("ddpm", data, "net.width=8", budget="3steps", out=tmp_path / "ddpm")
    run = monge.fit(
        "distilled", data, f"teacher={teacher.folder}", budget="2steps", out=tmp_path / "few"
    )
    reference, given = run.model.reference.state_dict(), teacher.model.state_dict()
    assert all(torch.equal(value, given[name]) for name, value in reference.items())
    assert run.model.first == 0
    again = monge.load(run.folder)
    assert torch.equal(again.sample_tensor(4), run.sample_tensor(4))


def test_too_many_halvings_are_refused():
    with pytest.raises(UsageError, match="halvings"):
        Distilled.Config(steps=1000, halvings=20)
