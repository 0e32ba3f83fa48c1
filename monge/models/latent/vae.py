r"""Variational autoencoder (VAE): Gaussian codes, trained by the evidence lower bound (ELBO)

The encoder outputs the parameters of q(z | x): a factorised Gaussian, a Gaussian with a full
covariance, or an inverse autoregressive flow. With $z = \mu + \sigma \epsilon$ and
$\epsilon \sim N(0, I)$, $\log q(z | x) = \sum_j [\log N(\epsilon_j; 0, 1) - \log\sigma_j]$. If
q is Gaussian and the prior N(0, I), the KL term is analytic. Importance samples tighten the bound.
"""

from __future__ import annotations

import abc
import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

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
from ._self_masking import SelfMasking, value_space


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

    With missing_mechanism=self a real number is present with probability sigmoid(a + b x), and the
    values of empty cells are integrated out (not-MIWAE, Ipsen et al. 2021). An empty cell that is
    to be completed is then sampled given that it is empty.
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
        missing_mechanism: Literal["independent", "self"] = "independent"
        """Why a cell of a table is empty. independent: given the code, its value does not matter;
        self: a real number hides itself by its own value (not-MIWAE)."""

    config: Config
    masking: SelfMasking | None

    def __init__(self, config: Config, space: Space) -> None:
        posterior: Posterior = config.posterior.build(config.latent)
        super().__init__(config, space, posterior.width, config.latent, config.latent)
        self.masking = None
        if config.missing_mechanism == "self":
            self.masking = SelfMasking(space, self.head, config.components)
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
        h, context = self.encoder_outputs(batch)
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
        return self.decode_samples(z, context, options, generator)  # x ~ p(x | z)

    # Cells that hide themselves

    @classmethod
    def value_space(cls, config: BaseConfig, space: Space) -> Space:
        assert isinstance(config, VAE.Config), "expected the config of a VAE"
        return value_space(space) if config.missing_mechanism == "self" else space

    def initialise_from_data(self, batch: Batch) -> None:
        if self.masking is None:
            return super().initialise_from_data(batch)
        self.masking.fit(batch.x, batch.observed_mask)
        super().initialise_from_data(self.blind(batch))

    def blind(self, batch: Batch) -> Batch:
        """The rows with cells that hid themselves as unknown values."""
        assert self.masking is not None, "only for missing_mechanism=self"
        empty = self.masking.is_empty(batch.x)
        x = batch.x.masked_fill(empty, 0.0)
        return replace(batch, x=x, observed=batch.observed_mask & ~empty)

    def log_given_params(self, batch: Batch, params: Tensor, present: bool) -> Tensor:
        if self.masking is None:
            return super().log_given_params(batch, params, present)
        values = super().log_given_params(self.blind(batch), params, present)
        x = batch.x.to(params.dtype)
        return values + self.masking.log_flags(params, x, ~batch.observed_mask, present)

    def sample_given_code(
        self, z: Tensor, context: Tensor, generator: Generator | None, present: bool = False
    ) -> Tensor:
        x = super().sample_given_code(z, context, generator, present)
        if self.masking is None:
            return x
        if not present:
            return self.masking.hide(x, generator)
        params = self.params(z, context)
        x[:, self.masking.own] = self.masking.sample_values(params, 1.0, generator)
        return x

    def known_cells(self, batch: Batch) -> Batch:
        """A cell that is asked for and holds nothing is empty; its value is latent."""
        if self.masking is None:
            return batch
        return replace(batch, observed=batch.observed_mask | self.masking.is_empty(batch.x))

    def fill_empty(
        self, question: Batch, rows: Batch, z: Tensor, context: Tensor, generator: Generator | None
    ) -> Tensor:
        if self.masking is None:
            return rows.x
        asked = self.masking.is_empty(question.x) & ~question.observed_mask
        x, params = rows.x.clone(), self.params(z, context)
        x[:, self.masking.own] = self.masking.sample_values(params, -1.0, generator).to(x)
        return torch.where(asked, x, rows.x)

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
        return self.posterior.log_prob(self.encoder_outputs(batch)[0], z)

    def analytic_kl(self, batch: Batch) -> Tensor | None:
        if not self.prior.is_standard_normal:
            return None
        kl = self.posterior.analytic_kl(self.encoder_outputs(batch)[0])
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
