"""The cost of a fit, estimated before it starts: parameters, memory and, on request, time.

Memory comes from steps of few rows (see `step_memory`); where a loss refuses those, it is a lower
bound unless steps are timed.

Timed steps run on a model that is discarded afterwards. A step is a pure function of the seed, its
number and the state before it, so they leave no trace in the fit. Updates that use the whole
training split are timed on a subset and on a part of that, and extrapolated to all rows: linearly,
or by a power law where the time grows faster than the rows.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.model import Model, Update
from ..core.train_config import TrainConfig
from .batch_sampler import RowSource
from .budget import Budget
from .optimiser import trainable_updates
from .step_memory import MemoryGauge, StepMemory, bytes_of, state_slots, step_memory
from .trainer import EMA, Trainer, epoch_batches, steps_per_epoch

MAX_TRIAL_ROWS = 1024
"""Rows used by timed steps, or the batch size if that is larger."""
SUBSET_FACTOR, MAX_GROWTH_POWER = 4, 2.0
"""How many times fewer rows the second trial has, and the largest power used to extrapolate."""
TRIAL_STEPS, MAX_TRIAL_SECONDS = 3, 1.0
"""Steps that are timed, and the time after which no further step starts."""


@dataclass(frozen=True)
class Cost:
    """The cost of one fit on this machine."""

    parameters: int
    seconds_per_step: float | None  # seconds per step; None if no step was timed
    epoch_steps: int
    weights: int  # bytes of the weights, their EMA and the optimiser state
    working: int  # peak bytes of batches, activations and gradients in a step
    limit: int = 0  # train.max_steps; 0 for no limit
    is_lower_bound: bool = False  # whether a step may need more memory than `working`

    @property
    def epoch(self) -> float | None:
        """Seconds per epoch."""
        return None if self.seconds_per_step is None else self.seconds_per_step * self.epoch_steps

    @property
    def memory(self) -> int:
        """Bytes in total at the peak of a step."""
        return self.weights + self.working

    def steps(self, budget: Budget) -> float:
        """Steps that the budget allows, without the time of evaluations; at least one is done."""
        seconds = (
            math.inf if self.seconds_per_step is None else budget.seconds / self.seconds_per_step
        )
        limit = self.limit or math.inf
        return max(min(seconds, budget.steps, budget.epochs * self.epoch_steps, limit), 1.0)

    def to_dict(self) -> dict[str, Any]:
        stored = asdict(self) | {"epoch": self.epoch, "memory": self.memory}
        if not self.is_lower_bound:
            del stored["is_lower_bound"]
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Cost:
        fields = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
        return cls(**fields)


def estimate(
    model: Model,
    rows: RowSource,
    train_config: TrainConfig,
    seed: int = 0,
    precision: str = "fp32",
    timed: bool = True,
) -> Cost:
    """The cost of fitting the model to these rows. With `timed`, a few steps run, and `model` must
    not be used afterwards; otherwise a copy of it computes losses of few rows, and
    `Cost.seconds_per_step` is None."""
    updates, _ = trainable_updates(model, train_config)
    batches = epoch_batches(len(rows), train_config)
    # Trying few rows takes longer than most fits in closed form, so those have a lower bound only.
    working = StepMemory(0, is_lower_bound=True)
    if timed or any(update.params for update in updates):
        working = step_memory(
            model, rows, updates, batches.largest, precision, train_config.pieces
        )
    step = None
    if timed:
        step, measured = trial(model, rows, train_config, seed, precision)
        working = StepMemory(measured) if working.is_lower_bound else working
    return Cost(
        sum(p.numel() for p in model.parameters()),
        step,
        steps_per_epoch(batches, updates),
        state_memory(model, updates, train_config),
        working.peak,
        train_config.max_steps,
        working.is_lower_bound,
    )


def state_memory(model: Model, updates: Sequence[Update], train_config: TrainConfig) -> int:
    """Bytes of the weights, their EMA and the state of the optimisers."""
    total = sum(map(bytes_of, model.state_dict().values()))
    total += sum(map(bytes_of, EMA(model, train_config.ema_decay).weights.values()))
    for update in updates:
        slots = state_slots(train_config.optimiser_config(update.name))
        total += slots * sum(map(bytes_of, update.params))
    return total


def trial(
    model: Model, rows: RowSource, train_config: TrainConfig, seed: int, precision: str
) -> tuple[float, int]:
    """Seconds per step and peak bytes of a step, measured."""
    few = FirstRows(rows, max(MAX_TRIAL_ROWS, train_config.batch_size))
    with torch.random.fork_rng(devices=[]):
        trainer = Trainer(model, few, train_config, seed, precision)
        step, working = measure(trainer)
        if len(few) < len(rows) and any(update.whole for update in trainer.updates):
            fewer = FirstRows(rows, len(few) // SUBSET_FACTOR)
            small_step, small_working = measure(
                Trainer(model, fewer, train_config, seed, precision)
            )
            times = len(rows) / len(few)
            step = extrapolate(small_step, step, times)
            working = round(extrapolate(small_working, working, times))
    return step, working


def measure(trainer: Trainer) -> tuple[float, int]:
    """Seconds per step, and the peak bytes of a step."""
    first, working = measure_memory(trainer)
    if first < MAX_TRIAL_SECONDS:  # the first step also allocates the optimiser state
        _, working = measure_memory(trainer)
    return measure_seconds(trainer), working


def extrapolate(part: float, whole: float, times: float) -> float:
    """The value for `times` as many rows, given that for some rows (`whole`) and for one in
    SUBSET_FACTOR of them (`part`)."""
    power = math.log(whole / max(part, 1e-12), SUBSET_FACTOR) if whole > 0 else 0.0
    if power > 1:
        return whole * times ** min(power, MAX_GROWTH_POWER)
    increase = max(whole - part, 0.0) / (1 - 1 / SUBSET_FACTOR)
    return whole + (times - 1) * increase


def measure_memory(trainer: Trainer) -> tuple[float, int]:
    """Seconds of a step whose allocations are recorded, and its peak bytes."""
    gauge, started = MemoryGauge(), time.perf_counter()
    with gauge:
        trainer.train_step(0.0)
    return time.perf_counter() - started, gauge.peak


def measure_seconds(trainer: Trainer) -> float:
    """Seconds per step, the median of a few."""
    spent: list[float] = []
    while len(spent) < TRIAL_STEPS and sum(spent) < MAX_TRIAL_SECONDS:
        started = time.perf_counter()
        trainer.train_step(0.0)
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


class FirstRows:
    """At most `count` rows, evenly spaced."""

    def __init__(self, rows: RowSource, count: int) -> None:
        self.rows = rows
        self.index = torch.linspace(0, max(len(rows) - 1, 0), min(len(rows), count)).long()

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        return self.rows.batch(self.index[index], train)

    def whole(self) -> Batch:
        return self.rows.batch(self.index)

    @property
    def lengths(self) -> Tensor | None:
        lengths = self.rows.lengths
        return None if lengths is None else lengths[self.index]

    @property
    def row_bytes(self) -> int:
        return self.rows.row_bytes
