r"""Coupling flow: exact density and one-pass samples (NICE, RealNVP, neural splines)

Layers that move half of the entries as a network says that reads the other half, with a linear
map or a permutation and a scaling between them.
"""

from __future__ import annotations

from ...core.model import Defaults
from ...core.space import Space
from ...nn.mlp import MLP
from ...prob.bijections.base import Bijection
from ._base import Flow
from ._completion import CompletableFlow
from ._coupling import CouplingStackConfig, default_components, small_data_recipe, coupling_stack


class Coupling(CompletableFlow):
    """x = f_K(... f_1(z)) with (x^A, x^B) = (h(z^A; beta(z^B, given)), z^B) in each f.

    kind=additive is NICE (Dinh, Krueger & Bengio 2015), affine RealNVP (Dinh, Sohl-Dickstein &
    Bengio 2017), spline a neural spline flow (Durkan et al. 2019).
    """

    family_priority = 1
    begins = 8  # how many tell in what directions entries vary

    class Config(Flow.Config, CouplingStackConfig):
        tag = "model/flow.coupling"

    config: Config

    def body(self, context: int) -> Bijection:
        dims = self.space.dims
        return self.config.started(coupling_stack(self.config, dims, context), dims)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if space.dims < 2:
            return (
                "coupling moves some entries as the others say, but an event has one entry "
                "only; use maf, or mixture"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        """Few rows: affine couplings around a mixture of Gaussians, or of levels small splines;
        otherwise splines, fewer and of fewer pieces for many entries. In a plane, where edges are
        what is hard, entries take turns unmixed and networks bend sharply."""
        few, dims = space.rows < 2000, space.dims
        if few and space.kind in ("binary", "levels"):
            net = MLP.Config(width=64, residual=True, dropout=0.2)
            return Defaults(cls.Config(layers=4, net=net), small_data_recipe(space))
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
        )
        return Defaults(config, small_data_recipe(space))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(layers=2, bins=4, net=MLP.Config(width=16, depth=1))
