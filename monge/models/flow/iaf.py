r"""Inverse autoregressive flow (IAF): samples in one pass, density entry by entry

The inverses of the maps of maf (Kingma et al. 2016): x_i depends on z_1..z_i alone, so that all
entries are sampled at once. A likelihood finds z entry by entry, computing each hidden unit once;
its gradient solves the triangular Jacobian of that inverse.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Losses
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import MaskedMLP
from ...prob.bijections.autoregressive import AutoregressiveBijection
from ...prob.bijections.base import Bijection, Inverse
from ...prob.distributions import normal_log_prob_rows
from ._autoregressive import AutoregressiveFlow
from ._tables import SMALLEST_TABLE_NET


class IAF(AutoregressiveFlow):
    """x = f_K(... f_1(z)) with x_i = h^{-1}(z_i; beta_i(z_<i, given)) in each f."""

    class Config(AutoregressiveFlow.Config):
        tag = "model/flow.iaf"

    def __init__(self, config: Config, space: Space) -> None:
        if config.net.dropout:
            raise UsageError(
                f"expected no dropout, as a likelihood of iaf needs several passes with the same "
                f"units, found net.dropout={config.net.dropout}; use net.dropout=0"
            )
        super().__init__(config, space)

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
        return Inverse(layer)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        # Every point of an integral over reals is computed entry by entry, and kinks need many.
        return cls.Config(
            layers=2,
            bins=4,
            kind="affine" if space.kind == "real" else "spline",
            net=MaskedMLP.Config(width=16, depth=1),
            table_net=SMALLEST_TABLE_NET,
            optional_first=True,
        )
