"""What training does to weights and inputs beside lowering a loss: noise and soft thresholds.

Small noise on an input acts as Tikhonov's penalty on the derivative by it (Bishop 1995), noise on
weights seeks flat minima (Graves 2011). Noise on hidden units is a layer, `nn.noise`. Noise on the
event itself would change the law that is learned, so `disturb` reaches only what is given.
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
    """Parameters with Gaussian noise on them for as long as the block lasts, and then exactly as
    they were; forward and backward pass both belong inside."""
    kept = [param.detach().clone() for param in params]
    with torch.no_grad():
        for param in params:
            param.add_(scale * torch.randn_like(param))
    try:
        yield
    finally:
        with torch.no_grad():
            for param, value in zip(params, kept, strict=True):
                param.copy_(value)


@torch.no_grad()
def l1_prox(mover: Optimizer, penalty: float) -> None:
    """The proximal step of penalty |w|: w <- sign(w) max(|w| - rate penalty, 0), for weights (two
    axes or more) alone."""
    for group in mover.param_groups:
        for param in group["params"]:
            if param.ndim > 1:
                param.copy_(nn.functional.softshrink(param, group["lr"] * penalty))


def reals(space: Space) -> Tensor | None:
    """The scale of every real entry of a space and 0 for the others, so that it broadcasts against
    an event; None where nothing is real."""
    kinds = [part.kind for part in space.columns] or [space.kind]
    number = torch.tensor([kind == "real" for kind in kinds])
    return space.statistic("scale") * number if number.any() else None


def input_noise(batch: Batch, space: Space, noise: float) -> Batch:
    """The batch with noise on the real values it is given, in standard deviations of training."""

    def around(part: Batch, where: Space) -> Batch:
        scale = reals(where)
        if scale is None:
            return part
        return replace(part, x=part.x + noise * scale.to(part.x) * torch.randn_like(part.x))

    given = {name: around(part, space.given[name]) for name, part in batch.given.items()}
    return replace(batch, given=given)
