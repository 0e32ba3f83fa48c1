"""The training loop: its clock, its reports, signals, and the reason why it stops."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import pytest
import small_data
import torch
from torch import nn

from monge.core.metric import Metric
from monge.core.model import Model
from monge.core.train_config import TrainConfig
from monge.train import loop
from monge.train import trainer as trainers
from monge.train.budget import Budget
from monge.train.trainer import Trainer


class Point(Model):
    """The mean of rows."""

    events = {"real"}

    def __init__(self, space):
        super().__init__(Point.Config(), space)
        self.weight = nn.Parameter(torch.zeros(2))

    def loss(self, batch):
        return {"square": (batch.x - self.weight).square().sum(1)}

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


ENDLESS = Budget()


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(loop, "time", made)
    return made


def trainer(**settings) -> Trainer:
    space, batch = small_data.make("real")
    config = TrainConfig(**{"batch_size": 100, "eval_every": 5, "patience": 0} | settings)
    return Trainer(Point(space), small_data.Rows(batch), config)


def test_a_clock_counts_earlier_sessions_and_evaluations(clock):
    subject = SimpleNamespace(seconds=7.0, step=30)
    timed = loop.TrainingClock(subject)
    clock.now += 2
    timed.tick()
    assert subject.seconds == 9.0
    clock.now += 3
    timed.record_eval()
    assert (subject.seconds, timed.eval_seconds) == (12.0, 3.0)
    assert timed.since_report == 5.0
    subject.step = 40
    assert timed.record_report() == 2.0
    assert timed.since_report == 0.0
    subject.step = 41
    assert timed.record_report() == pytest.approx(1e9)


def test_reports_come_in_time_and_hold_what_happened(clock):
    made = trainer()
    plain = made.train_step

    def step(scale):
        clock.now += 0.1
        plain(scale)

    made.train_step = step
    reports = list(loop.fit(made, Budget(steps=20), report_every=0.45))
    assert [report.step for report in reports] == [5, 10, 15, 20]
    assert [report.stopped for report in reports] == [None] * 3 + ["budget"]
    assert reports[0].speed == pytest.approx(10.0)
    assert reports[1].seconds == pytest.approx(1.0)
    assert reports[1].fraction == 0.5
    assert reports[1].epoch == pytest.approx(10 / made.epoch_steps)
    assert reports[0].held_out is None
    assert not any(report.best for report in reports)
    assert set(reports[0].terms) == {"model/square"}
    quick = trainer(eval_every=1000)
    plain = quick.train_step
    quick.train_step = step
    often = [report.step for report in loop.fit(quick, Budget(steps=9), report_every=0.25)]
    assert often == [3, 6, 9]


def test_evaluations_are_due_and_the_best_is_kept(clock):
    made = trainer(patience=2)
    values = iter([1.0, 3.0, 2.0, 2.5, 9.0])
    reports = list(
        loop.fit(made, Budget(steps=100), lambda: Metric(next(values), "exact"), lambda: False)
    )
    found = [(report.step, report.held_out.value, report.best) for report in reports]
    assert found == [(5, 1.0, True), (10, 3.0, True), (15, 2.0, False), (20, 2.5, False)]
    assert reports[-1].stopped == "patience"
    assert made.best.value == 3.0
    assert made.best_step == 10


@pytest.mark.parametrize(
    ("budget", "evaluated", "due"),
    [
        (Budget(seconds=10.0), True, [6]),
        (Budget(seconds=10.0), False, []),
        (Budget(steps=9), True, []),
    ],
)
def test_an_evaluation_is_estimated_once_when_half_of_the_time_is_over(
    clock, budget, evaluated, due
):
    made, asked = trainer(eval_every=1000), []
    plain = made.train_step

    def step(scale):
        clock.now += 1.0
        plain(scale)

    def estimate():
        asked.append(made.step)
        return 0.5

    made.train_step = step
    evaluate = (lambda: Metric(0.0, "exact")) if evaluated else None
    *_, last = loop.fit(made, budget, evaluate, estimate_eval_seconds=estimate)
    assert last.stopped == "budget"
    assert asked == due


def test_negligible_moments_are_removed_from_time_to_time(monkeypatch):
    monkeypatch.setattr(trainers, "DENORMAL_FLUSH_STEPS", 3)
    flushed, made = [], trainer()
    monkeypatch.setattr(trainers, "flush_denormals", lambda _: flushed.append(made.step))
    for _ in range(7):
        made.train_step(1.0)
    assert flushed == [3, 6]


@pytest.mark.parametrize(("kind", "due"), [("real", 10), ("columns", 20)])
def test_models_are_initialised_from_evenly_spaced_rows(monkeypatch, kind, due):
    """Rows of a table, which have few entries, are more."""
    monkeypatch.setattr(trainers, "MAX_INIT_ROWS", 10)
    monkeypatch.setattr(trainers, "MAX_INIT_ENTRIES", 60)
    space, batch = small_data.make(kind)
    seen, model = [], Point(space)
    model.initialise_from_data = seen.append
    Trainer(model, small_data.Rows(batch), TrainConfig(batch_size=100)).initialise()
    torch.testing.assert_close(seen[0].x, batch.x[:: len(batch) // due])


def test_the_critic_is_asked_at_evaluations():
    made = trainer(patience=2, patience_on="critic")
    distances, values = iter([3.0, 4.0, 5.0]), iter([1.0, 2.0, 3.0])
    reports = list(
        loop.fit(
            made,
            Budget(steps=100),
            lambda: Metric(next(values), "exact"),
            critic_distance=lambda: next(distances),
        )
    )
    assert [report.step for report in reports if report.held_out] == [5, 10, 15]
    assert reports[-1].stopped == "patience"


def test_every_reason_to_stop():
    def reason(end=ENDLESS, asked=False, look=0.0, made=None, **state):
        subject = made or trainer()
        for name, value in state.items():
            setattr(subject, name, value)
        return loop.stop_reason(subject, end, lambda: asked, look)

    assert reason() is None
    assert reason(asked=True) == "asked"
    assert reason(Budget(steps=5), step=4) is None
    assert reason(Budget(steps=5), step=5, asked=True) == "budget"
    assert reason(Budget(seconds=5.0), seconds=4.0, look=0.9) is None
    assert reason(Budget(seconds=5.0), seconds=4.0, look=1.0) == "budget"
    assert reason(made=trainer(max_steps=7), step=6) is None
    assert reason(made=trainer(max_steps=7), step=7) == "complete"
    assert reason(made=trainer(patience=3), evals_without_improvement=2) is None
    assert reason(made=trainer(patience=3), evals_without_improvement=3) == "patience"
    assert reason(evals_without_improvement=9) is None


def test_signals_ask_for_a_stop_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with loop.stop_requested() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
        os.kill(os.getpid(), signal.SIGTERM)  # a second SIGTERM changes nothing
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with loop.stop_requested() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with pytest.raises(KeyboardInterrupt), loop.terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before[1]
    found = []

    def elsewhere():
        with loop.stop_requested() as asked, loop.terminable():
            found.append(asked())
            found.append(signal.getsignal(signal.SIGTERM) == before[1])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False, True]
