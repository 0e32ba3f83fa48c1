"""What tests ask of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from monge.train import checkpoint
from monge.train.trainer import Trainer


def assert_unbroken(make: Callable[[], Trainer], folder: Path, steps: int = 2) -> Trainer:
    """Training that was not interrupted; another that was, and was resumed from its file half
    way, must equal it bit for bit."""
    whole, first, second = make(), make(), make()
    for trainer, many in ((whole, 2 * steps), (first, steps)):
        advance(trainer, many)
    checkpoint.save(folder / "last.safetensors", *first.state())
    second.restore(*checkpoint.load(folder / "last.safetensors"))
    advance(second, steps)
    (there, counted), (here, counted_too) = whole.state(), second.state()
    assert there.keys() == here.keys()
    for key, value in there.items():
        assert torch.equal(value, here[key]), key
    assert counted == counted_too
    return whole


def advance(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.train_step(1.0)
