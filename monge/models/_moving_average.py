"""Networks whose weights are a moving average of those of another: teachers and targets.

w' <- d w' + (1 - d) w at each step; with a warm-up d = min(decay, (1 + k) / (10 + k)) at step k,
so that initial weights are soon forgotten.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def warmed_up(decay: float, step: int) -> float:
    return min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, decay: float) -> Tensor:
    """Move the weights of `slow` towards those of `fast`, a network of the same layers; how far
    they were apart, ()."""
    apart = []
    for weight, wanted in zip(slow.parameters(), fast.parameters(), strict=True):
        apart.append((wanted - weight).square().sum())
        weight.lerp_(wanted, 1 - decay)
    return torch.stack(apart).sum().sqrt()
