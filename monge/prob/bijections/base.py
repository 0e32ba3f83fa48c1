r"""Bijections with log-determinants in both directions, and their composition.

`forward` is z -> x, `inverse` is x -> z; each returns the mapped value and the log-determinant of
its own Jacobian, (B,), so the two of a pair differ only in sign:

$\log p_x(x) = \log p_z(z) + \log |\det \partial z / \partial x|$ at $z = f^{-1}(x)$,

and for $x = f_K \circ \dots \circ f_1 (z)$ the log-determinants add up (Rezende & Mohamed
2015). A map may also depend on a context (B, C).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

Mapped = tuple[Tensor, Tensor]
"""The mapped value, (B, ...), and the log-determinant of the Jacobian, (B,)."""


class Bijection(nn.Module, abc.ABC):
    """x = f(z, context) with z (B, ...) and x of as many entries."""

    @abc.abstractmethod
    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        """x and log |det dx/dz|."""

    @abc.abstractmethod
    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        """z and log |det dz/dx|."""

    def inverse_only(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """z without the log-determinant."""
        return self.inverse(x, context)[0]

    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        """Initialise parameters from training rows, before the first step."""


class Compose(Bijection):
    """x = f_K(... f_1(z)): the parts in the order from z to x."""

    def __init__(self, parts: Sequence[Bijection]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        found = []
        for part in self.each():
            z, log_det = part(z, context)
            found.append(log_det)
        return z, torch.stack(found).sum(0)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        found = []
        for part in reversed(self.each()):
            x, log_det = part.inverse(x, context)
            found.append(log_det)
        return x, torch.stack(found).sum(0)

    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        first, *others = self.each()
        for part in reversed(others):
            part.initialise_from_data(x, context)
            x = part.inverse_only(x, context)
        first.initialise_from_data(x, context)

    def each(self) -> list[Bijection]:
        return [cast(Bijection, part) for part in self.parts]


class Inverse(Bijection):
    """The inverse of a bijection."""

    def __init__(self, of: Bijection) -> None:
        super().__init__()
        self.of = of

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        return self.of.inverse(z, context)

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        return self.of(x, context)


def zero_log_det(x: Tensor) -> Tensor:
    """The log-determinant of a volume-preserving map, (B,)."""
    return x.new_zeros(len(x))


def sum_log_det(log_slopes: Tensor) -> Tensor:
    """The log-determinant of a triangular map, from the logarithms on its diagonal, (B,)."""
    return log_slopes.flatten(1).sum(1)
