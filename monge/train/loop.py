"""Ctrl-C and SIGTERM ask; the loop answers at the end of a step, where the state is whole.

The one loop. It yields; whoever wants a bar, a log or an early end is a `for` over it.
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
    """A question whether someone has asked to stop; a second Ctrl-C stops at once. Outside the
    main thread, where Python delivers no signals, nobody ever asks."""
    asked = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, where whoever waits must tidy up before it leaves."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Evaluate = Callable[[], Metric]


@dataclass(frozen=True)
class Progress:
    """Where training is, what it has seen since it last told, and why it stopped."""

    step: int
    epoch: float
    seconds: float
    fraction: float  # of the budget
    speed: float  # steps a second
    rate: float
    terms: dict[str, float] = field(default_factory=dict)  # "turn/term" -> mean
    held_out: Metric | None = None
    best: bool = False  # the held-out score is a new best
    stopped: str | None = None  # budget, complete, patience, asked, diverged, refit
    sentence: str = ""  # why it diverged
    norms: dict[str, float] = field(default_factory=dict)  # turn -> norm of gradients, unclipped


def fit(
    trainer: Trainer,
    budget: Budget,
    judge: Evaluate | None = None,
    asked: Callable[[], bool] = lambda: False,
    pause: float = 0.25,
    foresee: Callable[[], float] = lambda: 0.0,
) -> Iterator[Progress]:
    """Train until the budget, the recipe, patience or `asked` ends it, telling every `pause`
    seconds and at every held-out score that `judge` gives. A budget of seconds covers the last
    score too: as much is left as one took, or, before there is one, as `foresee` says it will."""
    recipe = trainer.recipe
    limit = 0 if trainer.refit else recipe.max_steps
    end = budget.end(trainer.epoch_steps, trainer.step, trainer.seconds, limit)
    length = schedule_length(recipe, end.steps)
    clock = Clock(trainer)
    stopped = reason(trainer, end, asked, 0.0)
    while stopped is None:
        trainer.advance(lr_factor(recipe, trainer.age, length))
        clock.tick()
        if clock.look is None and judge and trainer.seconds > end.seconds / 2:
            clock.look = foresee()
            clock.tick()
        stopped = reason(trainer, end, asked, clock.look or 0.0)
        due = trainer.step % trainer.every == 0
        if not (due or stopped or clock.since_told > pause):
            continue
        terms, norms, sentence = trainer.read()
        score, best = None, False
        if due and judge and not sentence:
            found = evaluate_ema(trainer, judge)
            best = trainer.consider(found)
            score = None if trainer.refit else found  # what a refit reads is not held out
            clock.looked()
            stopped = reason(trainer, end, asked, clock.look or 0.0)
        stopped = "diverged" if sentence else stopped
        yield Progress(
            trainer.step,
            trainer.step / trainer.epoch_steps,
            trainer.seconds,
            end.fraction(trainer.step, trainer.seconds + (clock.look or 0.0)),
            clock.tell(),
            recipe.lr * lr_factor(recipe, trainer.age, length),
            terms,
            score,
            best,
            stopped,
            sentence,
            norms,
        )


class Clock:
    """Wall time of training, on top of what earlier sittings used."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.before, self.begun = trainer, trainer.seconds, time.monotonic()
        self.told, self.told_step = self.begun, trainer.step
        self.look: float | None = None  # seconds that a held-out score takes

    def tick(self) -> None:
        self.trainer.seconds = self.before + time.monotonic() - self.begun

    def looked(self) -> None:
        """A held-out score has been taken since the last tick."""
        before = self.trainer.seconds
        self.tick()
        self.look = self.trainer.seconds - before

    @property
    def since_told(self) -> float:
        return time.monotonic() - self.told

    def tell(self) -> float:
        """Steps a second since the last telling."""
        steps, spent = self.trainer.step - self.told_step, self.since_told
        self.told, self.told_step = time.monotonic(), self.trainer.step
        return steps / max(spent, 1e-9)


def evaluate_ema(trainer: Trainer, judge: Evaluate) -> Metric:
    """The held-out score of the averaged weights; nothing of it trains."""
    trainer.model.eval()
    with trainer.average.swapped(), torch.no_grad():
        return judge()


def reason(trainer: Trainer, end: Budget, asked: Callable[[], bool], look: float) -> str | None:
    """Why training should stop now, if it should; `look` seconds are yet to come."""
    recipe = trainer.recipe
    if trainer.refit:
        if trainer.done:
            return "refit"
    elif recipe.max_steps and trainer.step >= recipe.max_steps:
        return "complete"
    elif recipe.patience and trainer.stale >= recipe.patience:
        return "patience"
    elif trainer.settled:
        return "complete"
    if trainer.step >= end.steps or trainer.seconds + look >= end.seconds:
        return "budget"
    return "asked" if asked() else None
