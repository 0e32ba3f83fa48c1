r"""Hierarchical VAE (HVAE): levels of codes, each conditioned on all levels above it

$p(x, z_{1:T}) = p(z_T) \prod_{t=1}^{T-1} p(z_t | z_{>t}) \, p(x | z_{1:T})$. Inference is
top-down, $q(z_T | x) \prod_t q(z_t | z_{>t}, x)$, or bottom-up,
$q(z_1 | x) \prod_t q(z_t | z_{<t}, x)$, or a ladder: top-down with
$q(z_t | z_{>t}, x) \propto p(z_t | z_{>t}) \, N(z_t; \mu_t(x), \sigma_t^2(x))$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Losses
from ._elbo import importance_weighted_bound
from ._hierarchy import HierarchicalModel, LevelGaussian


class HVAE(HierarchicalModel):
    """p(x | given) = ∫ p(x | z_1..z_T) prod_t p(z_t | z_t+1..z_T) dz.

    With top-down inference (Kingma et al. 2016) or a ladder (Sønderby et al. 2016) the KL term of
    each level is analytic; with bottom-up inference (Rezende, Mohamed & Wierstra 2014) it is
    sampled.
    """

    class Config(HierarchicalModel.Config):
        tag = "model/latent.hvae"
        inference: Literal["top-down", "ladder", "bottom-up"] = "top-down"
        """Order in which q samples the levels; a ladder is top-down, and multiplies the prior of a
        level by a Gaussian of the data."""

    config: Config

    def loss(self, batch: Batch) -> Losses:
        """Negative ELBO: reconstruction -E_q log p(x | z) plus beta KL(q(z | x) | p(z)), or the
        importance-weighted bound."""
        h, context = self.encoder_outputs(batch)
        noise = self.sample_noise(self.config.samples, h)
        code = self.sample_posterior(h, context, noise)  # level by level, z_t ~ q(z_t | ., x)
        log_p = self.log_given_code(batch, code.z, context)  # log p(x | z_1..z_T), (S, B)
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
        """z_T ~ N(0, I), z_t ~ p(z_t | z_>t) from the top down, then x ~ p(x | z_1..z_T)."""
        context = self.context(given or {}, n)
        z = self.sample_prior(n, context, generator)  # z_T ~ N(0, I), then z_t ~ p(z_t | z_>t)
        return self.decode_samples(z, context, options, generator)  # x ~ p(x | z_1..z_T)

    @property
    def top_down(self) -> bool:
        return self.config.inference != "bottom-up"

    def prior_parents(self, level: int) -> Sequence[int]:
        return self.levels[level + 1 :]

    def posterior_parents(self, level: int) -> Sequence[int]:
        if self.config.inference == "ladder":
            return []  # the prior, by which q is multiplied, reads the levels above
        return self.prior_parents(level) if self.top_down else self.levels[:level]

    def posterior_reads_data(self, level: int) -> bool:
        return True

    def decoder_levels(self) -> Sequence[int]:
        return self.levels

    def with_prior(
        self, level: int, q: LevelGaussian, prior: LevelGaussian | None
    ) -> LevelGaussian:
        is_top = level == self.levels[-1]
        if self.config.inference != "ladder" or prior is None or is_top:
            return q
        return q.times(prior)  # N(z_t; mu_t(x), sigma_t^2(x)) p(z_t | z_>t), normalised
