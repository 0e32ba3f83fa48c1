"""torch's optimisers in their fused forms, and the rate as a function of the step alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from ..core.error import WordError
from ..core.recipe import Mover, Recipe


def optimiser(mover: Mover, params: Sequence[nn.Parameter]) -> Optimizer:
    """The optimiser a mover describes; fused where torch has it, since its loop is 3 to 6 times
    slower on a CPU."""
    optim, rate, decay = torch.optim, mover.rate, mover.decay
    if mover.optimiser == "adam":
        return optim.Adam(params, rate, mover.betas, weight_decay=decay, fused=True)
    if mover.optimiser == "adamw":
        return optim.AdamW(params, rate, mover.betas, weight_decay=decay, fused=True)
    if mover.optimiser == "sgd":
        if mover.nesterov and not mover.momentum:
            raise WordError("nesterov=true needs a momentum; add train.momentum=0.9")
        return optim.SGD(params, rate, mover.momentum, weight_decay=decay,
                         nesterov=mover.nesterov, fused=True)
    if mover.optimiser == "adagrad":
        return optim.Adagrad(params, rate, weight_decay=decay, fused=True)
    return optim.RMSprop(params, rate, mover.betas[1], weight_decay=decay,
                         momentum=mover.momentum, foreach=True)


def factor(recipe: Recipe, step: int, horizon: float) -> float:
    """What multiplies the rate at this step: a linear warm-up, then constant or a cosine to 0."""
    rise = min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else 1.0
    if recipe.schedule == "constant":
        return rise
    return rise * 0.5 * (1 + math.cos(math.pi * min(step / horizon, 1.0)))


def horizon(recipe: Recipe, steps: float) -> float:
    """Steps over which the schedule runs, given the steps of the budget."""
    length = recipe.horizon or steps
    if recipe.schedule == "cosine" and not math.isfinite(length):
        raise WordError("train.schedule=cosine needs its length: give the budget in steps or "
                        "epochs, or add train.horizon=5000")
    return length
