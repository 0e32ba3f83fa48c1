r"""A mixture of Gaussians of few rows, by EM under a prior.

As in Fraley & Raftery (2007) each covariance is shrunk, with the weight of a few rows, to $S /
K^{2/D}$, with S that of all rows, so no component collapses onto a row. Mixtures of 1, 2, 4, ...
components, each with a weak and a strong prior, are combined by the weights that maximise the
likelihood of rows they were not fitted to (stacking, Smyth & Wolpert 1999).

The mixture is also a map of N(0, I), which can initialise a flow.

The distribution of an entry given those before it is itself a mixture, with weights $\pi_k \propto
w_k \prod_{j<i} N_k(x_j | x_{<j})$ and a distribution function in closed form. So the triangular
map of Rosenblatt (1952) has a closed form:

$z_i = \Phi^{-1}(F_i(x_i | x_{<i}))$, $F_i = \sum_k \pi_k(x_{<i}) \Phi(e_{ki})$, $e_k = A_k (x -
m_k)$, $A_k$ lower triangular, with $\log \partial z_i/\partial x_i = \log p(x_i | x_{<i}) - \log
N(z_i; 0, 1)$. The inverse solves for a root, entry by entry. Outside a box each entry
continues with slope 1, so the map is defined everywhere.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .base import Bijection, Compose, Mapped, sum_log_det

EM_STEPS = 30
"""Steps of EM."""
FOLDS = 4
"""Folds of cross-validation."""
MAX_ROWS = 2000
"""Most rows used, enough for an initialisation."""
UNUSED_LOG_WEIGHT = -30.0
"""Log-weight of unused components."""
MixtureParams = tuple[Tensor, Tensor, Tensor]
"""Logarithms of weights (K,), means (K, D) and covariances (K, D, D)."""


def fit_mixture(x: Tensor, most: int) -> MixtureParams:
    """A mixture of at most `most` components for rows x (N, D); unused ones have no weight."""
    x = x[torch.linspace(0, len(x) - 1, min(len(x), MAX_ROWS)).long()]
    options: list[tuple[int, float]] = []
    for count in (2**power for power in range(most.bit_length())):
        for rows in (x.shape[1] + 2.0, 1.0):
            if 3 * count <= len(x) and count + sum(other for other, _ in options) <= most:
                options.append((count, rows))
    options = options or [(1, x.shape[1] + 2.0)]
    weights = stacking_log_weights(
        torch.stack([cross_validated_log_prob(x, *option) for option in options], 1)
    )
    parts = [fit_em(x, *option) for option in options]
    mixed = [
        (log_weights + weight, mean, cov)
        for weight, (log_weights, mean, cov) in zip(weights, parts, strict=True)
    ]
    log_weights, mean, cov = (torch.cat(each) for each in zip(*mixed, strict=True))
    absent = most - len(mean)
    return (
        torch.cat(
            [
                log_weights.clamp_min(UNUSED_LOG_WEIGHT),
                log_weights.new_full((absent,), UNUSED_LOG_WEIGHT),
            ]
        ),
        torch.cat([mean, mean[:1].expand(absent, -1)]),
        torch.cat([cov, cov[:1].expand(absent, -1, -1)]),
    )


def stacking_log_weights(log_p: Tensor) -> Tensor:
    """Logarithms of the weights that make the mixture of columns (N, options) most likely."""
    log_weights = torch.zeros_like(log_p[0])
    for _ in range(EM_STEPS):
        log_weights = (log_weights + log_p).softmax(1).mean(0).log()
    return log_weights


def cross_validated_log_prob(x: Tensor, count: int, rows: float) -> Tensor:
    """The log-density of each row under the mixture fitted to the other folds, (N,)."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    fold, found = order % FOLDS, torch.empty_like(x[:, 0])
    for k in range(min(FOLDS, len(x))):
        found[fold == k] = joint_log_prob(
            x[fold == k], fit_em(x[fold != k], count, rows)
        ).logsumexp(1)
    return found


def fit_em(x: Tensor, count: int, rows: float) -> MixtureParams:
    """EM from distant centres; the prior counts as `rows` rows."""
    dims = x.shape[1]
    pooled = torch.cov(x.T, correction=0).reshape(dims, dims)
    prior = (pooled + 1e-4 * torch.eye(dims).to(x)) * count ** (-2 / dims)
    mixture = (
        x.new_full((count,), -math.log(count)),
        initial_centres(x, count),
        prior.expand(count, dims, dims),
    )
    for _ in range(EM_STEPS):
        share = joint_log_prob(x, mixture).softmax(1)  # (N, K)
        mass = share.sum(0)
        mean = (share.T @ x) / mass[:, None].clamp_min(1e-9)
        away = (x[:, None] - mean).transpose(0, 1)  # (K, N, D)
        scatter = (away * share.T[..., None]).mT @ away
        cov = (scatter + rows * prior) / (mass + rows)[:, None, None]
        mixture = (((mass + 1 / count) / (len(x) + 1)).log(), mean, cov)
    return mixture


