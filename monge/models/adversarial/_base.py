r"""What keeps a critic Lipschitz.

Kantorovich and Rubinstein: $W_1(p, q) = \sup_{|f|_L \le 1} E_p f - E_q f$, and over $|f|_L \le K$
the supremum is $K W_1$. A critic trained inside a set of functions of bounded slope therefore
estimates $W_1$ from below, up to the unknown K of that set.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Annotated

import torch
from torch import Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.model import Losses


class Constraint(Configured, abc.ABC):
    """How the slope of a critic is held."""

    class Config(BaseConfig):
        """The choices of one constraint."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abc.abstractmethod
    def terms(self, critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor) -> Losses:
        """What the critic pays besides its own loss, for real and fake points (B, D)."""

    @abc.abstractmethod
    def project(self, weights: Iterable[nn.Parameter]) -> Losses:
        """Bring the critic's weights back into the set they belong to; what to log of it."""


class Clipping(Constraint):
    """Every weight stays within [-bound, bound], a compact set, so some K bounds all slopes
    (Arjovsky, Chintala & Bottou 2017)."""

    class Config(Constraint.Config):
        bound: Annotated[float, Range(0, open=True)] = 0.01
        """Largest size of a weight of the critic."""

    config: Config

    def terms(self, critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor) -> Losses:
        return {}

    @torch.no_grad()
    def project(self, weights: Iterable[nn.Parameter]) -> Losses:
        bound, tensors = self.config.bound, [weight.data for weight in weights]
        torch._foreach_clamp_min_(tensors, -bound)
        torch._foreach_clamp_max_(tensors, bound)
        return {"at_bound": (torch.cat([t.flatten() for t in tensors]).abs() == bound).float()
                .mean()}


class Penalty(Constraint):
    r"""$\lambda\,E(|\nabla f(\hat x)| - 1)^2$ with $\hat x$ uniform on the line between a real and
    a fake point (Gulrajani et al. 2017)."""

    class Config(Constraint.Config):
        weight: Annotated[float, Range(0, open=True)] = 10.0
        """Price of a slope that is not 1."""

    config: Config

    def terms(self, critic: Callable[[Tensor], Tensor], real: Tensor, fake: Tensor) -> Losses:
        with torch.enable_grad():
            between = torch.lerp(fake, real, torch.rand_like(real[:, :1])).requires_grad_()
            slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return {"penalty": self.config.weight * (slope.norm(dim=1) - 1).square()}  # (B,)

    def project(self, weights: Iterable[nn.Parameter]) -> Losses:
        return {}
