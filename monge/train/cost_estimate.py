"""What a fit will cost, measured before it begins: a few steps of a copy that is thrown away.

A step is a pure function of the seed, its number and the state before it, so that what is tried
here leaves no trace in the fit. Turns that want the whole training split are tried on few rows and
on a part of those, and what they need is carried on to all rows: along the line through both, or
along a power where it grows faster than the rows do.
"""

from __future__ import annotations

import math
import statistics
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core.batch import Batch
from ..core.errors import UsageError
from ..core.model import Model
from ..core.train_config import TrainConfig
from .batch_sampler import RowSource
from .budget import Budget
from .param_groups import epoch_steps
from .trainer import Trainer

FEW = 1024
"""Rows of the copy, or a batch if that is more."""
PART, STEEPEST = 4, 2.0
"""How many times fewer rows are tried besides, and the highest power of them that is believed."""
STEPS, SECONDS = 3, 1.0
"""Steps that are timed, and after how many seconds no further one is begun."""


@dataclass(frozen=True)
class Cost:
    """Of one fit on this machine."""

    parameters: int
    step: float  # seconds
    epoch_steps: int
    weights: int  # bytes of weights, their average and what the optimisers keep
    working: int  # bytes that a step needs beside them at its peak: activations and gradients
    limit: int = 0  # steps after which the fit is complete by its recipe; 0 for no such end

    @property
    def epoch(self) -> float:
        """Seconds an epoch."""
        return self.step * self.epoch_steps

    @property
    def memory(self) -> int:
        return self.weights + self.working

    def steps(self, budget: Budget) -> float:
        """How many steps the budget buys, held-out scores left aside."""
        return min(
            budget.seconds / self.step,
            budget.steps,
            budget.epochs * self.epoch_steps,
            self.limit or math.inf,
        )

    def admit(self, budget: str) -> None:
        """A WordError where not one step is in it."""
        if self.steps(Budget.read(budget)) < 1:
            raise UsageError(
                f"budget {budget!r} is too small for one step, which takes about "
                f"{self.step:.2g} s, of {self.epoch_steps} an epoch; give at least "
                f"{math.ceil(10 * self.step)}s"
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"epoch": self.epoch, "memory": self.memory}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Cost:
        return cls(**{name: told[name] for name in cls.__dataclass_fields__})


def estimate(
    model: Model, rows: RowSource, recipe: TrainConfig, seed: int = 0, precision: str = "fp32"
) -> Cost:
    """The cost of fitting such a model to these rows; `model` itself is spent."""
    few = FirstRows(rows, max(FEW, recipe.batch_size))
    with torch.random.fork_rng(devices=[]):
        trainer = Trainer(model, few, recipe, seed, precision)
        step, working = needed(trainer)
        if len(few) < len(rows) and any(turn.whole for turn in trainer.updates):
            part = Trainer(model, FirstRows(rows, len(few) // PART), recipe, seed, precision)
            less, narrow = needed(part)
            times = len(rows) / len(few)
            step, working = grown(less, step, times), round(grown(narrow, working, times))
    state, _ = trainer.state()
    size = min(recipe.batch_size, len(rows))
    return Cost(
        sum(p.numel() for p in model.parameters()),
        step,
        epoch_steps(len(rows), size, trainer.updates),
        sum(map(bytes_of, state.values())),
        working,
        recipe.max_steps,
    )


def needed(trainer: Trainer) -> tuple[float, int]:
    """Seconds of a step, and the bytes that it works with."""
    first, working = gauged(trainer)
    if first < SECONDS:  # by now the optimisers have made what they keep
        _, working = gauged(trainer)
    return timed(trainer), working


def grown(part: float, whole: float, times: float) -> float:
    """What some rows need so many times over, known of them and of one in PART of them."""
    power = math.log(whole / max(part, 1e-12), PART) if whole > 0 else 0.0
    if power > 1:
        return whole * times ** min(power, STEEPEST)
    slope = max(whole - part, 0.0) / (1 - 1 / PART)
    return whole + (times - 1) * slope


def gauged(trainer: Trainer) -> tuple[float, int]:
    """Seconds of a step that is watched, and the bytes that it needed."""
    gauge, begun = MemoryGauge(), time.perf_counter()
    with gauge:
        trainer.advance(0.0)
    return time.perf_counter() - begun, gauge.peak


def timed(trainer: Trainer) -> float:
    """Seconds a step, the median of a few."""
    spent: list[float] = []
    while len(spent) < STEPS and sum(spent) < SECONDS:
        begun = time.perf_counter()
        trainer.advance(0.0)
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class FirstRows:
    """Some of the training rows, spread over all of them."""

    def __init__(self, rows: RowSource, most: int) -> None:
        self.rows = rows
        self.index = torch.linspace(0, max(len(rows) - 1, 0), min(len(rows), most)).long()

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
    """The peak of what all tensors hold that are made inside it and not yet dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}  # bytes by storage
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
                self.hold(leaf.untyped_storage(), before)
        return made

    def hold(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = id(storage)
        if key in self.held or key in before:
            return
        self.held[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.drop, key)

    def drop(self, key: int) -> None:
        self.now -= self.held.pop(key, 0)
