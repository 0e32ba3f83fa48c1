"""The cost of a fit, estimated before it starts: parameters, memory and, on request, time.

Parameters and memory come from shapes alone: the updates run on fake tensors, which have shapes
but no values, so that nothing is computed. A model that branches on values cannot run on them; the
memory of its steps is unknown unless steps are timed.

Timed steps run on a model that is discarded afterwards. A step is a pure function of the seed, its
number and the state before it, so they leave no trace in the fit. Updates that use the whole
training split are timed on a subset and on a part of that, and extrapolated to all rows: linearly,
or by a power law where the time grows faster than the rows.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core.batch import Batch
from ..core.model import Model, Update
from ..core.train_config import OptimiserConfig, TrainConfig
from .batch_sampler import RowSource
from .budget import Budget
from .optimiser import steps_per_epoch, trainable_updates
from .trainer import EMA, Trainer

MAX_TRIAL_ROWS = 1024
"""Rows used by timed steps, or the batch size if that is larger."""
SUBSET_FACTOR, MAX_GROWTH_POWER = 4, 2.0
"""How many times fewer rows the second trial has, and the largest power used to extrapolate."""
TRIAL_STEPS, MAX_TRIAL_SECONDS = 3, 1.0
"""Steps that are timed, and the time after which no further step starts."""
LBFGS_HISTORY = 10
"""Pairs of vectors in the state of L-BFGS."""


@dataclass(frozen=True)
class Cost:
    """The cost of one fit on this machine."""

    parameters: int
    seconds_per_step: float | None  # seconds per step; None if no step was timed
    epoch_steps: int
    weights: int  # bytes of the weights, their EMA and the optimiser state
    working: int | None  # peak bytes of activations and gradients in a step; None if unknown
    limit: int = 0  # train.max_steps; 0 for no limit

    @property
    def epoch(self) -> float | None:
        """Seconds per epoch."""
        return None if self.seconds_per_step is None else self.seconds_per_step * self.epoch_steps

    @property
    def memory(self) -> int | None:
        """Bytes in total at the peak of a step."""
        return None if self.working is None else self.weights + self.working

    def steps(self, budget: Budget) -> float:
        """Steps that the budget allows, without the time of evaluations."""
        seconds = (
            math.inf if self.seconds_per_step is None else budget.seconds / self.seconds_per_step
        )
        limit = self.limit or math.inf
        return min(seconds, budget.steps, budget.epochs * self.epoch_steps, limit)

    def admit(self, budget: str) -> None:
        """Raise UsageError if the budget does not allow one step."""
        Budget.check(budget, self.epoch_steps, self.seconds_per_step)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"epoch": self.epoch, "memory": self.memory}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Cost:
        return cls(**{name: stored[name] for name in cls.__dataclass_fields__})


def estimate(
    model: Model,
    rows: RowSource,
    train_config: TrainConfig,
    seed: int = 0,
    precision: str = "fp32",
    timed: bool = True,
) -> Cost:
    """The cost of fitting the model to these rows. With `timed`, a few steps run, and `model` must
    not be used afterwards; otherwise nothing is computed and
    `Cost.seconds_per_step` is None."""
    updates, _ = trainable_updates(model, train_config)
    batch_size = min(train_config.batch_size, len(rows))
    working = step_memory(model, rows, updates, batch_size, precision)
    step = None
    if timed:
        step, measured = trial(model, rows, train_config, seed, precision)
        working = measured if working is None else working
    return Cost(
        sum(p.numel() for p in model.parameters()),
        step,
        steps_per_epoch(len(rows), batch_size, updates),
        state_memory(model, updates, train_config),
        working,
        train_config.max_steps,
    )


def state_memory(model: Model, updates: Sequence[Update], train_config: TrainConfig) -> int:
    """Bytes of the weights, their EMA and the state of the optimisers."""
    total = sum(map(bytes_of, model.state_dict().values()))
    total += sum(map(bytes_of, EMA(model, train_config.ema_decay).weights.values()))
    for update in updates:
        slots = state_slots(train_config.optimiser_config(update.name))
        total += slots * sum(map(bytes_of, update.params))
    return total


def state_slots(config: OptimiserConfig) -> int:
    """Tensors of the size of the parameters that an optimiser stores."""
    if config.optimiser in ("adam", "adamw"):
        return 2
    if config.optimiser == "lbfgs":
        return 2 * LBFGS_HISTORY + 2
    return int(config.optimiser != "sgd") + int(
        config.momentum > 0 and config.optimiser in ("sgd", "rmsprop")
    )


def step_memory(
    model: Model, rows: RowSource, updates: Sequence[Update], batch_size: int, precision: str
) -> int | None:
    """Peak bytes that an update allocates, by its shapes; None if the loss depends on values."""
    example = rows.batch(torch.zeros(1, dtype=torch.long))
    names = {update.name: update for update in updates}
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors = [*model.parameters(), *model.buffers()]
        fake = copy.deepcopy(model, {id(tensor): mode.from_tensor(tensor) for tensor in tensors})
        with torch.random.fork_rng(devices=[]), mode:
            return max(
                update_memory(
                    update,
                    fake_batch(example, (len(rows) if own.whole else batch_size) * own.batches),
                    precision,
                )
                for update in fake.updates()
                if (own := names.get(update.name))
            )
    except Exception:  # what torch raises when a value is asked for differs from op to op
        return None


def fake_batch(example: Batch, count: int) -> Batch:
    """A batch of `count` rows in the shapes of the example, without values."""
    return example.map(
        lambda value: torch.empty(
            (count, *value.shape[1:]), dtype=value.dtype, device=value.device
        )
    )


def update_memory(update: Update, batch: Batch, precision: str) -> int:
    """Peak bytes that the loss and the gradients of one update allocate."""
    params = [param for param in update.params if param.requires_grad]
    device = batch.x.device.type
    with MemoryGauge() as gauge, torch.set_grad_enabled(bool(params)):
        with torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext():
            losses = update.loss(batch)
        if params:
            torch.stack([term.mean() for term in losses.values()]).sum().backward(inputs=params)
    return gauge.peak


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


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


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


class MemoryGauge(TorchDispatchMode):
    """Records the peak bytes of the tensors that are created inside it and not yet freed."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated: dict[int, int] = {}  # bytes by storage
        self.now = self.peak = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        before = {
            id(leaf.untyped_storage())
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self.allocate(leaf.untyped_storage(), before)
        return made

    def allocate(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = id(storage)
        if key in self.allocated or key in before:
            return
        self.allocated[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, key)

    def free(self, key: int) -> None:
        self.now -= self.allocated.pop(key, 0)
