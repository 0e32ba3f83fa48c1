"""Rows as steps, and the Gaussian codes of steps: what is passed between the laws of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...nn.mlp import MLP
from ...prob.normal import log_normals
from ._base import bounded, rates_of


@dataclass(frozen=True)
class Frames:
    """Rows laid out as steps."""

    x: Tensor  # (B, T, C)
    exist: Tensor  # (B, T): which steps are part of the law
    context: Tensor | None  # (B, 1 or T + 1, K)
    row: Tensor  # (B,): what keys the noise of a score


@dataclass(frozen=True)
class Codes:
    """Codes of steps with their prior N(mean, scale^2) and how the posterior differs from it."""

    z: Tensor  # (..., Z), as are the others
    mean: Tensor
    log_scale: Tensor
    shift: Tensor  # delta
    stretch: Tensor  # log rho

    @property
    def whitened(self) -> Tensor:
        return (self.z - self.mean) * (-self.log_scale).exp()

    @property
    def log_prior(self) -> Tensor:
        return (log_normals(self.whitened) - self.log_scale).sum(-1)

    @property
    def log_posterior(self) -> Tensor:
        noise = (self.whitened - self.shift) * (-self.stretch).exp()
        return (log_normals(noise) - self.log_scale - self.stretch).sum(-1)

    @property
    def rates(self) -> Tensor:
        return rates_of(self.shift, self.stretch)  # (..., Z)

    def shaped(self, shape: tuple[int, int]) -> Codes:
        """With the first axis in this shape."""
        return Codes(*(part.unflatten(0, shape) for part in self.all()))

    def all(self) -> tuple[Tensor, ...]:
        return self.z, self.mean, self.log_scale, self.shift, self.stretch

    @classmethod
    def join(cls, parts: Sequence[Codes], axis: int) -> Codes:
        """Levels side by side along the last axis, or steps along a new one."""
        each = zip(*(part.all() for part in parts), strict=True)
        if axis == -1:
            return cls(*(torch.cat(one, -1) for one in each))
        return cls(*(torch.stack(one, axis) for one in each))


class Normal(nn.Module):
    """Mean and log-scale of a Gaussian from a vector; near N(0, 1) at first."""

    def __init__(self, config: MLP.Config, inputs: int, outputs: int) -> None:
        super().__init__()
        self.net: MLP = config.build(inputs, 2 * outputs)
        with torch.no_grad():
            self.net.out.weight.mul_(0.1)
            self.net.out.bias.zero_()

    def forward(self, *parts: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.net(torch.cat(parts, -1)).chunk(2, -1)
        return mean, bounded(raw)
