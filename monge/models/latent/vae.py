r"""Variational autoencoder (VAE): Gaussian codes, trained by the evidence lower bound (ELBO)

The encoder outputs the parameters of q(z | x): a factorised Gaussian, a Gaussian with a full
covariance, or an inverse autoregressive flow. With $z = \mu + \sigma \epsilon$ and
$\epsilon \sim N(0, I)$, $\log q(z | x) = \sum_j [\log N(\epsilon_j; 0, 1) - \log\sigma_j]$. If
q is Gaussian and the prior N(0, I), the KL term is analytic. Importance samples tighten the bound.

With total_correlation=w the loss has w times $KL(q(z) \| \prod_d q(z_d))$ besides, of the codes of
all rows, so that units become independent: beta-TCVAE with beta = 1 + w (Chen et al. 2018), or
FactorVAE with tc_estimator=discriminator (Kim & Mnih 2018).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Configured, Range, title_of
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Update
from ...core.space import Space
from ...core.train_config import OptimiserConfig, TrainConfig
from ...nn.mlp import MLP
from ...prob.distributions import normal_log_prob
from ._elbo import LatentVariableModel, importance_weighted_bound
from ._encoder_decoder import DenseEncoderDecoder
from ._posterior import (
    FactorisedPosterior,
    IAFPosterior,
    Posterior,
    PosteriorSample,
    bound_log_scale,
)
from ._self_masking import SelfMasking, value_space
from ._total_correlation import discriminator_loss, log_ratios_in_batch, permute_units

MAX_DENSITIES = 1 << 22
"""Densities of units of codes that are computed at once."""


@dataclass(frozen=True)
class EncodedInputs:
    """q(z | u) of a model at inputs u (K, width) of its encoder: features of a row, then encoded
    conditions. The model is no part of a prior that reads it."""

    model: VAE

    @property
    def width(self) -> int:
        return self.model.features.width + self.model.conditions.width

    def outputs(self, u: Tensor) -> Tensor:
        """The encoder's outputs, (K, H)."""
        own, model = self.model.features.width, self.model
        return model.nets.encode(u[:, :own], u[:, own:])

    def log_prob(self, u: Tensor, z: Tensor) -> Tensor:
        """log q(z | u_k) of codes z (*S, latent) at every input, (*S, K)."""
        h, count = self.outputs(u), len(u)
        block = max(MAX_DENSITIES // (count * z.shape[-1]), 1)
        parts = z.reshape(-1, 1, z.shape[-1]).split(block)
        each = [self.model.posterior.log_prob(h, part.expand(-1, count, -1)) for part in parts]
        return torch.cat(each).reshape(*z.shape[:-1], count)

    def sample(self, u: Tensor, noise: Tensor) -> Tensor:
        """z ~ q(z | u_k) from standard normal noise (K, latent)."""
        return self.model.posterior.reparameterise(self.outputs(u), noise[None])[0][0]


class Prior(Configured, nn.Module, abc.ABC):
    """p(z) over codes of `latent` units; `inputs` is what the encoder says of inputs."""

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

    def initialise_from_inputs(self, inputs: Tensor) -> None:
        """Data-dependent initialisation from inputs (B, width) of the encoder."""


class StandardNormalPrior(Prior):
    """N(0, I)."""

    class Config(Prior.Config):
        """No options."""

        tag = "prior/normal"

    zero: Tensor
    is_standard_normal = True

    def __init__(self, config: Config, latent: int, inputs: EncodedInputs) -> None:
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

    def __init__(self, config: Config, latent: int, inputs: EncodedInputs) -> None:
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


class VampPrior(Prior):
    """1/K sum_k q(z | u_k): the mean of the posteriors of K learned pseudo-inputs u_k (Tomczak &
    Welling 2018), which are inputs of the encoder and start as random training rows. The prior
    that maximises the ELBO is the mean over all rows."""

    class Config(Prior.Config):
        tag = "prior/vamp"
        components: Annotated[int, Range(1)] = 100
        """Number of pseudo-inputs."""

    is_standard_normal = False

    def __init__(self, config: Config, latent: int, inputs: EncodedInputs) -> None:
        super().__init__()
        self.latent, self.inputs = latent, inputs
        self.pseudo_inputs = nn.Parameter(torch.randn(config.components, inputs.width))

    @torch.no_grad()
    def initialise_from_inputs(self, inputs: Tensor) -> None:
        """Random rows, moved a little, so that those that are equal become different."""
        count = len(self.pseudo_inputs)
        order = torch.randperm(len(inputs), device=inputs.device)
        rows = inputs[order[torch.arange(count, device=inputs.device) % len(inputs)]]
        self.pseudo_inputs.copy_(rows + PSEUDO_INPUT_NOISE * torch.randn_like(rows))

    def log_prob(self, z: Tensor) -> Tensor:
        each = self.inputs.log_prob(self.pseudo_inputs, z)  # (*S, K)
        return each.logsumexp(-1, keepdim=True) - math.log(each.shape[-1])

    def sample(self, n: int, generator: Generator | None) -> Tensor:
        u = self.pseudo_inputs
        which = torch.randint(len(u), (n,), generator=generator, device=u.device)
        noise = torch.randn(n, self.latent, generator=generator, dtype=u.dtype, device=u.device)
        return self.inputs.sample(u[which], noise)


PSEUDO_INPUT_NOISE = 0.01
"""Standard deviation of what distinguishes pseudo-inputs from the rows that they start at."""


class VAE(LatentVariableModel):
    """p(x | given) = ∫ p(x | z, given) p(z) dz, trained by its evidence lower bound.

    The prior is N(0, I) (Kingma & Welling 2014; Rezende, Mohamed & Wierstra 2014), a learned
    mixture, or the mean of the posteriors of learned pseudo-inputs (VampPrior, Tomczak & Welling
    2018); beta=4 is a beta-VAE (Higgins et al. 2017).

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
        """Prior p(z): normal, mixture, or vamp."""
        total_correlation: Annotated[float, Range(0)] = 0.0
        """Weight of the total correlation of the codes, which favours disentangled ones
        (beta-TCVAE, FactorVAE); likelihoods are those of the ELBO."""
        tc_estimator: Literal["minibatch", "discriminator"] = "minibatch"
        """How the total correlation is estimated: from the posteriors of the batch, or by a
        discriminator that is trained beside (FactorVAE)."""
        discriminator: MLP.Config = MLP.Config(width=256, depth=3, activation="leaky")
        """Network of tc_estimator=discriminator."""
        missing_mechanism: Literal["independent", "self"] = "independent"
        """Why a cell of a table is empty. independent: given the code, its value does not matter;
        self: a real number hides itself by its own value (not-MIWAE)."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.total_correlation and self.importance_weighted:
                raise UsageError(
                    f"total_correlation={self.total_correlation:g} adds to the terms of the ELBO, "
                    "and the bound of importance_weighted=true has none; use one of them"
                )
            if isinstance(self.prior, VampPrior.Config) and isinstance(
                self.posterior, IAFPosterior.Config
            ):
                raise UsageError(
                    "prior=vamp needs the posterior of every pseudo-input at every code, which "
                    "posterior=iaf inverts unit by unit; use posterior=factorised or full"
                )
            factorised = isinstance(self.posterior, FactorisedPosterior.Config)
            minibatch = self.tc_estimator == "minibatch"
            if self.total_correlation and minibatch and not factorised:
                raise UsageError(
                    "tc_estimator=minibatch needs the density of each unit, posterior=factorised, "
                    f"found {title_of(type(self.posterior))}; use tc_estimator=discriminator"
                )

    config: Config
    masking: SelfMasking | None

    def __init__(self, config: Config, space: Space) -> None:
        posterior: Posterior = config.posterior.build(config.latent)
        super().__init__(config, space, posterior.width, config.latent, config.latent)
        self.masking = None
        if config.missing_mechanism == "self":
            self.masking = SelfMasking(space, self.head, config.components)
        self.posterior: Posterior = posterior
        self.prior: Prior = config.prior.build(config.latent, EncodedInputs(self))
        self.discriminator: MLP | None = None
        if config.total_correlation and config.tc_estimator == "discriminator":
            self.discriminator = config.discriminator.build(config.latent, 1)
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
        losses = {"reconstruction": -log_p.mean(0), "kl": beta * self.kl_term(code)}
        if weight := self.config.total_correlation:
            losses["total_correlation"] = weight * self.code_log_ratios(h, code.z).mean(0)
        return losses

    def code_log_ratios(self, h: Tensor, z: Tensor) -> Tensor:
        """Estimates of log q(z) / prod_d q(z_d) over all rows at codes z (S, B, latent), (S, B):
        their mean is the total correlation."""
        if self.discriminator is not None:
            return self.discriminator(z)[..., 0]
        assert isinstance(self.posterior, FactorisedPosterior), "tc_estimator=minibatch needs it"
        return log_ratios_in_batch(z, *self.posterior.split(h), self.space.rows)

    def loss_of_discriminator(self, batch: Batch) -> Losses:
        """Codes of the first half of the rows against permuted codes of the second."""
        assert self.discriminator is not None, "only for tc_estimator=discriminator"
        with torch.no_grad():
            h, context = self.encoder_outputs(batch)
            codes = self.sample_posterior(h, context, self.sample_noise(1, h)).z[0]
        one, two = codes.tensor_split(2)
        logits = (self.discriminator(z)[:, 0] for z in (one, permute_units(two)))
        return {"discriminator": discriminator_loss(*logits)}

    def updates(self) -> list[Update]:
        if self.discriminator is None:
            return list(super().updates())
        other = list(self.discriminator.parameters())
        moved = {id(param) for param in other}
        own = [p for p in self.parameters() if p.requires_grad and id(p) not in moved]
        return [
            Update("model", self.loss, own),
            Update("discriminator", self.loss_of_discriminator, other, batches=2),
        ]

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
        own = torch.cat([self.features(batch), self.context(batch.given, len(batch))], 1)
        self.prior.initialise_from_inputs(own)
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
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """A discriminator learns with the rate and the moments of Kim & Mnih."""
        proposed = cls.defaults(space)
        if chosen.get("tc_estimator") != "discriminator":
            return proposed
        rates = {"discriminator": OptimiserConfig(lr=1e-4, betas=(0.5, 0.9))}
        return replace(proposed, train=replace(proposed.train, updates=rates))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=min(2, space.dims), net=DenseEncoderDecoder.Config(width=16, depth=1)
        )
