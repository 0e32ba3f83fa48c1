"""The moving average of the weights: what is scored and kept where a recipe asks for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class EMA:
    """a <- d a + (1 - d) w at each step, for weights w and their average a.

    d = min(decay, (1 + k) / (10 + k)) at step k, so that the first weights are soon forgotten.
    The average covers parameters that may move and the running statistics of batch norm, which
    belong to the weights before them; other buffers are those of the live model.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        moving = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.live = {**moving, **statistics(model)} if decay else {}
        self.weights = {name: p.detach().clone() for name, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        if self.weights:
            decay = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self.weights.values()), list(self.live.values()), 1 - decay)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Go on from an average that was saved."""
        same_names("averages", weights, self.weights)
        self.weights = {name: weights[name] for name in self.weights}

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The averaged weights inside the live model, for as long as the block lasts."""
        kept = {name: p.detach().clone() for name, p in self.live.items()}
        self.put(self.weights)
        try:
            yield
        finally:
            self.put(kept)

    @torch.no_grad()
    def put(self, weights: dict[str, Tensor]) -> None:
        for name, p in self.live.items():
            p.copy_(weights[name])


def same_names(what: str, found: Collection[str], expected: Collection[str]) -> None:
    """Refuse what was saved under other names than those expected."""
    if missing := sorted({*expected} - {*found}):
        raise ValueError(f"{what}: {missing[0]} is missing")
    if others := sorted({*found} - {*expected}):
        raise ValueError(f"{what}: {others[0]} is not expected")


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running means and variances of every batch norm, by name."""
    norms = [
        (name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm)
    ]
    return {
        f"{name}.{key}" if name else key: value
        for name, module in norms
        for key, value in module.named_buffers(recurse=False)
        if value.is_floating_point()
    }
