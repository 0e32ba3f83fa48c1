"""One sitting of training: the loop with its log, its checkpoints and its best weights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .core.error import DivergenceError
from .evaluate.judge import Judge
from .train import checkpoint
from .train.fit import Progress, examine
from .train.log import Log
from .train.trainer import Trainer

SAVE_EVERY = 10.0
"""Seconds between checkpoints; what a power cut can cost."""


class Sitting:
    """A trainer at work on a folder."""

    def __init__(self, folder: Path, trainer: Trainer, judge: Judge, log: Log) -> None:
        self.folder, self.trainer, self.judge, self.log = folder, trainer, judge, log

    def remember(self, steps: Iterator[Progress]) -> Iterator[Progress]:
        """The loop with its log and its checkpoints."""
        saved, progress, since = time.monotonic(), None, []
        for progress in steps:
            since.append(progress)
            if progress.held_out or progress.stopped:
                self.log.add(record(since))
                since.clear()
            if time.monotonic() - saved > SAVE_EVERY and not progress.stopped:
                self.save()
                saved = time.monotonic()
            try:
                yield progress
            except GeneratorExit:  # the caller left between two steps, where the state is whole
                self.conclude("asked")
                self.save()
                raise
        stopped = (progress and progress.stopped) or "budget"
        self.conclude(stopped)
        if progress and stopped == "diverged":
            raise DivergenceError(progress.sentence)
        self.save()

    def save(self) -> None:
        if not self.trainer.sound:
            raise DivergenceError("the weights were no longer finite at step "
                                  f"{self.trainer.step}; the checkpoint before is kept; try a "
                                  "smaller train.rate, or train.clip=1")
        checkpoint.save(self.folder / "last.safetensors", *self.trainer.state())

    def conclude(self, stopped: str) -> None:
        """Keep the best weights. A last look at weights no regular score has seen may win too, but
        leaves no trace in the checkpoint, so that resuming equals never having stopped."""
        score, weights = self.trainer.best, self.trainer.kept
        if stopped != "diverged" and self.trainer.step % self.trainer.every:
            final = examine(self.trainer, self.judge)
            if final.better_than(score):
                score, weights = final, self.trainer.weights()
        if not weights:
            return
        about = {"step": self.trainer.step, "seconds": self.trainer.seconds, "stopped": stopped,
                 "held_out": None if score is None else score.to_dict()}
        checkpoint.save(self.folder / "best.safetensors", weights, about)


def record(since: Sequence[Progress]) -> dict[str, Any]:
    """A line of the log: where training stands, and the mean of each term since the last line."""
    now = since[-1]
    names = dict.fromkeys(name for progress in since for name in progress.terms)
    told = {name: [p.terms[name] for p in since if name in p.terms] for name in names}
    terms = {name: sum(values) / len(values) for name, values in told.items()}
    held = now.held_out.to_dict() if now.held_out else None
    return {"step": now.step, "epoch": now.epoch, "seconds": now.seconds, "rate": now.rate,
            "terms": terms, "held_out": held, "stopped": now.stopped}
