"""The training loop, a generator of progress reports, and signals that request a stop.

Callers iterate over `fit` to show a progress bar, write a log or end training early. Ctrl-C and
SIGTERM take effect at the end of a step, where the state is consistent.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch

from ..core.metric import Metric
from .budget import Budget
from .optimiser import lr_factor, schedule_length
from .trainer import Trainer


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """A function that returns whether a stop was requested; a second Ctrl-C stops at once. Outside
    the main thread, where Python delivers no signals, it always returns false."""
    requested = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt inside the block, so that callers can clean up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Evaluate = Callable[[], Metric]


@dataclass(frozen=True)
class Progress:
    """The state of training, means since the last report, and why training stopped."""

    step: int
    epoch: float
    seconds: float
    fraction: float  # of the budget
    speed: float  # steps per second
    lr: float  # learning rate
    terms: dict[str, float] = field(default_factory=dict)  # "update/term" -> mean
    held_out: Metric | None = None
    best: bool = False  # the held-out metric is a new best
    stopped: str | None = None  # budget, complete, patience, asked, diverged, refit
    sentence: str = ""  # error message if it diverged
    norms: dict[str, float] = field(
        default_factory=dict
    )  # update -> gradient norm before clipping


def fit(
    trainer: Trainer,
    budget: Budget,
    evaluate: Evaluate | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    report_every: float = 0.25,
    estimate_eval_seconds: Callable[[], float] = lambda: 0.0,
    critic_distance: Callable[[], float] | None = None,
) -> Iterator[Progress]:
    """Train until the budget, train.max_steps, early stopping or `should_stop` ends it.

    A report is yielded every `report_every` seconds and at every metric from `evaluate`. A
    budget of seconds includes a last evaluation: the time of the previous one is reserved for it,
    or, before the first, the estimate of `estimate_eval_seconds`. Of several processes the first
    evaluates, measures the time and decides; all yield the same reports. `critic_distance` is what
    patience counts with train.patience_on=critic, at the weights in training.
    """
    workers = trainer.workers
    config = trainer.train_config
    limit = 0 if trainer.refit else config.max_steps
    end = budget.end(trainer.epoch_steps, trainer.step, trainer.seconds, limit)
    length = trainer.schedule_steps = schedule_length(config, trainer.schedule_steps, end.steps)
    clock = TrainingClock(trainer)

    def reason() -> str | None:
        return stop_reason(trainer, end, should_stop, clock.eval_seconds or 0.0)

    stopped = workers.agree(reason)
    while stopped is None:
        trainer.train_step(lr_factor(config, trainer.age, length))
        clock.tick()
        half_over = trainer.seconds > end.seconds / 2
        untimed = clock.eval_seconds is None and evaluate is not None
        if untimed and trainer.agree_if_sharded(half_over) and trainer.can_score:
            clock.eval_seconds = estimate_eval_seconds()
            clock.tick()
        due = trainer.step % trainer.eval_every == 0
        stopped, wanted = workers.agree(lambda: (reason(), clock.since_report > report_every))
        if not (due or stopped or wanted):
            continue
        terms, norms, sentence = trainer.read()
        metric, best = None, False
        if due and evaluate and not sentence:
            trainer.synchronise()
            found = agreed_metric(trainer, evaluate)
            best = trainer.update_best(found)
            if critic_distance:
                trainer.update_critic_distance(workers.agree(critic_distance))
            metric = None if trainer.refit else found  # a refit trains on the held-out rows
            clock.record_eval()
            stopped = workers.agree(reason)
        stopped = "diverged" if sentence else stopped
        yield Progress(
            trainer.step,
            trainer.step / trainer.epoch_steps,
            trainer.seconds,
            end.fraction(trainer.step, trainer.seconds + (clock.eval_seconds or 0.0)),
            clock.record_report(),
            config.lr * lr_factor(config, trainer.age, length),
            terms,
            metric,
            best,
            stopped,
            sentence,
            norms,
        )


class TrainingClock:
    """Wall time of training, including earlier sessions, and of evaluations."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.earlier, self.started = trainer, trainer.seconds, time.monotonic()
        self.reported, self.reported_step = self.started, trainer.step
        self.eval_seconds: float | None = None  # of a held-out evaluation

    def tick(self) -> None:
        self.trainer.seconds = self.earlier + time.monotonic() - self.started

    def record_eval(self) -> None:
        """Count the time since the last tick as that of an evaluation."""
        before = self.trainer.seconds
        self.tick()
        self.eval_seconds = self.trainer.seconds - before

    @property
    def since_report(self) -> float:
        return time.monotonic() - self.reported

    def record_report(self) -> float:
        """Steps per second since the last report."""
        steps, spent = self.trainer.step - self.reported_step, self.since_report
        self.reported, self.reported_step = time.monotonic(), self.trainer.step
        return steps / max(spent, 1e-9)


def evaluate_ema(trainer: Trainer, evaluate: Evaluate) -> Metric:
    """The held-out metric of the EMA weights, in evaluation mode and without gradients. The first
    process computes it; if weights are cut over the processes, all must call this."""
    with trainer.scoring_weights(), torch.no_grad():
        return evaluate() if trainer.sharded is None else agreed(trainer, evaluate)


def agreed_metric(trainer: Trainer, evaluate: Evaluate) -> Metric:
    """The held-out metric that the first process computes, in all processes."""
    if trainer.workers.size == 1 or trainer.sharded:
        return evaluate_ema(trainer, evaluate)
    return agreed(trainer, lambda: evaluate_ema(trainer, evaluate))


def agreed(trainer: Trainer, evaluate: Evaluate) -> Metric:
    return Metric(**trainer.workers.agree(lambda: evaluate().to_dict()))


def stop_reason(
    trainer: Trainer, end: Budget, should_stop: Callable[[], bool], eval_seconds: float
) -> str | None:
    """Why training should stop now, or None; `eval_seconds` are reserved for an evaluation."""
    config = trainer.train_config
    if trainer.refit:
        if trainer.refit_done:
            return "refit"
    elif config.max_steps and trainer.step >= config.max_steps:
        return "complete"
    elif config.patience and trainer.evals_without_gain >= config.patience:
        return "patience"
    elif trainer.converged:
        return "complete"
    if trainer.step >= end.steps or trainer.seconds + eval_seconds >= end.seconds:
        return "budget"
    return "asked" if should_stop() else None
