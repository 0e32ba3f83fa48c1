r"""Priors p(z): N(0, I), or a learned mixture of Gaussians.

normal   $p(z) = N(z; 0, I)$
mixture  $p(z) = \sum_k w_k N(z; m_k, diag(s_k^2))$: it can fit the aggregate posterior
         $E_x q(z | x)$, the prior that maximises the ELBO (Tomczak & Welling 2018)
"""

from __future__ import annotations

import abc
import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor, nn

from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...prob.distributions import normal_log_prob
from ._posterior import bound_log_scale


class Prior(Configured, nn.Module, abc.ABC):
    """p(z) over codes of `latent` units."""

    class Config(BaseConfig):
        """Base of the configurations of priors."""

        tag = "prior/"

    is_standard_normal: ClassVar[bool]
    """Whether it is N(0, I), to which the KL divergence of a Gaussian is analytic."""

    @abc.abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """Terms of log p(z) for z (*S, latent), (*S, U): one per unit if units are independent,
        otherwise one in all."""

    @abc.abstractmethod
    def sample(self, n: int, generator: Generator | None) -> Tensor:
        """z ~ p(z), (n, latent)."""


class StandardNormalPrior(Prior):
    """N(0, I)."""

    class Config(Prior.Config):
        """No options."""

        tag = "prior/normal"

    zero: Tensor
    is_standard_normal = True

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(latent), persistent=False)

    def log_prob(self, z: Tensor) -> Tensor:
        return normal_log_prob(z)

    def sample(self, n: int, generator: Generator | None) -> Tensor:
        return torch.randn(
            n, len(self.zero), generator=generator, dtype=self.zero.dtype, device=self.zero.device
        )


class MixturePrior(Prior):
    """sum_k w_k N(z; m_k, diag(s_k^2)); means are initialised from N(0, I / 2)."""

    class Config(Prior.Config):
        tag = "prior/mixture"
        components: Annotated[int, Range(1)] = 32
        """Number of Gaussians."""

    is_standard_normal = False

    def __init__(self, config: Config, latent: int) -> None:
        super().__init__()
        shape = (config.components, latent)
        self.logits = nn.Parameter(torch.zeros(config.components))
        self.means = nn.Parameter(math.sqrt(0.5) * torch.randn(shape))
        self.raw = nn.Parameter(torch.full(shape, math.log(0.5) / 2))

    def log_prob(self, z: Tensor) -> Tensor:
        log_scale = bound_log_scale(self.raw)  # (K, latent)
        gaps = (z[..., None, :] - self.means) * (-log_scale).exp()  # (*S, K, latent)
        each = (normal_log_prob(gaps) - log_scale).sum(-1) + self.logits.log_softmax(0)
        return each.logsumexp(-1, keepdim=True)

    def sample(self, n: int, generator: Generator | None) -> Tensor:
        shares = self.logits.softmax(0)
        which = torch.multinomial(shares, n, True, generator=generator)
        noise = torch.randn(
            n, self.means.shape[1], generator=generator, dtype=shares.dtype, device=shares.device
        )
        return self.means[which] + bound_log_scale(self.raw)[which].exp() * noise
