"""The cost that is estimated before a fit, and the budget that is respected."""

import math
import time

import pytest
import small_data
import torch
from torch import nn

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.metric import Metric
from monge.core.model import Model, Update
from monge.core.train_config import TrainConfig
from monge.run.run import load, start
from monge.train import loop
from monge.train.budget import Budget
from monge.train.cost_estimate import (
    Cost,
    FirstRows,
    estimate,
    extrapolate,
    measure_memory,
    trial,
)
from monge.train.trainer import Trainer


class Line(Model):
    """x W, with a hidden layer whose size is known."""

    events = {"real"}

    def __init__(self, space, whole=False):
        super().__init__(Line.Config(), space)
        self.net = nn.Linear(space.dims, 256, bias=False)
        self.whole = whole

    def loss(self, batch):
        return {"square": self.net(batch.x).tanh().square().sum(1)}

    def updates(self):
        return [Update("model", self.loss, list(self.parameters()), whole=self.whole)]

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def subject(train_config, **options):
    space, batch = small_data.make("real")
    return Line(space, **options), small_data.Rows(batch), train_config


def test_the_cost_counts_parameters_steps_and_bytes():
    model, rows, train_config = subject(TrainConfig(batch_size=100, ema_decay=0.9))
    count = 256 * model.space.dims
    cost = estimate(model, rows, train_config)
    assert (cost.parameters, cost.epoch_steps) == (count, math.ceil(len(rows) / 100))
    # the weights, their average and two moments of Adam, in float32
    assert 4 * 4 * count <= cost.weights <= 4 * 4 * count + 1024
    # the outputs of layer and tanh at least, and no more than a handful of such tensors
    assert 2 * 4 * 100 * 256 <= cost.working <= 8 * 4 * 100 * 256 + 8 * count
    assert Cost.from_dict(cost.to_dict()) == cost


def test_a_step_that_needs_much_memory_is_not_computed_before_a_fit():
    """Its memory is that of a whole batch nevertheless: 1000 rows of 10**5 columns."""
    model, rows, train_config = subject(TrainConfig(batch_size=1000))
    wide = torch.zeros(256, 10**5)
    seen: list[int] = []

    def loss(batch):
        seen.append(len(batch))
        return {"large": (model.net(batch.x) @ wide).sum(1)}

    model.loss = loss
    cost = estimate(model, rows, train_config, timed=False)
    assert max(seen) == 250
    assert (cost.seconds_per_step, cost.epoch, cost.parameters) == (
        None,
        None,
        256 * model.space.dims,
    )
    assert 4 * 1000 * 10**5 < cost.working < 5 * 1000 * 10**5
    assert Cost.from_dict(cost.to_dict()) == cost
    assert cost.steps(Budget.read("3steps")) == 3


def test_statement_and_measurement_agree_on_memory():
    model, rows, train_config = subject(TrainConfig(batch_size=100))
    measured = trial(model, rows, train_config, 0, "fp32")[1]
    assert estimate(model, rows, train_config, timed=False).working == pytest.approx(
        measured, rel=0.1
    )


