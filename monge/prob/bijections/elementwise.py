"""Elementwise maps without networks: standardisation, logit, and scales from data."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Bijection, Mapped, sum_log_det


class Standardise(Bijection):
    """x = shift + scale z; the log-determinant is the sum of the log-scales."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift.clone(), persistent=False)
        self.register_buffer("scale", scale.clone(), persistent=False)
        self.volume = float(scale.double().log().sum())

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        return torch.addcmul(self.shift, self.scale, z), z.new_full((len(z),), self.volume)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        return self.inverse_only(x), x.new_full((len(x),), -self.volume)

    def inverse_only(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return (x - self.shift) / self.scale


class Logit(Bijection):
    """z = logit(m + (1 - 2 m) x / size): maps [0, size] to the real line.

    The margin m keeps the ends of the interval finite; samples may leave it by as much.
    """

    size: Tensor

    def __init__(self, size: Tensor, margin: float) -> None:
        """size: (D,), the length of the interval of each entry."""
        super().__init__()
        self.margin = margin
        self.register_buffer("size", size.clone(), persistent=False)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        x = (torch.sigmoid(z) - self.margin) * self.size / (1 - 2 * self.margin)
        return x, -self.log_det(z)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        share = self.margin + (1 - 2 * self.margin) * x / self.size
        z = torch.logit(share, torch.finfo(x.dtype).eps)
        return z, self.log_det(z)

    def log_det(self, z: Tensor) -> Tensor:
        """log |det dz/dx| at z, the derivative of the logit times that of the margin."""
        factor = math.log(1 - 2 * self.margin) - self.size.log()
        return sum_log_det(factor + F.softplus(z) + F.softplus(-z))


class ActNorm(Bijection):
    """x = shift + e^s z along axis 1, initialised so that z has mean 0 and scale 1 over training
    rows (Kingma & Dhariwal 2018), and then learned if `learned`."""

    shift: Tensor
    log_scale: Tensor

    def __init__(self, size: int, learned: bool = True) -> None:
        super().__init__()
        for name in ("shift", "log_scale"):
            if learned:
                self.register_parameter(name, nn.Parameter(torch.zeros(size)))
            else:
                self.register_buffer(name, torch.zeros(size))

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        shift, log_scale = self.broadcast(z)
        return torch.addcmul(shift, log_scale.exp(), z), self.log_det(z)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        shift, log_scale = self.broadcast(x)
        return (x - shift) * (-log_scale).exp(), -self.log_det(x)

    def log_det(self, x: Tensor) -> Tensor:
        """log |det dx/dz|, the same for all rows."""
        return (math.prod(x.shape[2:]) * self.log_scale.sum()).expand(len(x))

    @torch.no_grad()
    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        rows = x.transpose(0, 1).flatten(1)  # (C, B ...)
        scale = rows.std(1, correction=0)
        self.shift.copy_(rows.mean(1))
        self.log_scale.copy_(torch.where(scale > 1e-6, scale, 1.0).log())

    def broadcast(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1, *(1,) * (x.ndim - 2))
        return self.shift.reshape(shape), self.log_scale.reshape(shape)
