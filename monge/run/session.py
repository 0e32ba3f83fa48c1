"""A training session: the loop with its log, checkpoints, best weights and refit, and its progress
on screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..core.abilities import HasCritic, HasDiscriminator
from ..core.errors import DivergenceError, LostWorkerError, UsageError
from ..core.metric import Metric, with_error
from ..core.model import Model
from ..core.rng import derive_seed
from ..core.train_config import TrainConfig
from ..data.dataset import View
from ..evaluate.likelihood import HeldOutScorer
from ..train import checkpoint
from ..train.budget import Budget
from ..train.cost_estimate import FirstRows
from ..train.distributed import ALONE, Workers
from ..train.loop import Progress, agreed_metric, evaluate_ema, fit, stop_reason
from ..train.trainer import EMA, Refit, Trainer
from .storage import Log

if TYPE_CHECKING:
    from .run import Run

TIMED_EVAL_ROWS = 256
"""Held-out rows that are scored to estimate the time of a full evaluation."""
SAVE_EVERY = 10.0
"""Seconds between checkpoints: the most training that a crash can lose."""
FIRST_SAVE = 2.0
"""Seconds to the first checkpoint, from which samples can be looked at; the next follow after as
long again, up to `SAVE_EVERY`."""


class TrainingSession:
    """Trains in a run directory: the fit, and the refit that may follow it.

    `refit=same` trains new weights on training and held-out rows together for as many steps as
    the best had; `refit=continue` goes on from the best weights on all those rows until they fit
    the rows once held out as well as they fitted the training rows, for twice the best's steps at
    most (Goodfellow, Bengio & Courville 2016, algorithms 7.2 and 7.3). Neither leaves rows to
    evaluate on: the held-out score that a run reports is that of the weights before the refit.
    """

    def __init__(
        self,
        folder: Path,
        log: Log,
        build: Callable[[], Model],
        view: View,
        train_config: TrainConfig,
        seed: int,
        precision: str,
        compiled: bool = False,
        trainer: Trainer | None = None,
        workers: Workers = ALONE,
        shard: bool = False,
    ) -> None:
        self.workers, self.shard = workers, shard
        self.folder, self.log, self.build, self.view = folder, log, build, view
        self.train_config, self.seed = train_config, seed
        self.precision, self.compiled = precision, compiled
        last = folder / "last.safetensors"
        saved = checkpoint.load(last, in_turn=shard) if last.exists() else None
        if saved or trainer is None:
            trainer = self.new_trainer(bool(saved and saved[1].get("refit")))
        self.trainer = trainer
        if saved:
            self.trainer.restore(*saved)
        if workers.is_first:
            log.cut(self.trainer.step)

    def new_trainer(self, again: bool = False) -> Trainer:
        """A trainer with initial weights on the rows of the fit, or of the refit."""
        rows = self.view.training("train+valid" if again else "train")
        seed = derive_seed(self.seed, "refit") if again else self.seed
        return Trainer(
            self.build(),
            rows,
            self.train_config,
            seed,
            self.precision,
            self.compiled,
            self.workers,
            self.shard,
        )

    @property
    def critic_distance(self) -> Callable[[], float] | None:
        """What patience counts with train.patience_on=critic."""
        if self.train_config.patience_on == "held_out":
            return None
        if not isinstance(self.trainer.model, HasCritic | HasDiscriminator):
            raise UsageError(
                "train.patience_on=critic expects an adversarial model, found one without a "
                "critic; leave it out"
            )
        return self.scorer.critic_distance

    @property
    def scorer(self) -> HeldOutScorer:
        return HeldOutScorer(self.trainer.model, self.view.weighted("valid"))

    def train(self, budget: Budget, should_stop: Callable[[], bool]) -> Iterator[Progress]:
        """The fit and then the refit, within the budget."""
        first = self.trainer
        end = budget.end(first.epoch_steps, first.step, first.seconds, 0)
        if not first.refit:
            yield from self.run_loop(
                fit(
                    first,
                    end,
                    self.scorer,
                    should_stop,
                    estimate_eval_seconds=self.estimate_eval_seconds,
                    critic_distance=self.critic_distance,
                )
            )
            ended = first.evals_without_gain >= self.train_config.patience or first.converged
            if self.train_config.refit == "none" or not (ended and first.best_weights):
                return
            self.trainer = self.start_refit(first)
        scorer = self.scorer if self.train_config.refit == "continue" else None
        yield from self.run_loop(
            fit(
                self.trainer,
                end,
                scorer,
                should_stop,
                estimate_eval_seconds=self.estimate_eval_seconds,
            )
        )

    def estimate_eval_seconds(self) -> float:
        """Estimated seconds of one held-out evaluation, from timing it on few rows."""
        rows = FirstRows(self.view.split("valid"), TIMED_EVAL_ROWS)
        started = time.monotonic()
        evaluate_ema(self.trainer, HeldOutScorer(self.trainer.model, rows))
        spent = time.monotonic() - started
        return spent * sum(map(len, self.scorer.batches)) / max(len(rows), 1)

    def start_refit(self, first: Trainer) -> Trainer:
        """The trainer of the refit, at its first step."""
        trainer, best = self.new_trainer(again=True), first.best_step
        trainer.step, trainer.seconds, trainer.evals_without_improvement = (
            first.step,
            first.seconds,
            first.evals_without_improvement,
        )
        trainer.best, trainer.best_step, trainer.best_weights = (
            first.best,
            best,
            first.best_weights,
        )
        if self.train_config.refit == "same":
            trainer.refit = Refit(first.step, best)
            return trainer
        trainer.model.load_state_dict(first.best_weights)
        trainer.ema = EMA(trainer.model, self.train_config.ema_decay)
        goal = agreed_metric(trainer, HeldOutScorer(trainer.model, self.view.split("train"))).value
        trainer.refit = Refit(first.step - best, 2 * best, goal)
        return trainer

    def run_loop(self, steps: Iterator[Progress]) -> Iterator[Progress]:
        """Run the loop, writing the log and checkpoints."""
        start = saved = time.monotonic()
        progress, since = None, []
        for progress in steps:
            since.append(progress)
            if progress.held_out or progress.stopped:
                if self.workers.is_first:
                    self.log.add(record(since))
                since.clear()
            pause = min(max(saved - start, FIRST_SAVE), SAVE_EVERY)
            due = time.monotonic() - saved > pause and not progress.stopped
            if self.trainer.agree_if_sharded(due):
                self.save()
                saved = time.monotonic()
            try:
                yield progress
            except GeneratorExit:  # the caller left between two steps, where the state is whole
                if self.trainer.sharded is None:  # else the other processes would be needed
                    self.save_best("asked")
                    self.save()
                raise
        if progress is None:  # it was over when it was resumed
            stopped = stop_reason(self.trainer, Budget(steps=0), lambda: False, 0.0)
        else:
            stopped = progress.stopped
        stopped = stopped or "budget"
        self.save_best(stopped)
        if progress and stopped == "diverged":
            kind = DivergenceError if self.workers.is_first else LostWorkerError  # one says so
            raise kind(progress.sentence)
        self.save()

    def save(self) -> None:
        """Write the checkpoint, in the first process."""
        if not self.trainer.can_score:
            return
        if not self.trainer.is_finite:
            kind = DivergenceError if self.workers.is_first else LostWorkerError
            raise kind(
                "the weights were no longer finite at step "
                f"{self.trainer.step}; the checkpoint before is kept; try a "
                "smaller train.lr, or train.grad_clip=1"
            )
        self.write("last.safetensors", *self.trainer.state())

    def write(self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a file of the run; all processes do it together if weights are cut over them."""
        place = self.folder / name
        if self.trainer.sharded is None:
            checkpoint.save(place, tensors, about)
            return
        from ..train.sharding import read_whole

        with self.workers.together():
            checkpoint.save_in_turn(place, tensors, about, read_whole, self.workers.is_first)

    def save_best(self, stopped: str) -> None:
        """Save the best weights. Weights that no regular evaluation has scored are scored once
        more and may win, but leave no trace in the checkpoint, so that resuming equals never
        having stopped."""
        if not self.trainer.can_score:
            return
        score, weights, refit = self.trainer.best, self.trainer.best_weights, self.trainer.refit
        seconds = self.trainer.seconds
        if self.trainer.refit_done and stopped != "diverged":
            stopped, weights = "refit", self.trainer.weights()
        elif not refit and stopped != "diverged" and self.trainer.step % self.trainer.eval_every:
            started = time.monotonic()
            final = evaluate_ema(self.trainer, self.scorer)
            seconds += time.monotonic() - started
            if final.replaces(score):
                score, weights = final, self.trainer.weights()
        if not weights:
            return
        about = {
            "step": self.trainer.step,
            "seconds": seconds,
            "stopped": stopped,
            "held_out": None if score is None else score.to_dict(),
        }
        if self.train_config.refit != "none":
            about["refit"] = self.refit_status()
        self.write("best.safetensors", weights, about)

    def refit_status(self) -> dict[str, Any]:
        """Progress of the refit: steps done, steps in all, rows."""
        refit, first = self.trainer.refit, self.trainer.best_step
        if refit is None:
            return {
                "way": self.train_config.refit,
                "done": False,
                "steps": 0,
                "of": None,
                "rows": 0,
            }
        started = first if self.train_config.refit == "continue" else 0
        return {
            "way": self.train_config.refit,
            "done": self.trainer.refit_done,
            "steps": self.trainer.age - started,
            "of": refit.until - started,
            "rows": len(self.trainer.rows),
        }