def test_the_estimate_leaves_no_trace():
    """The generator stands where it stood, and rates of 0 move nothing."""
    model, rows, train_config = subject(TrainConfig(batch_size=100))
    before, state = model.net.weight.detach().clone(), torch.get_rng_state()
    estimate(model, rows, train_config)
    assert torch.equal(model.net.weight, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_full_batch_updates_are_tried_on_few_rows(monkeypatch):
    monkeypatch.setattr("monge.train.cost_estimate.MAX_TRIAL_ROWS", 50)
    model, rows, train_config = subject(TrainConfig(batch_size=10), whole=True)
    seen = []
    model.loss = lambda batch, plain=model.loss: seen.append(len(batch)) or plain(batch)
    cost = estimate(model, rows, train_config)
    # memory of few rows and then of all, and time of some and of a quarter of them
    assert set(seen) == {32, 64, 1000, 50, 12}
    assert cost.epoch_steps == 1
    some = FirstRows(rows, 3)
    assert some.batch(torch.tensor([2])).row.tolist() == [len(rows) - 1]
    assert some.lengths is None
    long = FirstRows(small_data.Rows(Batch(torch.zeros(5, 1), length=torch.arange(5))), 3)
    assert long.lengths.tolist() == [[0], [2], [4]]
    assert len(FirstRows(rows, 10**6)) == len(rows)


@pytest.mark.parametrize(
    "need",
    [lambda n: 3.0, lambda n: 2 + 0.1 * n, lambda n: 0.1 * n, lambda n: 0.01 * n**2],
    ids=["none", "line", "rows", "square"],
)
def test_the_cost_of_full_batch_updates_is_extrapolated_to_all_rows(need):
    assert math.isclose(extrapolate(need(256), need(1024), 50), need(51_200), rel_tol=1e-12)


def test_nothing_grows_faster_than_the_square_of_the_rows():
    """What chance makes steep is not believed, nor what falls as rows come in."""
    assert extrapolate(1e-6, 1.0, 10) == 100
    assert extrapolate(0.0, 0.0, 10) == 0  # what costs nothing goes on to cost nothing
    assert extrapolate(2.0, 1.0, 10) == extrapolate(1.0, 1.0, 10) == 1.0


@pytest.mark.parametrize(
    ("budget", "steps"), [("6s", 3), ("5steps", 5), ("0.5epochs", 5), ("1h", 40), ("0.001s", 1)]
)
def test_what_a_budget_buys(budget, steps):
    assert Cost(1, 2.0, 10, 0, 0, limit=40).steps(Budget.read(budget)) == steps


def test_a_fit_takes_at_least_one_step_however_few_seconds_it_has():
    model, rows, train_config = subject(TrainConfig(batch_size=100))
    trainer = Trainer(model, rows, train_config)
    (*_, last) = loop.fit(trainer, Budget.read("0.000001s"))
    assert (last.step, last.stopped) == (1, "budget")


class Hours:
    """A clock that is moved by hand."""

    now = 0.0

    def monotonic(self):
        return self.now


def test_a_measured_step_takes_no_longer_than_its_measurement():
    trainer, start = Trainer(*subject(TrainConfig(batch_size=100))), time.perf_counter()
    seconds, peak = measure_memory(trainer)
    assert 0 < seconds <= time.perf_counter() - start
    assert peak > 0


@pytest.mark.parametrize(("check", "eval_seconds"), [(10, 5.0), (1000, 5.0), (7, 0.1), (3, 12.0)])
def test_the_budget_covers_the_last_score(monkeypatch, check, eval_seconds):
    """Steps of one second and scores of `look`: in all no more than 10 % beside 60 s."""
    clock = Hours()
    monkeypatch.setattr(loop, "time", clock)
    model, rows, train_config = subject(TrainConfig(batch_size=100, eval_every=check, patience=0))
    trainer = Trainer(model, rows, train_config)
    plain = trainer.train_step

    def advance(scale):
        clock.now += 1.0
        plain(scale)

    def evaluate():
        clock.now += eval_seconds
        return Metric(0.0, "exact", 1.0)

    trainer.train_step = advance
    progress = list(
        loop.fit(trainer, Budget.read("60s"), evaluate, estimate_eval_seconds=lambda: eval_seconds)
    )
    if trainer.step % trainer.eval_every:
        evaluate()  # the look at weights that no regular score has seen
    assert progress[-1].stopped == "budget"
    assert 54 <= clock.now <= 66
    assert math.isclose(progress[-1].fraction, 1.0, abs_tol=0.1 + eval_seconds / 60)


def test_a_fit_is_the_same_whether_its_cost_was_estimated_timed_or_neither(tmp_path):
    weights, costs = [], []
    for name, timed in (("plain", None), ("estimated", False), ("timed", True)):
        run = start("made", "moons", "width=8", "depth=1", out=tmp_path / name, budget="4steps")
        if timed is not None:
            costs.append(run.estimate_cost(timed))
        for _ in run.train("4steps"):
            pass
        weights.append(run.model.state_dict())
    for others in weights[1:]:
        assert all(torch.equal(weights[0][name], others[name]) for name in weights[0])
    estimated, timed = costs
    assert estimated.seconds_per_step is None
    assert timed.seconds_per_step > 0
    assert load(tmp_path / "plain").cost == estimated
    assert estimated.parameters == timed.parameters > 0


def test_a_plain_fit_builds_one_model_and_times_no_step(tmp_path, monkeypatch):
    def refuse(*args):
        raise AssertionError("a step was timed")

    monkeypatch.setattr("monge.train.cost_estimate.trial", refuse)
    run = start("made", "moons", "width=8", "depth=1", out=tmp_path / "run")
    monkeypatch.setattr(run, "build", refuse)
    assert run.cost.parameters == sum(p.numel() for p in run.trainer.model.parameters())


def test_a_budget_of_less_than_one_step_is_refused_before_there_is_a_directory(tmp_path):
    with pytest.raises(UsageError, match=r"0\.001epochs"):
        start("made", "moons", out=tmp_path / "none", budget="0.001epochs")
    assert not (tmp_path / "none").exists()
    with pytest.raises(UsageError, match=r"0\.4steps"):
        Budget.read("0.4steps")
    Budget.check("0.0001s", epoch_steps=10)
    Budget.check("0.1epochs", epoch_steps=10)
