r"""Inverse autoregressive flow: samples in one pass, density from entry to entry

The maps of maf read the other way round (Kingma et al. 2016): x_i depends on z_1..z_i alone, so
that all entries are drawn at once. A score finds z entry by entry, each hidden unit once; the
gradient of a score goes through the triangular Jacobian of that root.
"""

from __future__ import annotations

from ...core.errors import UsageError
from ...core.space import Space
from ...nn.autoregressive.masked_mlp import Masked
from ...prob.bijections.autoregressive import Autoregressive
from ...prob.bijections.base import Bijection, Inverse
from ._autoregressive import AutoregressiveFlow


class IAF(AutoregressiveFlow):
    """x = f_K(... f_1(z)) with x_i = h^{-1}(z_i; beta_i(z_<i, given)) in each f."""

    class Config(AutoregressiveFlow.Config):
        tag = "model/flow.iaf"

    def __init__(self, config: Config, space: Space) -> None:
        if config.net.dropout:
            raise UsageError(
                f"net.dropout={config.net.dropout} hides other units in each pass, "
                "but a score of iaf needs the same in all of them; use net.dropout=0"
            )
        super().__init__(config, space)

    def turned(self, layer: Autoregressive) -> Bijection:
        return Inverse(layer)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        # Each number of an integral over reals is a walk from entry to entry, and kinks ask for
        # many of them.
        return cls.Config(
            layers=2,
            bins=4,
            kind="affine" if space.kind == "real" else "spline",
            net=Masked.Config(width=16, depth=1),
        )
