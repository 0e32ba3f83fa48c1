r"""Markov hierarchical variational autoencoder: a chain of codes, each seeing the next alone

$p(x, z_{1:T}) = p(z_T) \, p(x | z_1) \prod_{t=2}^T p(z_{t-1} | z_t)$ and
$q(z_{1:T} | x) = q(z_1 | x) \prod_{t=2}^T q(z_t | z_{t-1})$: going up, a level knows the one below
it; going down, the one above it. Diffusion models are such chains with a fixed q.
"""

from __future__ import annotations

from collections.abc import Sequence

from ._hierarchy import Hierarchy


class MHVAE(Hierarchy):
    """p(x | given) = ∫ p(x | z_1) p(z_1 | z_2) ... p(z_T) dz (Burda et al. 2016; Luo 2022)."""

    class Config(Hierarchy.Config):
        tag = "model/latent.mhvae"

    config: Config

    @property
    def downward(self) -> bool:
        return False

    def above(self, level: int) -> Sequence[int]:
        return [level + 1]

    def before(self, level: int) -> Sequence[int]:
        return [level - 1] if level else []

    def reads_row(self, level: int) -> bool:
        return level == 0

    def spoken_levels(self) -> Sequence[int]:
        return [0]
