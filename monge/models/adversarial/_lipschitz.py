r"""Lipschitz constraints of a critic, and its gradient norms.

Kantorovich and Rubinstein: $W_1(p, q) = \sup_{|f|_L \le 1} E_p f - E_q f$, and over $|f|_L \le K$
the supremum is $K W_1$. A critic trained inside a set of functions of bounded slope therefore
estimates $W_1$ from below, up to the unknown K of that set. K is at most the product of the
spectral norms of the critic's linear maps, and at least any slope it has somewhere. The norm of a
convolution with kernel k and stride s is at most that of its matrix from patches to channels,
times the root of the number of patches $\lceil k/s \rceil^2$ that a pixel is part of.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.model import Losses

Critic = Callable[[Tensor], Tensor]
"""From points (B, D) to scores (B,)."""
Layers = Sequence[nn.Linear | nn.Conv2d]
"""The linear maps of a critic."""


class Constraint(Configured, abc.ABC):
    """How the Lipschitz constant of a critic is bounded."""

    class Config(BaseConfig):
        """The choices of one constraint."""

        tag = "constraint/"

    def __init__(self, config: Config) -> None:
        self.config = config

    def bind(self, layers: Layers) -> None:
        """Change how the critic's linear maps are parametrised, once, as it is built."""

    def terms(self, critic: Critic, real: Tensor, fake: Tensor) -> Losses:
        """Terms added to the critic's loss, for real and fake points (B, D)."""
        return {}

    def project(self, weights: Iterable[nn.Parameter]) -> Losses:
        """Project the critic's weights onto the constraint set; values to log."""
        return {}

    @property
    @abc.abstractmethod
    def remedy(self) -> str:
        """What to change if the critic is too flat or too steep."""


class Clipping(Constraint):
    """Every weight stays within [-bound, bound], a compact set, so some K bounds all gradients
    (Arjovsky, Chintala & Bottou 2017)."""

    class Config(Constraint.Config):
        tag = "constraint/clipping"
        bound: Annotated[float, Range(0, open=True)] = 0.1
        """Largest absolute value of the critic's weights: about the inverse root of the inputs of
        a layer, so that the critic is neither flat nor steep; the 0.01 of the paper is for critics
        with batch norm."""

    config: Config

    @torch.no_grad()
    def project(self, weights: Iterable[nn.Parameter]) -> Losses:
        bound, tensors = self.config.bound, [weight.data for weight in weights]
        torch._foreach_clamp_min_(tensors, -bound)
        torch._foreach_clamp_max_(tensors, bound)
        return {
            "at_bound": (torch.cat([t.flatten() for t in tensors]).abs() == bound).float().mean()
        }

    @property
    def remedy(self) -> str:
        return f"change constraint.bound={self.config.bound:g}, or set constraint=penalty"


class Penalty(Constraint):
    r"""$\lambda\,E(|\nabla f(\hat x)| - 1)^2$ with $\hat x$ uniform on the line between a real and
    a fake point (Gulrajani et al. 2017)."""

    class Config(Constraint.Config):
        tag = "constraint/penalty"
        weight: Annotated[float, Range(0, open=True)] = 10.0
        """Weight of the gradient penalty."""

    config: Config

    def terms(self, critic: Critic, real: Tensor, fake: Tensor) -> Losses:
        norm = gradient_norms(critic, interpolate(real, fake), create_graph=True)
        return {"penalty": self.config.weight * (norm - 1).square()}  # (B,)

    @property
    def remedy(self) -> str:
        return f"raise constraint.weight={self.config.weight:g}, or lower train.lr"


class Spectral(Constraint):
    """Every linear map is divided by its largest singular value, found by power iteration, so
    that K <= 1; of a convolution by that of its matrix from patches to channels (Miyato et al.
    2018)."""

    class Config(Constraint.Config):
        tag = "constraint/spectral"
        passes: Annotated[int, Range(1)] = 1
        """Power iterations per training pass."""

    config: Config

    def bind(self, layers: Layers) -> None:
        for layer in layers:
            spectral_norm(layer, n_power_iterations=self.config.passes)

    @property
    def remedy(self) -> str:
        return f"raise constraint.passes={self.config.passes}, or set constraint=penalty"


def interpolate(real: Tensor, fake: Tensor) -> Tensor:
    """A random point on the line between each real point and a fake one, (B, D)."""
    return torch.lerp(fake, real, torch.rand_like(real[:, :1]))


def gradient_norms(critic: Critic, points: Tensor, create_graph: bool = False) -> Tensor:
    """|grad f| at each point, (B,): each of them is a lower bound of K."""
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(critic(points).sum(), points, create_graph=create_graph)
    return gradient.norm(dim=1)


def lipschitz_bound(layers: Layers) -> Tensor:
    """The product of bounds of the spectral norms, an upper bound of K, ()."""
    return torch.stack([norm_bound(layer) for layer in layers]).prod()


def norm_bound(layer: nn.Linear | nn.Conv2d) -> Tensor:
    """The spectral norm of a linear map, (), or an upper bound of that of a convolution."""
    norm = torch.linalg.matrix_norm(layer.weight.flatten(1), 2)
    if isinstance(layer, nn.Linear):
        return norm
    covers = zip(layer.kernel_size, layer.stride, strict=True)
    return norm * math.sqrt(math.prod(-(-kernel // stride) for kernel, stride in covers))