def initial_centres(x: Tensor, count: int) -> Tensor:
    """The row nearest to the mean, then repeatedly the one of a hundred that is farthest from
    those chosen."""
    pool = x[torch.linspace(0, len(x) - 1, min(len(x), 100)).long()]
    chosen = [pool[(pool - x.mean(0)).square().sum(1).argmin()]]
    while len(chosen) < count:
        away = torch.cdist(pool, torch.stack(chosen)).amin(1)
        chosen.append(pool[away.argmax()])
    return torch.stack(chosen)


def joint_log_prob(x: Tensor, mixture: MixtureParams) -> Tensor:
    """log w_k N_k(x), (N, K)."""
    log_weights, mean, cov = mixture
    root = torch.linalg.cholesky(cov)
    away = (x[:, None] - mean).permute(1, 2, 0)  # (K, D, N)
    e = torch.linalg.solve_triangular(root, away, upper=False)
    volume = root.diagonal(dim1=1, dim2=2).log().sum(1)
    constant = 0.5 * x.shape[1] * math.log(2 * math.pi)
    return (log_weights - volume - constant) - e.square().sum(1).T / 2


BOX = 10.0
"""Half-width of the box outside which the slope is 1, for coordinates near one."""
BISECTION_STEPS = 48
"""Bisections of the box for a root; a Newton step follows."""
NEAR_LOG_P = -5.0
"""Logarithm of a probability above which torch's quantile is a good start."""
QUANTILE_STEPS = 4
"""Steps of Newton from there, or from the leading term of a smaller one, to rounding."""
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Rosenblatt(Bijection):
    """N(0, I) to a mixture of K Gaussians, which is fitted to training rows before the first step
    and then learned."""

    def __init__(self, dims: int, components: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(components))
        self.mean = nn.Parameter(torch.zeros(components, dims))
        self.lower = nn.Parameter(torch.zeros(components, dims, dims))
        self.log_scale = nn.Parameter(torch.zeros(components, dims))  # of the diagonals of A

    @torch.no_grad()
    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        log_weights, mean, cov = fit_mixture(x.double(), len(self.logits))
        a = torch.linalg.inv(torch.linalg.cholesky(cov))  # (K, D, D)
        self.logits.copy_(log_weights)
        self.mean.copy_(mean)
        self.lower.copy_(a.tril(-1))
        self.log_scale.copy_(a.diagonal(dim1=1, dim2=2).log())

    def inverse(self, x: Tensor, context: Tensor | None = None) -> Mapped:
        held = x.clamp(-BOX, BOX)
        e = torch.einsum("kij,bkj->bki", self.matrix(), held[:, None] - self.mean)  # (B, K, D)
        log_p = self.log_scale - e.square() / 2 - HALF_LOG_2PI
        before = (
            self.logits[:, None] + log_p.cumsum(2) - log_p
        )  # log-weights given the entries before each
        z, log_slope = normal_score(before.log_softmax(1), e, log_p)
        inside = x == held
        return z + (x - held), sum_log_det(torch.where(inside, log_slope, 0.0))

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

    def root(
        self, i: int, past: Tensor, before: Tensor, z: Tensor, matrix: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x_i (B,), log dz_i/dx_i, and the log-density of each component there, (B, K)."""
        share, scale = before.log_softmax(1), self.log_scale[:, i]

        def at(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            e = past + matrix[:, i, i] * (x[:, None] - self.mean[:, i])
            log_p = scale - e.square() / 2 - HALF_LOG_2PI
            return *normal_score(share, e, log_p), log_p

        with torch.no_grad():
            low, high = torch.full_like(z, -BOX), torch.full_like(z, BOX)
            for _ in range(BISECTION_STEPS):
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


class MixtureInitialised(Compose):
    """Learned maps around a mixture; only the mixture is fitted to training rows before the first
    step, the others start as the identity."""

    def __init__(self, learned: Bijection, start: Rosenblatt) -> None:
        super().__init__([learned, start])

    def initialise_from_data(self, x: Tensor, context: Tensor | None = None) -> None:
        self.each()[1].initialise_from_data(x, context)


def normal_score(share: Tensor, e: Tensor, log_p: Tensor) -> Mapped:
    """z and log dz/dx of a mixture along axis 1: logarithms of shares, standardised distances and
    log-densities of the components."""
    under = (share + torch.special.log_ndtr(e)).logsumexp(1)
    over = (share + torch.special.log_ndtr(-e)).logsumexp(1)
    near = under < over  # the smaller tail is the more precise one
    size = _Quantile.apply(torch.where(near, under, over))
    z = torch.where(near, size, -size)
    return z, (share + log_p).logsumexp(1) + z.square() / 2 + HALF_LOG_2PI


class _Quantile(torch.autograd.Function):
    """z <= 0 with log Phi(z) = log p, also for tiny p."""

    @staticmethod
    def forward(ctx: Any, log_p: Tensor) -> Tensor:
        z = torch.where(log_p > NEAR_LOG_P, torch.special.ndtri(log_p.exp()), -(-2 * log_p).sqrt())
        for _ in range(QUANTILE_STEPS):  # of Newton, from below, where the function is concave
            found = torch.special.log_ndtr(z)
            z = z - (found - log_p) * (found + z.square() / 2 + HALF_LOG_2PI).exp()
        ctx.save_for_backward(log_p, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        log_p, z = ctx.saved_tensors
        return gradient * (log_p + z.square() / 2 + HALF_LOG_2PI).exp()
