r"""Variational autoencoder (VAE): Gaussian codes, trained by the evidence lower bound (ELBO)

The encoder outputs the parameters of q(z | x): a factorised Gaussian, a Gaussian with a full
covariance, or an inverse autoregressive flow. With $z = \mu + \sigma \epsilon$ and
$\epsilon \sim N(0, I)$, $\log q(z | x) = \sum_j [\log N(\epsilon_j; 0, 1) - \log\sigma_j]$. If
q is Gaussian and the prior N(0, I), the KL term is analytic. Importance samples tighten the bound.
"""

from __future__ import annotations

import abc
import math
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...prob.distributions import normal_log_prob
from ._elbo import LatentVariableModel, importance_weighted_bound
from ._encoder_decoder import DenseEncoderDecoder
from ._posterior import FactorisedPosterior, Posterior, PosteriorSample, bound_log_scale


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
    """sum_k w_k N(z; m_k, diag(s_k^2)): it can fit the aggregate posterior E_x q(z | x), the prior
    that maximises the ELBO (Tomczak & Welling 2018). Means are initialised from N(0, I / 2)."""

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


class VAE(LatentVariableModel):
    """p(x | given) = ∫ p(x | z, given) p(z) dz, trained by its evidence lower bound.

    The prior is N(0, I) or a learned mixture (Kingma & Welling 2014; Rezende, Mohamed & Wierstra
    2014); beta=4 is a beta-VAE (Higgins et al. 2017).
    """

    family_priority = 1

    class Config(LatentVariableModel.Config):
        tag = "model/latent.vae"
        latent: Annotated[int, Range(1)] = 16
        """Dimension of the code z."""
        posterior: Posterior.Config = FactorisedPosterior.Config()
        """Family of q(z | x): factorised, full or iaf."""
        prior: Prior.Config = StandardNormalPrior.Config()
        """Prior p(z): normal, or mixture."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        posterior: Posterior = config.posterior.build(config.latent)
        super().__init__(config, space, posterior.width, config.latent, config.latent)
        self.posterior: Posterior = posterior
        self.prior: Prior = config.prior.build(config.latent)
        if config.estimator == "B" and not (
            self.prior.is_standard_normal and posterior.has_analytic_kl
        ):
            raise UsageError(
                "estimator=B needs an analytic KL term: posterior=factorised or posterior=full "
                "with prior=normal; use estimator=A"
            )

    def loss(self, batch: Batch) -> Losses:
        """Negative ELBO: reconstruction -E_q log p(x | z) plus beta KL(q(z | x) | p(z)), or the
        importance-weighted bound."""
        h, context = self.posterior_params(batch)
        noise = self.sample_noise(self.config.samples, h)
        code = self.sample_posterior(h, context, noise)  # z ~ q(z | x)
        log_p = self.log_given_code(batch, code.z, context)  # log p(x | z), (S, B)
        beta = self.kl_weight(batch.step)
        if self.config.importance_weighted:
            return {"bound": -importance_weighted_bound(log_p, beta * code.log_ratios.sum(-1))}
        return {"reconstruction": -log_p.mean(0), "kl": beta * self.kl_term(code)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ p(z), then x ~ p(x | z)."""
        context = self.context(given or {}, n)
        z = self.prior.sample(n, generator)  # z ~ p(z)
        return self.sample_given_code(z, context, generator)  # x ~ p(x | z)

    def sample_posterior(self, h: Tensor, context: Tensor, noise: Tensor) -> PosteriorSample:
        z, log_q = self.posterior.reparameterise(h, noise)
        log_p = self.prior.log_prob(z)
        joint = log_p.shape[-1] < log_q.shape[-1]  # units of a mixture prior are dependent
        ratios = (log_q.sum(-1, keepdim=True) if joint else log_q) - log_p
        kl = self.posterior_kl(h, noise, ratios) if self.prior.is_standard_normal else None
        return PosteriorSample(z, ratios, kl)

    def posterior_kl(self, h: Tensor, noise: Tensor, ratios: Tensor) -> Tensor | None:
        """The KL terms: analytic, or sampled with a control variate, (S or 1, B, latent)."""
        kl, variate = self.posterior.analytic_kl(h), self.posterior.control_variate(h, noise)
        if kl is not None:
            return kl[None]
        return None if variate is None else ratios + variate

    def sample_prior(self, n: int, context: Tensor, generator: Generator | None) -> Tensor:
        return self.prior.sample(n, generator)

    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        return self.prior.log_prob(z).sum(-1)

    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        return self.posterior.log_prob(self.posterior_params(batch)[0], z)

    def analytic_kl(self, batch: Batch) -> Tensor | None:
        if not self.prior.is_standard_normal:
            return None
        kl = self.posterior.analytic_kl(self.posterior_params(batch)[0])
        return None if kl is None else kl.sum(-1)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few_rows = 0 < space.rows < 10_000
        latent = 40 if space.dims > 256 else min(space.dims, 16)
        # Dropout would blur reals, whose scales could not fall below its noise.
        dropout = 0.1 if few_rows and space.kind in ("binary", "levels") else 0.0
        net = DenseEncoderDecoder.Config(
            width=512 if space.dims > 256 else 256, residual=True, dropout=dropout
        )
        train_config = TrainConfig(
            batch_size=64 if few_rows else 128, ema_decay=0.995 if few_rows else 0.9998
        )
        return Defaults(cls.Config(latent=latent, net=net), train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=min(2, space.dims), net=DenseEncoderDecoder.Config(width=16, depth=1)
        )
