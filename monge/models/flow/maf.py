r"""Masked autoregressive flow: density in one pass, samples from entry to entry

A product of Gaussian (or spline) conditionals, again and again in other orders. Drawing sorts
hidden units by the entries they need and computes each once.
"""

from __future__ import annotations

from ...prob.bijections.autoregressive import Autoregressive
from ...prob.bijections.base import Bijection
from ._autoregressive import AutoregressiveFlow


class MAF(AutoregressiveFlow):
    """x = f_K(... f_1(z)) with x_i = h(z_i; beta_i(x_<i, given)) in each f.

    With kind=affine each f is an autoregressive model whose conditionals are
    N(mu_i, e^{2 alpha_i}) (Papamakarios, Pavlakou & Murray 2017).
    """

    class Config(AutoregressiveFlow.Config):
        tag = "model/flow.maf"

    def turned(self, layer: Autoregressive) -> Bijection:
        return layer
