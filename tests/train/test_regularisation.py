"""What training does beside lowering a loss: noise, thresholds, frozen parts, rates by layer."""

import math

import pytest
import small_data
import torch
from torch import nn
from training import assert_unbroken

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.model import Model
from monge.core.space import Space
from monge.core.train_config import OptimiserConfig, TrainConfig
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.optimiser import flush_denormals, lr_factor
from monge.train.regularisation import input_noise, weight_noise
from monge.train.trainer import Trainer

INPUTS = Space(
    kind="columns",
    shape=(2,),
    columns=(Space(kind="real", mean=(3.0,), scale=(10.0,)), Space(kind="label", size=3)),
)


class Line(Model):
    """y = head(drop(trunk(x))) by squares; a bystander has no part in it."""

    events = {"real"}

    def __init__(self, space, parts=None):
        super().__init__(Line.Config(), space, parts)
        self.trunk = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.head = nn.Linear(8, 1)
        self.seen = []

    def loss(self, batch: Batch):
        x = batch.given["x"].x if batch.given else batch.x
        self.seen.append(x)
        return {"square": (self.head(self.trunk(x))[:, 0] - batch.x[:, 1]) ** 2}

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def trainer(given=False, **settings):
    torch.manual_seed(0)
    space, batch = small_data.make("real")
    if given:
        batch = Batch(batch.x, {"x": Batch(batch.x)})
        space = Space(kind="real", shape=(2,), given={"x": space})
    return Trainer(
        Line(space), small_data.Rows(batch), TrainConfig(batch_size=100, warmup=0, **settings)
    )


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_jitter_is_on_while_gradients_are_made_and_gone_to_the_bit():
    model = trainer().model
    params, before = list(model.parameters()), weights(model)
    with weight_noise(params, 0.1):
        moved = torch.cat([(p - before[name]).flatten() for name, p in model.named_parameters()])
        assert 0.05 < moved.std() < 0.2
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_jitter_changes_gradients_and_leaves_no_other_trace():
    calm, shaky = trainer(optimiser="sgd"), trainer(optimiser="sgd", weight_noise=0.5)
    before = calm.model.head.weight.detach().clone()
    for each in (calm, shaky):
        each.train_step(1.0)
    weight, grad = shaky.model.head.weight, shaky.model.head.weight.grad
    torch.testing.assert_close(weight.detach(), before - 1e-3 * grad)
    assert not torch.equal(calm.model.head.weight.grad, grad)


def test_lasso_is_a_step_and_then_a_soft_threshold():
    plain, sparse = (trainer(optimiser="sgd", lr=0.1, l1=lasso) for lasso in (0.0, 0.7))
    for each in (plain, sparse):
        each.train_step(0.5)
    w, cut = plain.model.head.weight, 0.1 * 0.5 * 0.7
    expected = w.sign() * (w.abs() - cut).clamp(min=0)
    torch.testing.assert_close(sparse.model.head.weight, expected)
    torch.testing.assert_close(sparse.model.head.bias, plain.model.head.bias)


def test_lasso_makes_exact_zeros():
    subject = trainer(l1=30.0, lr=1e-2)
    for _ in range(60):
        subject.train_step(1.0)
    assert (subject.model.trunk[0].weight == 0).float().mean() > 0.5


def test_noise_reaches_real_values_alone_in_their_own_scale():
    x = torch.tensor([[3.0, 2.0]]).repeat(4000, 1)
    batch = Batch(x, {"inputs": Batch(x)})
    space = Space(kind="real", shape=(2,), given={"inputs": INPUTS})
    noisy = input_noise(batch, space, 0.1)
    assert torch.equal(noisy.x, x)
    inputs = noisy.given["inputs"].x
    assert torch.equal(inputs[:, 1], x[:, 1])
    assert inputs[:, 0].std().item() == pytest.approx(1.0, rel=0.1)


def test_noise_on_conditions_is_fresh_and_pure_and_refused_without_conditions():
    one, two = (trainer(given=True, input_noise=0.5) for _ in range(2))
    for each in (one, two):
        each.train_step(1.0)
        each.train_step(1.0)
    assert all(map(torch.equal, one.model.seen, two.model.seen))
    scale = one.model.space.given["x"].statistic("scale")
    clean = one.rows.batch(one.index(0)).x
    assert ((one.model.seen[0] - clean) / scale).std().item() == pytest.approx(0.5, rel=0.2)
    with pytest.raises(UsageError, match=r"train\.input_noise=0\.5"):
        trainer(input_noise=0.5)


def test_frozen_parameters_have_no_memory_no_update_and_no_running_statistics():
    subject = trainer(freeze=("trunk",))
    before = weights(subject.model)
    for _ in range(3):
        subject.train_step(1.0)
    after = weights(subject.model)
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "head.weight",
        "head.bias",
    }
    assert not subject.model.trunk.training
    assert subject.model.head.training
    assert not [name for name in subject.state()[0] if name.startswith("optimiser/model/trunk")]


def test_parts_stay_as_they_are():
    space, batch = small_data.make("real")
    part, owner = trainer().model.requires_grad_(False), Line(space)
    owner.parts["start"] = part
    before = weights(part)
    subject = Trainer(owner, small_data.Rows(batch), TrainConfig(batch_size=100))
    for _ in range(2):
        subject.train_step(1.0)
    assert not part.training
    assert all(torch.equal(value, before[name]) for name, value in weights(part).items())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"freeze": ("trnk",)},
            r"train\.freeze.*'trnk'.*trunk",
        ),
        (
            {"lr_multipliers": {"trunk.0.wieght": 0.1}},
            r"train\.lr_multipliers.*'trunk\.0\.wieght'.*trunk\.0\.weight",
        ),
        ({"freeze": ("zzzz",)}, r"train\.freeze.*'zzzz'.*trunk, head"),
        ({"freeze": ("trunk", "head")}, r"train\.freeze=trunk,head"),
        ({"updates": {"modle": OptimiserConfig()}}, r"train\.updates\.modle.*model"),
        (
            {"refit": "same", "patience": 0},
            r"train\.refit=same.*train\.patience=0",
        ),
    ],
)
def test_wrong_names_are_refused(settings, named):
    with pytest.raises(UsageError, match=named):
        trainer(**settings)


