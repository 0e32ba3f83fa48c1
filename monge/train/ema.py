"""Exponential moving average (EMA) of the weights, used for evaluation and sampling."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class EMA:
    """a <- d a + (1 - d) w at each step, for weights w and their average a.

    d = min(decay, (1 + k) / (10 + k)) at step k, so that the initial weights are soon forgotten.
    The average covers trainable parameters and the running statistics of batch norm; other buffers
    are those of the live model. With decay 0 there is no average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.live = {**trainable, **batch_norm_statistics(model)} if decay else {}
        self.weights = {name: p.detach().clone() for name, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        if self.weights:
            decay = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self.weights.values()), list(self.live.values()), 1 - decay)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Load a saved average."""
        check_same_names("EMA", weights, self.weights)
        self.weights = {name: weights[name] for name in self.weights}

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the averaged weights in the model inside the block."""
        saved = {name: p.detach().clone() for name, p in self.live.items()}
        self.put(self.weights)
        try:
            yield
        finally:
            self.put(saved)

    @torch.no_grad()
    def put(self, weights: dict[str, Tensor]) -> None:
        """Copy these weights into the live model."""
        for name, p in self.live.items():
            p.copy_(weights[name])


def check_same_names(what: str, found: Collection[str], expected: Collection[str]) -> None:
    """Raise ValueError unless the names found are those expected."""
    if missing := sorted({*expected} - {*found}):
        raise ValueError(f"{what}: {missing[0]} is missing")
    if others := sorted({*found} - {*expected}):
        raise ValueError(f"{what}: {others[0]} is not expected")


def batch_norm_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Running means and variances of every batch norm, by name."""
    norms = [
        (name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm)
    ]
    return {
        f"{name}.{key}" if name else key: value
        for name, module in norms
        for key, value in module.named_buffers(recurse=False)
        if value.is_floating_point()
    }
