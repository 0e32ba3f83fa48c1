r"""Markov hierarchical VAE (MHVAE): a chain of codes, each conditioned on its neighbour alone

$p(x, z_{1:T}) = p(z_T) \, p(x | z_1) \prod_{t=2}^T p(z_{t-1} | z_t)$ and
$q(z_{1:T} | x) = q(z_1 | x) \prod_{t=2}^T q(z_t | z_{t-1})$: q conditions
each level on the one below it, p on the one above it. Diffusion models are such chains with a
fixed q.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Losses
from ._elbo import importance_weighted_bound
from ._hierarchy import HierarchicalModel


class MHVAE(HierarchicalModel):
    """p(x | given) = ∫ p(x | z_1) p(z_1 | z_2) ... p(z_T) dz (Burda et al. 2016; Luo 2022)."""

    class Config(HierarchicalModel.Config):
        tag = "model/latent.mhvae"

    config: Config

    def loss(self, batch: Batch) -> Losses:
        """Negative ELBO: reconstruction -E_q log p(x | z) plus beta KL(q(z | x) | p(z)), or the
        importance-weighted bound."""
        h, context = self.encoder_outputs(batch)
        noise = self.sample_noise(self.config.samples, h)
        # z_1 ~ q(z_1 | x), then z_t ~ q(z_t | z_t-1)
        code = self.sample_posterior(h, context, noise)
        log_p = self.log_given_code(batch, code.z, context)  # log p(x | z_1), (S, B)
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
        """z_T ~ N(0, I), z_t ~ p(z_t | z_t+1) from the top down, then x ~ p(x | z_1)."""
        context = self.context(given or {}, n)
        z = self.sample_prior(n, context, generator)  # z_T ~ N(0, I), then z_t ~ p(z_t | z_t+1)
        return self.decode_samples(z, context, options, generator)  # x ~ p(x | z_1)

    @property
    def top_down(self) -> bool:
        return False

    def prior_parents(self, level: int) -> Sequence[int]:
        return [level + 1]

    def posterior_parents(self, level: int) -> Sequence[int]:
        return [level - 1] if level else []

    def posterior_reads_data(self, level: int) -> bool:
        return level == 0

    def decoder_levels(self) -> Sequence[int]:
        return [0]