def record(since: Sequence[Progress]) -> dict[str, Any]:
    """A line of the log: the current step, and the mean of each loss term since the last line."""
    now = since[-1]
    terms, norms = mean([p.terms for p in since]), mean([p.norms for p in since])
    held = now.held_out.to_dict() if now.held_out else None
    return {
        "step": now.step,
        "epoch": now.epoch,
        "seconds": now.seconds,
        "lr": now.lr,
        "terms": terms,
        "norms": norms,
        "held_out": held,
        "stopped": now.stopped,
    }


def mean(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean under each name over the records that have it."""
    names = dict.fromkeys(name for each in records for name in each)
    values = {name: [each[name] for each in records if name in each] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}


def follow(
    steps: Iterable[Progress], shown: bool | None = None, unit: LossUnit | None = None
) -> None:
    """Run all steps of a fit. A bar is shown on a terminal and in a notebook unless `shown` is
    false; elsewhere a line per held-out evaluation is printed if `shown` is true."""
    unit = unit or LossUnit()
    bar = ProgressBar(unit) if shown is not False and is_interactive() else None
    try:
        for progress in steps:
            if bar:
                bar.show(progress)
            elif shown and progress.held_out and sys.stderr is not None:
                sys.stderr.write(f"{line(progress, unit)}\n")
    finally:
        if bar:
            bar.close()


LIKELIHOOD_TERMS = ("nll", "bound", "reconstruction", "kl", "prior", "diffusion")
"""Loss terms that sum to minus a log-likelihood, or a bound of it, in nats; `kl_2` is one of
several of a kind."""


STOP_REASONS = {
    "budget": "the budget is used up",
    "patience": "no improvement for `train.patience` evaluations",
    "complete": "the fit is complete",
    "asked": "interrupted",
    "refit": "the refit is complete",
}
"""Why training ended, in the words of its user."""


@dataclass(frozen=True)
class LossUnit:
    """What the loss of a model is shown in, and the held-out value with it: one unit, one sign."""

    noun: str = "row"  # of the loss: a row, or a character or a step of it
    steps: float = 1.0  # in a held-out row, on average

    @classmethod
    def of(cls, run: Run) -> LossUnit:
        return cls(step_noun(run), mean_steps(run)) if run.model_class.loss_per_step else cls()

    def show(self, terms: Mapping[str, float], held: Metric | None, digits: int) -> str:
        """Loss and held-out value: as log-likelihoods if both are, otherwise as they are."""
        loss = sum(terms.values()) if terms else float("nan")
        names = {name.rpartition("/")[2].partition("_")[0] for name in terms}
        updates = {
            name.rpartition("/")[0] for name in terms
        }  # of which each has a loss of its own
        likelihood = names <= {*LIKELIHOOD_TERMS} and len(updates) <= 1
        if held is None:
            what = f"log-likelihood per {self.noun}: training" if likelihood else "training loss"
            return f"{what} {-loss if likelihood else loss:.{digits}f}"
        if held.kind in ("distance", "loss"):
            return f"training loss {loss:.{digits}f}  held-out {held.kind} {held.value:.{digits}f}"
        if not likelihood:
            return (
                f"training loss {loss:.{digits}f}  "
                f"held-out log-likelihood {held.value:.{digits}f} {held.unit} per row"
            )
        return (
            f"log-likelihood per {self.noun}: training {-loss:.{digits}f}  "
            f"held-out {held.value / self.steps:.{digits}f}"
        )


def step_noun(run: Run) -> str:
    """What a step of a sequence is."""
    if (text := run.view.text) is None:
        return "step"
    return {"chars": "character", "words": "word", "bytes": "byte"}.get(text.unit, "subword")


def mean_steps(run: Run) -> float:
    """The mean number of steps of the held-out rows."""
    lengths = run.split(None, "valid").lengths
    if lengths is not None:
        return float(lengths[:, 0].double().mean())
    return run.space.shape[0] if run.space.shape else 1.0


def held_out(run: Run, held: Mapping[str, Any]) -> str:
    """The held-out metric with its error, per row and, of text and sound, per step of it."""
    value, error = held["value"], with_error(held["stderr"])
    if held["kind"] in ("distance", "loss"):
        return f"{held['kind']} {value:.4f}{error} {held['unit']}"
    each = ""
    if value is not None and (run.view.text is not None or run.view.sound is not None):
        each = f", {value / mean_steps(run):.4f} per {step_noun(run)}"
    per_row = f"{held['unit']} per row{each} ({held['kind']})"
    return f"log-likelihood {value:.4f}{error} {per_row}"


def is_interactive() -> bool:
    """Whether a bar can be drawn: stderr is a terminal, or this is a notebook."""
    return (sys.stderr is not None and sys.stderr.isatty()) or is_notebook()


def is_notebook() -> bool:
    """Whether this runs in a notebook, which draws a bar in its page."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and type(shell).__name__ != "TerminalInteractiveShell"


def line(progress: Progress, unit: LossUnit) -> str:
    """The progress of training in one line; the best held-out value so far has a star."""
    best = " *" if progress.best else "  "
    return (
        f"step {progress.step:>7}  epoch {progress.epoch:>6.1f}  "
        f"{unit.show(progress.terms, progress.held_out, 4)}{best}  "
        f"{progress.speed:.0f} steps/s  {progress.seconds:.0f} s"
    )


class ProgressBar:
    """A progress bar with loss, held-out score, speed and time left."""

    def __init__(self, unit: LossUnit) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.bar = Progress(
            BarColumn(30),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            console=Console(file=None if is_notebook() else sys.stderr),
        )
        self.task = self.bar.add_task("", total=1.0)
        self.unit = unit
        self.held: Metric | None = None
        self.bar.start()

    def show(self, progress: Progress) -> None:
        self.held = progress.held_out or self.held
        fraction = min(progress.fraction, 1.0)
        left = progress.seconds * (1 - fraction) / max(fraction, 1e-9)
        text = (
            f"step {progress.step}  {self.unit.show(progress.terms, self.held, 3)}  "
            f"{progress.speed:.0f} steps/s  {left:.0f} s left"
        )
        self.bar.update(self.task, completed=fraction, description=text)

    def close(self) -> None:
        self.bar.stop()
