r"""Residual maps $z = x + g(x)$ with $|g|_L < 1$, their inverse and their log-determinant.

A contraction has one fixed point, so that x is the limit of $x \leftarrow z - g(x)$ (Banach), and
$\log\det(I + J) = \sum_{k \ge 1} \frac{(-1)^{k+1}}{k} \mathrm{tr}\,J^k$ converges (Behrmann et al.
2019). With a random number N of terms, each divided by the probability that it is reached, and
$v^T J^k v$ in place of the trace, the sum has the right mean (Chen et al. 2019):

$E \sum_{k=1}^{N} \frac{(-1)^{k+1}}{k} \frac{v^T J^k v}{P(N \ge k)} = \log\det(I + J)$.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.model import is_exporting
from .base import Bijection, Mapped

SLOPE = 0.97
"""Largest spectral norm of a layer."""
CERTAIN_TERMS = 2
"""Terms of the power series that are always computed."""
STOP = 0.5
"""Probability that the series ends after each further term."""
MAX_PASSES = 2000
"""Most fixed-point iterations."""
SWISH_SLOPE = 1.1
"""Upper bound of the slope of t sigmoid(b t)."""


class ContractiveNet(nn.Module):
    """A network g(x, c) whose slope in x is below one: layers of spectral norm SLOPE at most and
    t sigmoid(b t) / 1.1 between them, which has second derivatives; 0 at initialisation."""

    def __init__(self, dims: int, context: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [dims, *[width] * depth, dims]
        self.layers = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))
        self.reads = nn.Linear(context, width, bias=False) if context and depth else None
        self.rates = nn.Parameter(torch.full((depth,), 0.5))
        nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]

    def weights(self) -> list[Tensor]:
        """The matrix of each layer, scaled to a spectral norm of SLOPE if it has a larger one."""
        found = []
        for layer in self.layers:
            weight = layer.weight
            norm = torch.linalg.matrix_norm(weight, 2)
            found.append(weight * (SLOPE / norm.clamp_min(SLOPE)))
        return found

    def forward(self, x: Tensor, context: Tensor | None, weights: Sequence[Tensor]) -> Tensor:
        for place, (layer, weight) in enumerate(zip(self.layers, weights, strict=True)):
            x = F.linear(x, weight, layer.bias)  # type: ignore[arg-type]
            if place == len(weights) - 1:
                return x
            if place == 0 and self.reads is not None and context is not None:
                x = x + self.reads(context)
            x = x * torch.sigmoid(F.softplus(self.rates[place]) * x) / SWISH_SLOPE
        return x

    def jacobian(self, x: Tensor, context: Tensor | None, weights: Sequence[Tensor]) -> Tensor:
        """dg/dx, (B, D, D): the product of those of the layers."""
        slope = torch.eye(x.shape[1]).to(x).expand(x.shape[0], -1, -1)
        for place, (layer, weight) in enumerate(zip(self.layers, weights, strict=True)):
            x, slope = F.linear(x, weight, layer.bias), weight @ slope  # type: ignore[arg-type]
            if place == len(weights) - 1:
                return slope
            if place == 0 and self.reads is not None and context is not None:
                x = x + self.reads(context)
            rate = F.softplus(self.rates[place])
            gate = torch.sigmoid(rate * x)
            own = gate * (1 + rate * x * (1 - gate)) / SWISH_SLOPE  # of t sigmoid(b t) / 1.1
            x, slope = x * gate / SWISH_SLOPE, own[..., None] * slope
        return slope


class ResidualBijection(Bijection):
    """z = x + g(x, context); x by fixed-point iteration."""

    def __init__(self, net: ContractiveNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        weights, x = self.net.weights(), z
        enough = 10 * torch.finfo(z.dtype).eps
        for _ in range(MAX_PASSES):
            last, x = x, z - self.net(x, context, weights)
            if float((x - last).detach().abs().max()) <= enough * max(
                1.0, float(z.detach().abs().max())
            ):
                break
        return x, -self.inverse(x, context)[1]

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        """With the exact log-determinant, one vector-Jacobian product for each entry."""
        if is_exporting():  # a program has no gradients
            weights = self.net.weights()
            matrix = self.net.jacobian(x, context, weights) + torch.eye(x.shape[1]).to(x)
            return x + self.net(x, context, weights), torch.linalg.slogdet(matrix)[1]
        keep = torch.is_grad_enabled()
        with torch.enable_grad():
            point, out = self.evaluate(x, context)
            rows = [
                torch.autograd.grad(out[:, i].sum(), point, retain_graph=True, create_graph=keep)[
                    0
                ]
                for i in range(x.shape[1])
            ]
            matrix = torch.stack(rows, 1) + torch.eye(x.shape[1]).to(x)  # (B, D, D)
            log_det = torch.linalg.slogdet(matrix)[1]
        z = x + out
        return (z, log_det) if keep else (z.detach(), log_det.detach())

    def inverse_only(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return x + self.net(x, context, self.net.weights())

    def estimated_inverse(
        self, x: Tensor, context: Tensor | None, probes: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """z, and unbiased estimates (B, K) of log |det dz/dx| with the probes (B, K, D), of which
        each has its number of terms, a sample of `series_length`."""
        keep = torch.is_grad_enabled()
        with torch.enable_grad():
            point, out = self.evaluate(x, context)
            found = []
            for v, count in zip(probes.unbind(1), counts, strict=True):
                w, total = v, torch.zeros_like(x[:, 0])
                for k in range(1, count + 1):
                    (w,) = torch.autograd.grad(out, point, w, retain_graph=True, create_graph=keep)
                    reached = (1 - STOP) ** max(k - CERTAIN_TERMS, 0)
                    total = total + (-1) ** (k + 1) / k / reached * (w * v).sum(1)
                found.append(total)
        z, estimates = x + out, torch.stack(found, 1)
        return (z, estimates) if keep else (z.detach(), estimates.detach())

    def evaluate(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """A copy of x that requires a gradient, and g at it."""
        point = x if x.requires_grad else x.detach().requires_grad_()
        return point, self.net(point, context, self.net.weights())


def series_length(uniform: float) -> int:
    """The number of terms of a series that ends with probability STOP after each of those beyond
    CERTAIN_TERMS, from a uniform number."""
    extra = 0
    while uniform < (1 - STOP) ** (extra + 1):
        extra += 1
    return CERTAIN_TERMS + extra
