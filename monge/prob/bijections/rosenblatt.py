r"""A mixture of Gaussians as a map of N(0, I): a flow can begin as one.

The law of an entry given those before it is itself a mixture, of weights
$\pi_k \propto w_k \prod_{j<i} N_k(x_j | x_{<j})$, and its distribution function is in closed form.
So is the triangular map that Rosenblatt (1952) made of such functions:

$z_i = \Phi^{-1}(F_i(x_i | x_{<i}))$, $F_i = \sum_k \pi_k(x_{<i}) \Phi(e_{ki})$, $e_k = A_k (x -
m_k)$, $A_k$ lower triangular, with $\log \partial z_i/\partial x_i = \log p(x_i | x_{<i}) - \log
N(z_i; 0, 1)$. The other way is a root for each entry in turn. Beyond a box each entry goes on with
slope 1, so that numbers of any size pass.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .base import Bijection, Compose, Mapped, total
from .mixture import fit_mixture

BOX = 10.0
"""Entries beyond this, in coordinates near one, are moved as a whole."""
HALVINGS = 48
"""Of the box, when a root is looked for; a Newton step follows."""
HALF_LOG = 0.5 * math.log(2 * math.pi)


class Rosenblatt(Bijection):
    """N(0, I) to a mixture of K Gaussians, which is fitted to training rows before the first step
    and learned on from there."""

    def __init__(self, dims: int, components: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(components))
        self.mean = nn.Parameter(torch.zeros(components, dims))
        self.lower = nn.Parameter(torch.zeros(components, dims, dims))
        self.log_scale = nn.Parameter(torch.zeros(components, dims))  # of the diagonals of A

    @torch.no_grad()
    def begin(self, x: Tensor, context: Tensor | None = None) -> None:
        log_weights, mean, cov = fit_mixture(x.double(), len(self.logits))
        a = torch.linalg.inv(torch.linalg.cholesky(cov))  # (K, D, D)
        self.logits.copy_(log_weights)
        self.mean.copy_(mean)
        self.lower.copy_(a.tril(-1))
        self.log_scale.copy_(a.diagonal(dim1=1, dim2=2).log())

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        held = x.clamp(-BOX, BOX)
        e = torch.einsum("kij,bkj->bki", self.matrix(), held[:, None] - self.mean)  # (B, K, D)
        log_p = self.log_scale - e.square() / 2 - HALF_LOG
        before = self.logits[:, None] + log_p.cumsum(2) - log_p  # of the entries before each
        z, log_slope = settled(before.log_softmax(1), e, log_p)
        inside = x == held
        return z + (x - held), total(torch.where(inside, log_slope, 0.0))

    def forward(self, z: Tensor, context: Tensor | None = None) -> Mapped:
        matrix = self.matrix()
        found: list[Tensor] = []
        slopes: list[Tensor] = []
        before = self.logits.expand(len(z), -1)  # (B, K)
        for i in range(z.shape[1]):
            known = torch.stack(found, 1).clamp(-BOX, BOX) if found else z[:, :0]
            past = ((known[:, None] - self.mean[:, :i]) * matrix[:, i, :i]).sum(2)  # (B, K)
            x, log_slope, log_p = self.root(i, past, before, z[:, i], matrix)
            found.append(x)
            slopes.append(log_slope)
            before = before + log_p
        return torch.stack(found, 1), -torch.stack(slopes, 1).sum(1)

    def root(self, i: int, past: Tensor, before: Tensor, z: Tensor, matrix: Tensor
             ) -> tuple[Tensor, Tensor, Tensor]:
        """x_i (B,), log dz_i/dx_i, and the log-density of each component there, (B, K)."""
        share, scale = before.log_softmax(1), self.log_scale[:, i]

        def at(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            e = past + matrix[:, i, i] * (x[:, None] - self.mean[:, i])
            log_p = scale - e.square() / 2 - HALF_LOG
            return *settled(share, e, log_p), log_p

        with torch.no_grad():
            low, high = torch.full_like(z, -BOX), torch.full_like(z, BOX)
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                below = at(middle)[0] < z
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            ends = [at(torch.full_like(z, side * BOX))[0] for side in (-1, 1)]
            inside = (z > ends[0]) & (z < ends[1])
            x = torch.where(inside, (low + high) / 2, torch.where(z <= ends[0], -BOX, BOX))
        reached, log_slope, log_p = at(x)
        rate = torch.where(inside, (-log_slope.detach()).exp(), 1.0)  # Newton, or a slope of 1
        return x + rate * (z - reached), torch.where(inside, log_slope, 0.0), log_p

    def matrix(self) -> Tensor:
        """A, (K, D, D)."""
        return self.lower.tril(-1) + torch.diag_embed(self.log_scale.exp())


class Started(Compose):
    """What is learned, around a mixture that alone takes anything from training rows before the
    first step: the rest begins as the identity."""

    def __init__(self, learned: Bijection, start: Rosenblatt) -> None:
        super().__init__([learned, start])

    def begin(self, x: Tensor, context: Tensor | None = None) -> None:
        self.each()[1].begin(x, context)


def settled(share: Tensor, e: Tensor, log_p: Tensor) -> Mapped:
    """z and log dz/dx of a mixture along axis 1: logarithms of shares, standardised distances and
    log-densities of the components."""
    under = (share + torch.special.log_ndtr(e)).logsumexp(1)
    over = (share + torch.special.log_ndtr(-e)).logsumexp(1)
    near = under < over  # the smaller tail is the one that is known well
    size = _Quantile.apply(torch.where(near, under, over))
    z = torch.where(near, size, -size)
    return z, (share + log_p).logsumexp(1) + z.square() / 2 + HALF_LOG


class _Quantile(torch.autograd.Function):
    """z <= 0 with log Phi(z) = log p, however small p is."""

    @staticmethod
    def forward(ctx: Any, log_p: Tensor) -> Tensor:
        far = (-2 * log_p.clamp(max=-5)).sqrt()
        z = torch.where(log_p > -5, torch.special.ndtri(log_p.exp()),
                        (far.log() + HALF_LOG) / far - far)
        for _ in range(4):
            found = torch.special.log_ndtr(z)
            z = z - (found - log_p) * (found + z.square() / 2 + HALF_LOG).exp()
        ctx.save_for_backward(log_p, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        log_p, z = ctx.saved_tensors
        return gradient * (log_p + z.square() / 2 + HALF_LOG).exp()
