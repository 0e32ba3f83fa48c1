r"""Variational autoencoder: Gaussian codes, a bound that importance samples tighten

The encoder says the parameters of q(z | x), which may be a factorised Gaussian, one with a full
covariance, or an inverse autoregressive flow; with $z = \mu + \sigma \epsilon$ and
$\epsilon \sim N(0, I)$, $\log q(z | x) = \sum_j [\log N(\epsilon_j; 0, 1) - \log\sigma_j]$. Where
q is Gaussian and the prior N(0, I), the rate is known in closed form.
"""

from __future__ import annotations

from typing import Annotated

from torch import Generator, Tensor

from ...core.batch import Batch
from ...core.config import Range
from ...core.errors import UsageError
from ...core.model import Defaults
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._elbo import Variational
from ._encoder_decoder import Dense
from ._posterior import Code, Factorised, Posterior
from ._prior import Normal, Prior


class VAE(Variational):
    """p(x | given) = ∫ p(x | z, given) p(z) dz, trained by its evidence lower bound.

    The prior is N(0, I) or a learned mixture (Kingma & Welling 2014; Rezende, Mohamed & Wierstra
    2014); beta-VAE is beta=4.
    """

    family_priority = 1

    class Config(Variational.Config):
        tag = "model/latent.vae"
        latent: Annotated[int, Range(1)] = 16
        """Dimension of the code z."""
        posterior: Posterior.Config = Factorised.Config()
        """Family of q(z | x): factorised, full or iaf."""
        prior: Prior.Config = Normal.Config()
        """Law of codes: normal, or mixture."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        posterior: Posterior = config.posterior.build(config.latent)
        super().__init__(config, space, posterior.width, config.latent, config.latent)
        self.posterior: Posterior = posterior
        self.prior: Prior = config.prior.build(config.latent)
        if config.estimator == "B" and not (self.prior.standard and posterior.closed):
            raise UsageError(
                "estimator=B needs a rate in closed form, which only a factorised or "
                "full posterior has against prior=normal; take estimator=A"
            )

    def code(self, h: Tensor, context: Tensor, noise: Tensor) -> Code:
        z, log_q = self.posterior.draw(h, noise)
        log_p = self.prior.log_prob(z)
        together = log_p.shape[-1] < log_q.shape[-1]
        ratios = (log_q.sum(-1, keepdim=True) if together else log_q) - log_p
        return Code(z, ratios, self.rates(h, noise, ratios) if self.prior.standard else None)

    def rates(self, h: Tensor, noise: Tensor, ratios: Tensor) -> Tensor | None:
        """The rates in closed form, or as they were drawn with less noise, (S or 1, B, latent)."""
        known, steady = self.posterior.rates(h), self.posterior.steady(h, noise)
        if known is not None:
            return known[None]
        return None if steady is None else ratios + steady

    def prior_draw(self, n: int, context: Tensor, generator: Generator | None) -> Tensor:
        return self.prior.draw(n, generator)

    def log_prior(self, batch: Batch, z: Tensor) -> Tensor:
        return self.prior.log_prob(z).sum(-1)

    def log_posterior(self, batch: Batch, z: Tensor) -> Tensor:
        return self.posterior.log_prob(self.summary(batch)[0], z)

    def rate(self, batch: Batch) -> Tensor | None:
        rates = self.posterior.rates(self.summary(batch)[0]) if self.prior.standard else None
        return None if rates is None else rates.sum(-1)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few = 0 < space.rows < 10_000
        latent = 40 if space.dims > 256 else min(space.dims, 16)
        # Hidden units left out at random would blur reals, whose scales could not fall below that.
        dropout = 0.1 if few and space.kind in ("binary", "levels") else 0.0
        net = Dense.Config(width=512 if space.dims > 256 else 256, residual=True, dropout=dropout)
        recipe = TrainConfig(batch_size=64 if few else 128, ema_decay=0.995 if few else 0.9998)
        return Defaults(cls.Config(latent=latent, net=net), recipe)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(latent=min(2, space.dims), net=Dense.Config(width=16, depth=1))