def test_rates_by_layer_multiply_the_rate_and_the_longest_name_wins():
    plain = trainer(optimiser="sgd")
    layered = trainer(optimiser="sgd", lr_multipliers={"trunk": 0.1, "trunk.0.bias": 3.0})
    first = weights(plain.model)
    for each in (plain, layered):
        each.train_step(1.0)
    one, two = weights(plain.model), weights(layered.model)
    for name, ratio in (
        ("head.weight", 1.0),
        ("trunk.0.weight", 0.1),
        ("trunk.0.bias", 3.0),
        ("trunk.1.weight", 0.1),
    ):
        torch.testing.assert_close(
            two[name] - first[name], ratio * (one[name] - first[name]), rtol=1e-3, atol=1e-7
        )


def test_overrides_reach_every_setting():
    train_config = TrainConfig().override(
        "freeze=trunk,head.bias",
        "lr_multipliers.trunk=0.1",
        "lr_multipliers.head.bias=2",
        "l1=1e-3",
    )
    assert train_config.freeze == ("trunk", "head.bias")
    assert train_config.lr_multipliers == {"trunk": 0.1, "head.bias": 2.0}
    assert TrainConfig.from_dict(train_config.to_dict()) == train_config
    with pytest.raises(UsageError, match=r"lr_multipliers\.trunk=0\.0"):
        TrainConfig().override("lr_multipliers.trunk=0")


def test_the_norm_of_a_clipped_gradient_is_logged_before_clipping():
    subject = trainer(optimiser="sgd", grad_clip=1e-3)
    subject.train_step(1.0)
    _, norms, _ = subject.read()
    other = trainer(optimiser="sgd")
    other.train_step(1.0)
    grads = [p.grad.flatten() for p in other.model.parameters()]
    assert norms == {"model": pytest.approx(torch.cat(grads).norm().item(), rel=1e-5)}
    assert other.read()[1] == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"optimiser": "lbfgs"},
        {"optimiser": "lbfgs", "weight_noise": 0.01, "weight_decay": 1e-3},
        {"l1": 0.1, "weight_noise": 0.1, "grad_clip": 1.0},
        {"given": True, "input_noise": 0.3},
        {"freeze": ("trunk.0",), "lr_multipliers": {"head": 0.1}, "ema_decay": 0.9},
        {"freeze": ("trunk",)},
        {"optimiser": "rmsprop"},
    ],
    ids=str,
)
def test_resumed_equals_unbroken_with_every_setting(settings, tmp_path):
    assert_unbroken(lambda: trainer(**settings), tmp_path, steps=3)


class Bowl(Line):
    """A quadratic of condition 1e4, of which L-BFGS knows the end in a few steps."""

    def __init__(self, space):
        super().__init__(space)
        del self.trunk, self.head
        self.w = nn.Parameter(torch.ones(6))

    def loss(self, batch: Batch):
        self.seen.append(len(batch))
        curvature = torch.logspace(-2, 2, 6).to(self.w)
        return {"bowl": 0.5 * (self.w**2 * curvature).sum() - self.w.sum()}


def test_lbfgs_reads_all_rows_and_finds_the_end_of_a_bowl():
    space, batch = small_data.make("real")
    train_config = TrainConfig(optimiser="lbfgs", weight_decay=0.5)
    subject = Trainer(Bowl(space).double(), small_data.Rows(batch), train_config)
    *_, last = fit(subject, Budget(steps=500))
    assert last.stopped == "complete"  # it knows its end
    assert last.step < 60
    expected = 1 / (torch.logspace(-2, 2, 6).double() + 0.5)
    torch.testing.assert_close(subject.model.w.detach(), expected, rtol=1e-4, atol=1e-4)
    assert set(subject.model.seen) == {1000}
    assert subject.epoch_steps == 1


@pytest.mark.parametrize(
    "wrong", [{"grad_clip": 1.0}, {"l1": 0.1}, {"lr_multipliers": {"head": 0.1}}]
)
def test_lbfgs_refuses_what_means_nothing_to_it(wrong):
    with pytest.raises(UsageError, match=rf"train\.optimiser=lbfgs.*train\.{next(iter(wrong))}\b"):
        trainer(optimiser="lbfgs", **wrong)


def test_schedules():
    line = TrainConfig(warmup=0, schedule="linear")
    assert [lr_factor(line, step, 100) for step in (0, 25, 100, 300)] == [1.0, 0.75, 0.0, 0.0]
    root = TrainConfig(warmup=100, schedule="inverse")
    assert lr_factor(root, 49, math.inf) == 0.5
    assert lr_factor(root, 99, math.inf) == 1.0
    assert lr_factor(root, 399, math.inf) == 0.5


def test_moments_too_small_to_matter_become_zero():
    subject = trainer()
    subject.train_step(1.0)
    memory = subject.optimisers[0].state[subject.model.head.weight]
    memory["exp_avg"].fill_(1e-40)
    kept = memory["exp_avg_sq"].clone()
    flush_denormals(subject.optimisers[0])
    assert (memory["exp_avg"] == 0).all()
    assert torch.equal(memory["exp_avg_sq"], kept)
    assert memory["step"] == 1
