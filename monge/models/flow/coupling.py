r"""Coupling flow: exact density and one-pass samples (NICE, RealNVP, neural splines)

Layers that move half of the entries as a network says that reads the other half, with a linear
map or a permutation and a scaling between them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch

from ...core.config import Range
from ...core.model import Suit
from ...core.space import Space
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection, Compose
from ...prob.bijections.coupling import Coupling as Layer
from ...prob.bijections.fixed import ActNorm
from ...prob.bijections.linear import Mix, Permutation
from ._base import Flow
from ._nets import Reader
from ._warps import Warping, held_back


class Coupling(Flow):
    """x = f_K(... f_1(z)) with (x^A, x^B) = (h(z^A; beta(z^B, given)), z^B) in each f.

    kind=additive is NICE (Dinh, Krueger & Bengio 2015), affine RealNVP (Dinh, Sohl-Dickstein &
    Bengio 2017), spline a neural spline flow (Durkan et al. 2019).
    """

    class Config(Flow.Config, Warping):
        layers: Annotated[int, Range(1)] = 8
        """Couplings; which half moves alternates."""
        mix: Literal["permute", "linear"] = "linear"
        """What stands between them: a random permutation, or a learned matrix."""
        net: MLP.Config = MLP.Config(width=128, residual=True)
        """Network from the entries that stay to the parameters of those that move."""

    config: Config

    def body(self, context: int) -> Bijection:
        parts: list[Bijection] = []
        for number in range(self.config.layers):
            parts += [self.layer(context, bool(number % 2)), *self.between()]
        return Compose(parts)

    def layer(self, context: int, flip: bool) -> Bijection:
        config, dims = self.config, self.space.dims
        warp, size = config.warp(), dims // 2
        stays, moves = (dims - size, size) if flip else (size, dims - size)
        net = Reader(config.net, stays, context, moves * warp.count)
        return Layer(net, warp, size, flip)

    def between(self) -> list[Bijection]:
        dims = self.space.dims
        mix = Mix(dims, rotate=False) if self.config.mix == "linear" else Permutation(
            torch.randperm(dims) if dims > 2 else torch.arange(dims))
        return [mix, ActNorm(dims)]

    @classmethod
    def refuses(cls, space: Space) -> str | None:
        if space.dims < 2:
            return ("coupling moves some entries as the others say, but an event has one entry "
                    "only; use maf, or mixture")
        return None

    @classmethod
    def suit(cls, space: Space) -> Suit:
        """Few rows: two affine couplings of a narrow network; otherwise splines."""
        few = space.rows < 2000
        wide = space.dims > 64
        net = MLP.Config(width=32 if few else 256 if wide else 128, residual=True)
        config = cls.Config(layers=4 if few else 8, kind="affine" if few else "spline", net=net,
                            mix="permute" if space.dims > 256 else "linear")
        return Suit(config, held_back(space))

    @classmethod
    def tiny(cls, space: Space) -> Config:
        return cls.Config(layers=2, bins=4, net=MLP.Config(width=16, depth=1))
