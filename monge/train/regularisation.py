"""Regularisation during training: weight noise, input noise and the L1 proximal step.

Small noise on an input acts as a Tikhonov penalty on the derivative with respect to it (Bishop
1995); noise on the weights favours flat minima (Graves 2011). Noise on hidden units is a layer,
`nn.noise`. Noise on the event itself would change the distribution that is learned, so
`input_noise` changes conditions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.batch import Batch
from ..core.space import Space


@contextmanager
def weight_noise(params: Sequence[nn.Parameter], scale: float) -> Iterator[None]:
    """Gaussian noise on the parameters inside the block, which should hold the forward and the
    backward pass; afterwards they are restored exactly."""
    saved = [param.detach().clone() for param in params]
    with torch.no_grad():
        for param in params:
            param.add_(scale * torch.randn_like(param))
    try:
        yield
    finally:
        with torch.no_grad():
            for param, value in zip(params, saved, strict=True):
                param.copy_(value)


@torch.no_grad()
def l1_prox(optimiser: Optimizer, penalty: float) -> None:
    """The proximal step of an L1 penalty, w <- sign(w) max(|w| - lr * penalty, 0), for parameters
    with at least two axes."""
    for group in optimiser.param_groups:
        for param in group["params"]:
            if param.ndim > 1:
                param.copy_(nn.functional.softshrink(param, group["lr"] * penalty))


def real_scale(space: Space) -> Tensor | None:
    """The scale of each real entry of a space and 0 for the others, which broadcasts against an
    event; None if no entry is real."""
    kinds = [part.kind for part in space.columns] or [space.kind]
    is_real = torch.tensor([kind == "real" for kind in kinds])
    return space.statistic("scale") * is_real if is_real.any() else None


def input_noise(batch: Batch, space: Space, noise: float) -> Batch:
    """The batch with noise on its real-valued conditions, in standard deviations of training."""

    def add_noise(part: Batch, part_space: Space) -> Batch:
        scale = real_scale(part_space)
        if scale is None:
            return part
        return replace(part, x=part.x + noise * scale.to(part.x) * torch.randn_like(part.x))

    given = {name: add_noise(part, space.given[name]) for name, part in batch.given.items()}
    return replace(batch, given=given)
