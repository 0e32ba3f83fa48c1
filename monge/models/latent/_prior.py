r"""Laws of codes: N(0, I), or a mixture that is learned with the rest.

normal   $p(z) = N(z; 0, I)$
mixture  $p(z) = \sum_k w_k N(z; m_k, diag(s_k^2))$: it can take the shape of the aggregate
         posterior $E_x q(z | x)$, which is the best prior there is (Tomczak & Welling 2018)
"""

from __future__ import annotations

import abc
import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...prob.distributions import log_normals
from ._posterior import bounded


class Prior(Configured, nn.Module, abc.ABC):
    """p(z) over codes of `latent` units."""

    class Config(BaseConfig):
        """Of any prior."""

        tag = "prior/"

    standard: ClassVar[bool]
    """Whether it is N(0, I), to which the rate of a Gaussian is known in closed form."""

    @abc.abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """Terms of log p(z) for z (*S, latent), (*S, U): one a unit where units are independent,
        otherwise one in all."""

    @abc.abstractmethod
    def draw(self, n: int, generator: Generator | None) -> Tensor:
        """(n, latent)."""


class Normal(Prior):
    """N(0, I)."""

    class Config(Prior.Config):
        """Nothing to choose."""

        tag = "prior/normal"

    zero: Tensor
    standard = True

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(latent), persistent=False)

    def log_prob(self, z: Tensor) -> Tensor:
        return log_normals(z)

    def draw(self, n: int, generator: Generator | None) -> Tensor:
        return torch.randn(
            n, len(self.zero), generator=generator, dtype=self.zero.dtype, device=self.zero.device
        )


class Mixture(Prior):
    """sum_k w_k N(z; m_k, diag(s_k^2)); the means begin scattered within N(0, I)."""

    class Config(Prior.Config):
        tag = "prior/mixture"
        components: Annotated[int, Range(1)] = 32
        """Gaussians of the mixture."""

    standard = False

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        shape = (config.components, latent)
        self.logits = nn.Parameter(torch.zeros(config.components))
        self.means = nn.Parameter(math.sqrt(0.5) * torch.randn(shape))
        self.raw = nn.Parameter(torch.full(shape, math.log(0.5) / 2))

    def log_prob(self, z: Tensor) -> Tensor:
        log_scale = bounded(self.raw)  # (K, latent)
        gaps = (z[..., None, :] - self.means) * (-log_scale).exp()  # (*S, K, latent)
        each = (log_normals(gaps) - log_scale).sum(-1) + self.logits.log_softmax(0)
        return each.logsumexp(-1, keepdim=True)

    def draw(self, n: int, generator: Generator | None) -> Tensor:
        shares = self.logits.softmax(0)
        which = torch.multinomial(shares, n, True, generator=generator)
        noise = torch.randn(
            n, self.means.shape[1], generator=generator, dtype=shares.dtype, device=shares.device
        )
        return self.means[which] + bounded(self.raw)[which].exp() * noise
