r"""Masked autoregressive flow (MAF): density in one pass, samples entry by entry

Each layer is a product of Gaussian (or spline) conditionals, in alternating orders. Sampling sorts
hidden units by the entries they need and computes each once.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Losses
from ...prob.bijections.autoregressive import AutoregressiveBijection
from ...prob.bijections.base import Bijection
from ...prob.distributions import normal_log_prob_rows
from ._autoregressive import AutoregressiveFlow


class MAF(AutoregressiveFlow):
    """x = f_K(... f_1(z)) with x_i = h(z_i; beta_i(x_<i, given)) in each f.

    With kind=affine each f is an autoregressive model whose conditionals are
    N(mu_i, e^{2 alpha_i}) (Papamakarios, Pavlakou & Murray 2017).
    """

    class Config(AutoregressiveFlow.Config):
        tag = "model/flow.maf"

    def loss(self, batch: Batch) -> Losses:
        """-log p(y) = -(log N(z; 0, I) + log|det dz/dy|) at z = f^{-1}(y, c), y dequantised."""
        y, log_q = self.dequantise(batch, self.dequantisation_noise(batch))
        z, log_det = self.map.inverse(y, self.context(batch.given, len(y)))
        return {"nll": log_q - (normal_log_prob_rows(z) + log_det)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """z ~ N(0, temperature^2 I), then x = f(z, c)."""
        z = self.sample_latent(n, options, generator)
        return self.decode(z, given)

    def orient(self, layer: AutoregressiveBijection) -> Bijection:
        return layer
