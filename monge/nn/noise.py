"""Noise on hidden units."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GaussianNoise(nn.Module):
    """h + scale e with e ~ N(0, I) in training, h otherwise."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, h: Tensor) -> Tensor:
        return h + self.scale * torch.randn_like(h) if self.training and self.scale else h

    def extra_repr(self) -> str:
        return f"scale={self.scale}"
