"""Budgets, descriptions of a cost, learning rates and orders of rows, by their numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import small_data
import torch
from torch import nn

from monge import registry
from monge.core.abilities import HasLikelihood
from monge.core.batch import Batch
from monge.core.errors import LostWorkerError, UsageError
from monge.core.model import Model, Update, new_optimiser, take_step
from monge.core.train_config import OptimiserConfig, TrainConfig
from monge.train import batch_sampler, distributed
from monge.train.batch_sampler import BatchSequence, EpochBatches, block_rows, bucketed
from monge.train.budget import Budget
from monge.train.cost_description import describe_cost, describe_cost_dict, duration, size
from monge.train.cost_estimate import Cost
from monge.train.model_memory import one_each, one_slice
from monge.train.optimiser import (
    check_slots,
    flush_denormals,
    has_converged,
    has_prefix,
    lbfgs_iteration,
    lr_factor,
    make_optimiser,
    pack,
    param_groups,
    param_prefixes,
    schedule_length,
    unpack,
)
from monge.train.step_memory import TooLargeError, is_too_large, state_slots, step_memory
from monge.train.trainer import Trainer, refuse_weights


def test_a_budget_ends_and_is_used():
    assert Budget(steps=50).end(10, 7, 3.0, 0) == Budget(steps=50)
    assert Budget(epochs=2).end(10, 7, 3.0, 0) == Budget(steps=20)
    assert Budget(epochs=2, more=True).end(10, 7, 3.0, 0) == Budget(steps=27)
    assert Budget(seconds=9, more=True).end(10, 7, 3.0, 0) == Budget(seconds=12)
    assert Budget(seconds=9).end(10, 7, 3.0, 15) == Budget(seconds=9, steps=15)
    assert Budget(steps=10).end(10, 7, 3.0, 15).steps == 10
    assert Budget(seconds=10, steps=20).fraction(5, 1.0) == 0.25
    assert Budget(seconds=10, steps=20).fraction(5, 9.0) == 0.9
    assert Budget(epochs=4).used(5, 1.0, 3.0) == 0.75
    assert Budget(steps=10).used(5, 1.0, 3.0) == 0.5
    for text in ("0s", "0.5steps", "5", "5 apples", "-3s", "1e9s", "9" * 400 + "s"):
        with pytest.raises(UsageError):
            Budget.read(text)
    assert Budget.read("1step").steps == 1
    assert Budget.read("0.5 h").seconds == 1800
    with pytest.raises(UsageError):
        Budget.check("0.09epochs", 10)
    Budget.check("0.1epochs", 10)


def test_durations_and_sizes_have_units():
    assert [duration(s) for s in (0.5, 59, 60, 90, 3599, 3600, 9000)] == [
        "0.5 s",
        "59 s",
        "1 min",
        "1.5 min",
        "60 min",
        "1 h",
        "2.5 h",
    ]
    assert [size(b) for b in (0, 1, 999, 2500, 3e6, 4e9, 5e12, 6e15)] == [
        "0 B",
        "1 B",
        "999 B",
        "2.5 kB",
        "3 MB",
        "4 GB",
        "5 TB",
        "6e+03 TB",
    ]


def numbers(text: str) -> list[str]:
    return [word.strip("(),;") for word in text.split() if word.strip("(),;")[:1].isdigit()]


def test_a_cost_is_described_by_its_numbers():
    cost = Cost(1234, 2.0, 30, 5000, 2_000_000)
    told = describe_cost(cost, "120s")
    assert numbers(told) == ["1234", "5", "2", "2", "1", "30", "120s", "2", "60"]
    assert describe_cost_dict(cost.to_dict(), "120s") == told
    assert numbers(describe_cost(cost, "90steps"))[-2:] == ["90steps", "3"]
    assert numbers(describe_cost(cost, "2epochs"))[-2:] == ["2epochs", "2"]
    assert numbers(describe_cost(replace(cost, limit=15), "1h"))[-2:] == ["15", "30"]
    untimed = replace(cost, seconds_per_step=None)
    assert numbers(describe_cost(untimed, "1h")) == ["1234", "5", "2"]
    assert numbers(describe_cost(replace(untimed, working=0), "1h")) == ["1234", "5"]
    more = describe_cost(replace(untimed, is_lower_bound=True), "1h")
    assert "at least" in more
    assert "at least" not in describe_cost(untimed, "1h")
    assert cost.memory == 2_005_000
    assert cost.epoch == 60.0
    one = describe_cost(replace(cost, epoch_steps=1, limit=1), "1h")
    assert "steps" not in one
    assert "1 step;" in describe_cost(replace(cost, epoch_steps=1), "1h")
    assert "(1 step)" in describe_cost(cost, "2s")
    assert "2 steps;" in describe_cost(replace(cost, epoch_steps=2), "1h")
    assert "2 steps" in describe_cost(replace(cost, limit=2), "1h")


def test_the_learning_rate_rises_and_falls():
    plain = TrainConfig(warmup=0, schedule="constant")
    assert [lr_factor(plain, step, 0) for step in (0, 7)] == [1.0, 1.0]
    warm = TrainConfig(warmup=4, schedule="constant")
    assert [lr_factor(warm, step, 0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    linear = TrainConfig(warmup=0, schedule="linear")
    assert [lr_factor(linear, step, 10) for step in (0, 5, 10, 12)] == [1.0, 0.5, 0.0, 0.0]
    cosine = TrainConfig(warmup=0, schedule="cosine")
    found = [lr_factor(cosine, step, 12) for step in (0, 4, 6, 12, 20)]
    assert found == pytest.approx([1.0, 0.75, 0.5, 0.0, 0.0])
    inverse = TrainConfig(warmup=4, schedule="inverse")
    found = [lr_factor(inverse, step, 0) for step in (0, 3, 15, 63)]
    assert found == pytest.approx([0.25, 1.0, 0.5, 0.25])
    cold = TrainConfig(warmup=0, schedule="inverse")
    assert lr_factor(cold, 3, 0) == pytest.approx(0.5)


def test_the_length_of_a_schedule():
    linear = TrainConfig(schedule="linear")
    assert schedule_length(TrainConfig(schedule="constant"), 5, 7.0) == 0
    assert schedule_length(TrainConfig(schedule="inverse"), 5, 7.0) == 0
    assert schedule_length(replace(linear, schedule_steps=9, max_steps=8), 0, 7.0) == 9
    assert schedule_length(replace(linear, max_steps=8), 0, 7.0) == 8
    assert schedule_length(linear, 5, 5.0) == 5
    assert schedule_length(linear, 5, 4.0) == 5
    assert schedule_length(linear, 5, math.inf) == 5
    assert schedule_length(linear, 0, 6.5) == 7
    with pytest.raises(UsageError):
        schedule_length(linear, 0, math.inf)
    with pytest.raises(UsageError):
        schedule_length(linear, 5, 7.0)


def test_parameters_are_chosen_by_prefixes():
    assert has_prefix("trunk.net.weight", "trunk")
    assert has_prefix("trunk", "trunk")
    assert not has_prefix("trunks.weight", "trunk")
    assert [*param_prefixes(["a.b.c"])] == ["a", "a.b", "a.b.c"]
    one, two, three = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    groups = param_groups([one, two, three], {id(two): 0.1})
    assert [(group["factor"], len(group["params"])) for group in groups] == [(1.0, 2), (0.1, 1)]


OPTIMISERS = ("adam", "adamw", "sgd", "adagrad", "rmsprop")


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_is_torchs_with_these_settings(name):
    config = OptimiserConfig(
        optimiser=name,
        lr=0.1,
        weight_decay=0.3,
        momentum=0.5,
        nesterov=name == "sgd",
        betas=(0.6, 0.7),
    )
    optim = torch.optim
    due = {
        "adam": lambda p: new_optimiser(optim.Adam, p, 0.1, (0.6, 0.7), weight_decay=0.3),
        "adamw": lambda p: new_optimiser(optim.AdamW, p, 0.1, (0.6, 0.7), weight_decay=0.3),
        "sgd": lambda p: new_optimiser(optim.SGD, p, 0.1, 0.5, weight_decay=0.3, nesterov=True),
        "adagrad": lambda p: new_optimiser(optim.Adagrad, p, 0.1, weight_decay=0.3),
        "rmsprop": lambda p: new_optimiser(
            optim.RMSprop, p, 0.1, 0.7, weight_decay=0.3, momentum=0.5
        ),
    }[name]
    ours, theirs = (nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64)) for _ in range(2))
    made, other = make_optimiser(config, [ours]), due([theirs])
    for step in range(4):
        for param, each in ((ours, made), (theirs, other)):
            param.grad = (param.detach() ** 3 + step).clone()
            take_step(each)
    torch.testing.assert_close(ours, theirs)
    tensors, slots = pack(made, {id(ours): "w"})
    again = nn.Parameter(ours.detach().clone())
    fresh = make_optimiser(config, [again])
    unpack(fresh, {"w": again}, tensors, slots)
    check_slots(fresh, config)
    for param, each in ((ours, made), (again, fresh)):
        param.grad = torch.ones_like(param)
        take_step(each)
    assert torch.equal(ours, again)
    fresh.state[again]["extra"] = torch.zeros(2)
    with pytest.raises(ValueError, match="slots"):
        check_slots(fresh, config)


def test_settings_that_an_optimiser_cannot_use_are_refused():
    param = nn.Parameter(torch.zeros(1))
    with pytest.raises(UsageError, match="nesterov"):
        make_optimiser(OptimiserConfig(optimiser="sgd", nesterov=True, momentum=0.0), [param])
    for change in ({"grad_clip": 1.0}, {"l1": 0.1}):
        with pytest.raises(UsageError, match=next(iter(change))):
            make_optimiser(OptimiserConfig(optimiser="lbfgs", **change), [param])
    with pytest.raises(UsageError, match="lr_multipliers"):
        make_optimiser(OptimiserConfig(optimiser="lbfgs"), [param], {id(param): 0.5})


def test_l_bfgs_knows_when_it_has_arrived_and_is_packed_whole():
    centre = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optim = make_optimiser(OptimiserConfig(optimiser="lbfgs"), [weight])

    def loss():
        weight.grad = None
        found = ((weight - centre) ** 4 + (weight - centre) ** 2).sum()
        found.backward()
        return found.detach()

    assert not has_converged(optim)
    lbfgs_iteration(optim, loss)
    lbfgs_iteration(optim, loss)
    assert not has_converged(optim)
    tensors, numbers = pack(optim, {id(weight): "w"})
    again = nn.Parameter(weight.detach().clone())
    fresh = make_optimiser(OptimiserConfig(optimiser="lbfgs"), [again])
    unpack(fresh, {"w": again}, tensors, numbers)
    assert not any(name.endswith("al") for name in tensors)
    old = weight
    for _ in range(40):
        lbfgs_iteration(optim, loss)
        if has_converged(optim):
            break
    assert has_converged(optim)
    torch.testing.assert_close(old.detach(), centre, atol=1e-4, rtol=0)
    weight, optim = again, fresh
    lbfgs_iteration(optim, loss)
    assert not torch.equal(weight, centre)
    assert not has_converged(make_optimiser(OptimiserConfig(), [nn.Parameter(torch.zeros(1))]))


def test_l_bfgs_takes_steps_of_newtons_length():
    """The step to which the quasi-Newton direction leads is tried first (Nocedal & Wright 2006,
    sec. 6.1), so that after some steps an iteration asks for the loss once more."""
    curvature = torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64)
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optim, asked = make_optimiser(OptimiserConfig(optimiser="lbfgs"), [weight]), 0

    def loss():
        nonlocal asked
        asked, weight.grad = asked + 1, None
        found = (curvature * weight.square()).sum() + weight.pow(4).sum()
        found.backward()
        return found.detach()

    for _ in range(5):
        lbfgs_iteration(optim, loss)
    asked = 0
    for _ in range(4):
        lbfgs_iteration(optim, loss)
    assert asked <= 9


def test_only_negligible_moments_become_zero():
    param = nn.Parameter(torch.zeros(4))
    optim = make_optimiser(OptimiserConfig(), [param])
    param.grad = torch.ones(4)
    take_step(optim)
    tiny = torch.finfo(torch.float32).tiny
    moments = torch.tensor([0.9e8, 1.1e8, -0.9e8, 1e8]) * tiny
    optim.state[param]["exp_avg"].copy_(moments)
    step = optim.state[param]["step"].clone()
    flush_denormals(optim)
    assert (optim.state[param]["exp_avg"] != 0).tolist() == [False, True, False, True]
    assert torch.equal(optim.state[param]["step"], step)


def test_batches_of_an_epoch():
    assert [EpochBatches(*case).count for case in ((10, 5), (11, 5), (12, 5), (3, 5), (1, 5))] == [
        2,
        2,
        3,
        1,
        1,
    ]
    assert EpochBatches(11, 5).part(1) == slice(5, 11)
    assert EpochBatches(12, 5).part(1) == slice(5, 10)
    assert EpochBatches(12, 5).part(2) == slice(10, 12)
    assert [EpochBatches(*case).largest for case in ((11, 5), (12, 5), (3, 5))] == [6, 5, 5]
    assert EpochBatches(11, 5, least=1).count == 3


def rows(n: int, lengths: torch.Tensor | None = None) -> small_data.Rows:
    return small_data.Rows(Batch(torch.arange(float(n))[:, None], length=lengths))


def test_an_epoch_in_windows_has_every_row_once(monkeypatch):
    for name, value in {"LONG": 50, "WINDOW": 16, "FEWEST": 8, "BLOCKS": 4}.items():
        monkeypatch.setattr(batch_sampler, name, value)
    assert block_rows(49, 1) == 0
    assert block_rows(50, 1) == 4
    assert block_rows(49, 2**32) == 2
    assert block_rows(50, 2**28 // 12) == 3
    assert block_rows(50, 0) == 4
    sequence = BatchSequence(rows(103), EpochBatches(103, 7), seed=3)
    first = torch.cat([sequence.index(k) for k in range(sequence.batches.count)])
    assert first.sort().values.tolist() == list(range(103))
    second = torch.cat([sequence.index(k) for k in range(15, 30)])
    assert second.sort().values.tolist() == list(range(103))
    assert not torch.equal(first, second)
    assert torch.equal(sequence.index(4), first[28:35])
    other = BatchSequence(rows(103), EpochBatches(103, 7), seed=3, number=1)
    assert not torch.equal(other.index(0), sequence.index(0))
    blocks = 26
    edges = torch.arange(blocks + 1) * 103 // blocks
    block_of = torch.searchsorted(edges, first, right=True) - 1
    window, start = [], 0
    while start < 103:  # four whole blocks after one another
        end = start
        while len(set(block_of[start:end].tolist())) < 4 or (
            end < 103 and int(block_of[end]) in block_of[start:end].tolist()
        ):
            end += 1
            if end >= 103:
                break
        window.append(set(block_of[start:end].tolist()))
        start = end
    assert [len(each) for each in window] == [4] * 6 + [2]
    assert len(set.union(*window)) == blocks


def test_batches_of_similar_length(monkeypatch):
    lengths = torch.stack([torch.arange(23) * 7 % 5, torch.arange(23) % 3], 1)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    found = bucketed(order, lengths, 4, torch.Generator().manual_seed(1))
    assert found.sort().values.tolist() == list(range(23))
    assert torch.equal(found[20:], order[20:])
    batches = found[:20].reshape(5, 4)
    spans = [lengths[batch] for batch in batches]
    ranges = sorted((int(span[:, 0].min()), int(span[:, 0].max())) for span in spans)
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(ranges))
    for span in spans:
        keys = (10 * span[:, 0] + span[:, 1]).tolist()
        assert keys == sorted(keys)
    assert ranges != [(int(s[:, 0].min()), int(s[:, 0].max())) for s in spans]
    assert torch.equal(bucketed(order, None, 4, torch.Generator()), order)
    for name, value in {"LONG": 20, "WINDOW": 16, "FEWEST": 16, "BLOCKS": 4}.items():
        monkeypatch.setattr(batch_sampler, name, value)
    length = torch.arange(40) % 7
    sequence = BatchSequence(rows(40, length), EpochBatches(40, 3), 5, bucket_by_length=True)
    every = [sequence.index(k) for k in range(sequence.batches.count)]
    padding = sum(int((length[each].max() - length[each]).sum()) for each in every)
    plain = BatchSequence(rows(40, length), EpochBatches(40, 3), 5)
    each = [plain.index(k) for k in range(plain.batches.count)]
    assert padding < 0.6 * sum(int((length[one].max() - length[one]).sum()) for one in each)
    assert torch.cat(every).sort().values.tolist() == list(range(40))


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"optimiser": "adam"}, 2),
        ({"optimiser": "adamw"}, 2),
        ({"optimiser": "sgd", "momentum": 0.0}, 0),
        ({"optimiser": "sgd", "momentum": 0.5}, 1),
        ({"optimiser": "adagrad", "momentum": 0.5}, 1),
        ({"optimiser": "rmsprop", "momentum": 0.0}, 1),
        ({"optimiser": "rmsprop", "momentum": 0.5}, 2),
    ],
)
def test_the_state_of_an_optimiser_is_known_before(settings, slots):
    config = OptimiserConfig(**settings)
    param = nn.Parameter(torch.zeros(3))
    param.grad = torch.ones(3)
    optim = make_optimiser(config, [param])
    take_step(optim)
    held = [each for each in optim.state[param].values() if torch.is_tensor(each)]
    assert sum(each.shape == param.shape for each in held) == slots == state_slots(config)
    assert state_slots(OptimiserConfig(optimiser="lbfgs")) == 22


def test_shapes_that_depend_on_values_are_assumed():
    x = torch.zeros(3, 4)
    part, inverse, counts = one_slice(x, 1)
    assert part.shape == (3, 1)
    assert inverse.tolist() == [0] * 4
    assert counts.tolist() == [4]
    none = one_slice(x[:, :0], 1)
    assert [each.numel() for each in none] == [0, 0, 0]
    assert one_each(torch.tensor([1, 1, 1])).tolist() == [0, 1, 2]
    assert one_each(torch.tensor([1, 1, 1]), 5).tolist() == list(range(5))


class Counted(Model):
    """A model of rows, with updates that a test chooses."""

    events = {"real"}

    def __init__(self, space):
        super().__init__(Counted.Config(), space)
        self.weight = nn.Parameter(torch.ones(2))
        self.made = [self.update()]

    def update(self, **options):
        return Update("model", self.loss, [self.weight], **options)

    def loss(self, batch):
        return {"square": (batch.x - self.weight).square().sum(1)}

    def updates(self):
        return self.made

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


class Scored(Counted, HasLikelihood):
    """The same with a likelihood."""

    def likelihood(self, batch, options=None, generator=None):
        raise NotImplementedError


def test_weights_of_rows_need_a_loss_that_is_a_mean_over_them():
    space, _ = small_data.make("real")
    model = Scored(space)
    refuse_weights(model, [model.update()])
    refuse_weights(model, [model.update(whole=True)])
    closed = Update("counts", model.loss, [], whole=True)
    for owner, updates in (
        (Counted(space), [model.update()]),
        (model, [model.update(), model.update()]),
        (model, [closed]),
        (model, []),
    ):
        with pytest.raises(UsageError, match=r"data\.weight"):
            refuse_weights(owner, updates)


def test_patience_may_count_the_distance_of_the_critic():
    space, batch = small_data.make("real")
    for watched in ("held_out", "critic"):
        config = TrainConfig(batch_size=10, patience_on=watched)
        trainer = Trainer(Counted(space), small_data.Rows(batch), config)
        found = []
        for distance in (3.0, 2.0, 2.0, 4.0, 1.0):
            trainer.update_critic_distance(distance)
            found.append(trainer.evals_without_lower_distance)
        assert found == [0, 0, 1, 2, 0]
        assert trainer.least_critic_distance == 1.0
        trainer.evals_without_improvement, trainer.evals_without_lower_distance = 5, 7
        assert trainer.evals_without_gain == (7 if watched == "critic" else 5)


def test_first_losses_are_those_of_the_smallest_piece():
    space, batch = small_data.make("real")
    config = TrainConfig(batch_size=10, accumulate=4)
    model = Counted(space)
    model.made = [
        model.update(),
        Update("closed form", model.loss, []),
    ]
    trainer = Trainer(model, small_data.Rows(batch), config)
    assert [len(each["square"]) for each in trainer.first_losses()] == [2]  # of 3, 3, 2, 2
    whole = Counted(space)
    whole.made = [whole.update(whole=True)]
    trainer = Trainer(whole, small_data.Rows(batch[:14]), config)
    assert [len(each["square"]) for each in trainer.first_losses()] == [3]


class Ridge(Counted):
    """The same with a weight that the loss does not read."""

    def __init__(self, space):
        super().__init__(space)
        self.idle = nn.Parameter(torch.ones(2))
        self.made = [Update("model", self.loss, [self.weight, self.idle])]


def test_l_bfgs_with_weight_decay_finds_the_ridge():
    """The mean of |x - w|^2 plus d |w|^2 / 2 is least at 2 E x / (2 + d)."""
    space, batch = small_data.make("real")
    model = Ridge(space)
    config = TrainConfig(optimiser="lbfgs", weight_decay=0.5)
    trainer = Trainer(model.double(), small_data.Rows(batch.double()), config)
    for _ in range(12):
        trainer.train_step(1.0)
    due = 2 * batch.x.double().mean(0) / 2.5
    torch.testing.assert_close(model.weight.detach(), due, atol=1e-6, rtol=1e-6)
    assert model.idle.abs().max().item() < 1e-6


class Doubled:
    """What `all_reduce` among two processes with the same gradients returns, once it is waited
    for."""

    def __init__(self, flat):
        self.flat = flat

    def wait(self):
        self.flat.mul_(2)


def test_large_gradients_are_sent_early_from_the_last_to_the_first(monkeypatch):
    sent = []

    def all_reduce(flat, async_op):
        assert async_op
        sent.append(len(flat))
        return Doubled(flat)

    monkeypatch.setattr(distributed.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(distributed, "EARLY_BYTES", 16)
    sizes = (3, 1, 2, 3, 2)
    params = [nn.Parameter(torch.ones(size)) for size in sizes]
    params.insert(0, nn.Parameter(torch.ones(2, dtype=torch.float64)))
    pair = distributed.Workers(0, 2)
    assert distributed.early_messages(params[1:3], pair) is None  # 16 bytes
    assert distributed.early_messages(params[1:], distributed.ALONE) is None
    messages = distributed.early_messages(params, pair)
    assert [[len(param) for param in each] for each in messages.waiting] == [
        [2, 3],
        [2, 1, 3],
        [2],
    ]
    with messages.sending():
        (params[5] * params[4].sum()).sum().backward()
        assert sent == [5]
        (3 * params[3].sum() + params[1].sum()).backward()
        assert sent == [5]  # of the second message one gradient has not come
    found = messages.sums()
    assert sent == [5, 6, 2]
    due = (0, 2 * 1, 0, 2 * 3, 2 * 2, 2 * 3)
    for param, value in zip(params, due, strict=True):
        assert found[id(param)].tolist() == [value] * len(param)
        assert found[id(param)].dtype == param.dtype
    assert not any(param._post_accumulate_grad_hooks for param in params)


def test_lost_workers_are_named_and_other_errors_are_not():
    for computing, words, named in (
        (False, "anything", True),
        (True, "gloo: Connection reset by peer", True),
        (True, "shapes differ", False),
    ):
        with pytest.raises(RuntimeError) as caught, distributed.naming_lost_workers(computing):
            raise RuntimeError(words)
        assert isinstance(caught.value, LostWorkerError) == named


def test_evaluations_come_once_an_epoch_within_limits():
    space, batch = small_data.make("real")
    for each, rows, due in ((10, 700, 70), (10, 300, 50), (1, 1000, 1000), (1, 999, 999)):
        trainer = Trainer(
            Counted(space), small_data.Rows(batch[:rows]), TrainConfig(batch_size=each)
        )
        assert (trainer.epoch_steps, trainer.eval_every) == (rows // each, due)
    many = small_data.Rows(Batch(torch.zeros(1100, 2)))
    assert Trainer(Counted(space), many, TrainConfig(batch_size=1)).eval_every == 1000
    own = TrainConfig(batch_size=1, eval_every=7)
    assert Trainer(Counted(space), many, own).eval_every == 7


def test_a_step_is_taken_in_training_mode():
    space, batch = small_data.make("real")
    trainer = Trainer(Counted(space), small_data.Rows(batch), TrainConfig(batch_size=10))
    trainer.model.eval()
    trainer.train_step(1.0)
    assert trainer.model.training


def test_sizes_that_were_refused_are_told_from_other_errors():
    assert is_too_large(TooLargeError())
    assert is_too_large(OverflowError("x"))
    assert is_too_large(RuntimeError("Storage size calculation Overflowed"))
    assert not is_too_large(RuntimeError("shapes"))
    assert not is_too_large(ValueError("overflow"))


def test_pieces_of_a_batch_take_their_part_of_the_memory():
    space, batch = small_data.make("real")
    rows = small_data.Rows(batch)
    found = {}
    for pieces in (1, 4):
        model = Counted(space)
        model.net = nn.Linear(2, 500)
        model.loss = lambda each, model=model: {"sum": model.net(each.x).tanh().sum(1)}
        update = Update("model", model.loss, list(model.net.parameters()))
        model.made = [update]
        found[pieces] = step_memory(model, rows, [update], 400, "fp32", pieces).peak
    assert 2 < found[1] / found[4] < 4.5


def test_a_preset_is_the_default_unless_a_model_says_otherwise():
    space, _ = small_data.make("real")
    owner = registry.find("made")
    assert owner.preset("any", space) == owner.defaults(space).config


def test_l_bfgs_at_the_optimum_has_arrived_at_once():
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optim = make_optimiser(OptimiserConfig(optimiser="lbfgs"), [weight])

    def loss():
        weight.grad = 2 * weight.detach()
        return weight.detach().square().sum()

    lbfgs_iteration(optim, loss)
    assert has_converged(optim)


def test_a_fit_begins_at_nothing_and_initialises_once():
    space, batch = small_data.make("real")
    model, seen = Counted(space), []
    model.initialise_from_data = lambda rows: seen.append(len(rows))
    trainer = Trainer(model, small_data.Rows(batch), TrainConfig(batch_size=10))
    begun = (trainer.step, trainer.seconds, trainer.evals_without_improvement, trainer.best_step)
    assert begun == (0, 0.0, 0, 0)
    assert trainer.evals_without_lower_distance == 0
    trainer.train_step(1.0)
    assert len(seen) == 1
    trainer.train_step(1.0)
    assert (len(seen), trainer.step) == (1, 2)


def test_the_average_restarts_where_the_data_initialise_the_model():
    space, batch = small_data.make("real")
    model = Counted(space)
    model.initialise_from_data = lambda rows: model.weight.data.fill_(5.0)
    config = TrainConfig(batch_size=10, ema_decay=0.9)
    trainer = Trainer(model, small_data.Rows(batch), config)
    trainer.initialise()
    assert trainer.ema.weights["weight"].tolist() == [5.0, 5.0]
