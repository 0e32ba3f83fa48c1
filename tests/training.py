"""Checks of training that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from monge.train import checkpoint
from monge.train.trainer import Trainer


def assert_unbroken(make: Callable[[], Trainer], folder: Path, steps: int = 2) -> Trainer:
    """Check that training interrupted half-way and resumed from its checkpoint equals
    uninterrupted training bit for bit; return the uninterrupted trainer."""
    whole, first, second = make(), make(), make()
    for trainer, count in ((whole, 2 * steps), (first, steps)):
        advance(trainer, count)
    checkpoint.save(folder / "last.safetensors", *first.state())
    second.restore(*checkpoint.load(folder / "last.safetensors"))
    advance(second, steps)
    (expected, counters), (found, resumed_counters) = whole.state(), second.state()
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(value, found[key]), key
    assert counters == resumed_counters
    return whole


def advance(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.train_step(1.0)
