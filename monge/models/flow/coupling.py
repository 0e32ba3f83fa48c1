r"""Coupling flow: exact density and one-pass samples (NICE, RealNVP, neural splines)

Each layer transforms half of the entries with parameters that a network computes from the other
half; a linear map or a permutation and a scaling stand between layers.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection
from ...prob.distributions import normal_log_prob_rows
from ._base import Flow
from ._completion import CompletableFlow
from ._coupling import (
    CouplingStackConfig,
    coupling_stack,
    default_components,
    small_data_train_config,
)
from ._tables import SMALLEST_TABLE_NET, TableConfig, default_table_net


class CouplingFlow(CompletableFlow):
    """x = f_K(... f_1(z)) with (x^A, x^B) = (h(z^A; beta(z^B, given)), z^B) in each f.

    kind=additive is NICE (Dinh, Krueger & Bengio 2015), affine RealNVP (Dinh, Sohl-Dickstein &
    Bengio 2017), spline a neural spline flow (Durkan et al. 2019).
    """

    family_priority = 1
    min_init_rows = 8  # for the directions in which entries vary

    class Config(Flow.Config, CouplingStackConfig, TableConfig):
        tag = "model/flow.coupling"

    config: Config

    def build_layers(self, context: int) -> Bijection:
        dims = self.space.dims
        return self.config.with_mixture(coupling_stack(self.config, dims, context), dims)

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

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if space.dims < 2:
            return (
                "expected events of two entries or more, which a coupling splits, found one; "
                "use maf, or mixture"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Few rows: affine couplings around a mixture of Gaussians, or small splines for levels;
        otherwise splines, fewer and with fewer bins for many entries. In two dimensions, where
        sharp edges are hard, entries alternate unmixed and networks use ReLU."""
        few, dims = space.rows < 2000, space.dims
        if few and space.kind in ("binary", "levels"):
            net = MLP.Config(width=64, residual=True, dropout=0.2)
            return Defaults(cls.Config(layers=4, net=net), small_data_train_config(space))
        plane, wide = dims == 2 and not few, dims > 256
        net = MLP.Config(
            width=32 if few else 256 if dims > 64 else 128,
            residual=True,
            activation="relu" if plane else "silu",
        )
        config = cls.Config(
            layers=2 if few else 6 if plane else 4 if wide else 8,
            kind="affine" if few else "spline",
            bins=16 if plane else 4 if wide else 8,
            reach=3.0 if plane else 5.0,
            net=net,
            mix="permute" if plane or dims > 1024 else "linear",
            components=default_components(space),
            table_net=default_table_net(space),
            optional_first=True,
        )
        return Defaults(config, small_data_train_config(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            layers=2,
            bins=4,
            net=MLP.Config(width=16, depth=1),
            table_net=SMALLEST_TABLE_NET,
            optional_first=True,
        )
