r"""Hierarchical variational autoencoder: levels of codes, each of which may see all above it

$p(x, z_{1:T}) = p(z_T) \prod_{t=1}^{T-1} p(z_t | z_{>t}) \, p(x | z_{1:T})$. Inference goes from
the top down, $q(z_T | x) \prod_t q(z_t | z_{>t}, x)$, or from the bottom up,
$q(z_1 | x) \prod_t q(z_t | z_{<t}, x)$.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ._hierarchy import Hierarchy


class HVAE(Hierarchy):
    """p(x | given) = ∫ p(x | z_1..z_T) prod_t p(z_t | z_t+1..z_T) dz.

    From the top down (Sonderby et al. 2016; Kingma et al. 2016) the rate of each level is a
    divergence in closed form; from the bottom up (Rezende, Mohamed & Wierstra 2014) it is drawn.
    """

    class Config(Hierarchy.Config):
        tag = "model/latent.hvae"
        inference: Literal["top-down", "bottom-up"] = "top-down"
        """The order in which q draws the levels."""

    config: Config

    @property
    def downward(self) -> bool:
        return self.config.inference == "top-down"

    def above(self, level: int) -> Sequence[int]:
        return self.levels[level + 1 :]

    def before(self, level: int) -> Sequence[int]:
        return self.above(level) if self.downward else self.levels[:level]

    def reads_row(self, level: int) -> bool:
        return True

    def spoken_levels(self) -> Sequence[int]:
        return self.levels
