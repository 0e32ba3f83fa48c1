r"""Alternating projections of a plan, barycentres and unbalanced transport, on full matrices.

The entropic plan is the projection $\arg\min_{\pi \in \Pi(p, q)} \mathrm{KL}(\pi \| K)$ of the
Gibbs kernel $K = e^{-C/\epsilon}$. Projecting on one marginal at a time (Bregman 1967; Benamou et
al. 2015),

$\pi \leftarrow \mathrm{diag}(p / \pi 1)\, \pi$, then $\pi\, \mathrm{diag}(q / \pi^T 1)$,

gives the iterates of Sinkhorn's algorithm. At the solution $\log \pi / K = f_i + g_j$
(stationarity) and both marginals hold. For a kernel with zeros a positive scaling exists iff some
plan is positive exactly where K is, and the iteration still converges iff some plan is zero where
K is (Rothblum & Schneider 1989).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...core.errors import DataError

Existence = Literal["scaling", "limit", "none"]
"""Whether diag(u) K diag(v) has the marginals for some u, v > 0, in the limit, or not at all."""
ZERO = 1e-9
"""Smallest share of the mean entry that a linear program calls positive."""


@dataclass(frozen=True)
class Projection:
    """A plan after a projection on one marginal, with the L1 errors of both."""

    plan: Tensor  # (n, m)
    row_error: float
    column_error: float


def alternating_projections(kernel: Tensor, p: Tensor, q: Tensor) -> Iterator[Projection]:
    """Endless projections of a kernel (n, m) on the row sums p and the column sums q in turn; the
    first value is the normalised kernel."""
    if bool((kernel < 0).any()) or not bool((kernel > 0).any()):
        raise DataError(
            "expected a kernel without negative entries and with a positive one, found smallest "
            f"{kernel.min().item():.3g} and largest {kernel.max().item():.3g}; fix the kernel"
        )
    plan, rows = kernel / kernel.sum(), True
    while True:
        yield Projection(plan, l1(plan.sum(1), p), l1(plan.sum(0), q))
        sums = plan.sum(1 if rows else 0)
        factor = torch.where(sums > 0, (p if rows else q) / sums, 0.0)
        plan = factor[:, None] * plan if rows else plan * factor
        rows = not rows


def l1(found: Tensor, due: Tensor) -> float:
    return float((found - due).abs().sum())


def scaling_exists(kernel: Tensor, p: Tensor, q: Tensor) -> Existence:
    """By the linear program that raises the smallest entry of a plan on the support of K."""
    from scipy.optimize import linprog  # slow to import, and only this check needs it
    from scipy.sparse import coo_array

    rows, columns = (kernel > 0).nonzero(as_tuple=True)
    count, (n, m) = len(rows), kernel.shape
    if not count:
        return "none"
    # pi = t + s on the support with s >= 0: the unknowns are s and t, and t is raised.
    place = torch.arange(count)
    sums = coo_array(
        (
            torch.ones(2 * count).numpy(),
            (torch.cat([rows, n + columns]).numpy(), torch.cat([place, place]).numpy()),
        ),
        shape=(n + m, count + 1),
    ).tolil()
    support = (kernel > 0).double()
    sums[:, [count]] = torch.cat([support.sum(1), support.sum(0)]).numpy()[:, None]
    aim = torch.zeros(count + 1).numpy()
    aim[-1] = -1.0
    found = linprog(aim, A_eq=sums.tocsr(), b_eq=torch.cat([p, q]).double().cpu().numpy())
    if found.status == 2:
        return "none"
    return "scaling" if float(found.x[-1]) > ZERO / count else "limit"


@dataclass(frozen=True)
class ScaledKernel:
    """A kernel brought to given marginals: diag(u) K diag(v), or the limit of such matrices."""

    plan: Tensor  # (n, m)
    u: Tensor | None  # (n,), None where only a limit exists
    v: Tensor | None  # (m,)
    passes: int
    error: float  # L1 error of the rows


def scale_kernel(
    kernel: Tensor, p: Tensor, q: Tensor, tolerance: float = 1e-9, passes: int = 10_000
) -> ScaledKernel:
    """The plan on the support of a kernel (n, m) with row sums p and column sums q whose KL
    divergence from it is least; a DataError if no plan has that support. Entries of a kernel may
    be 0, where transport is forbidden."""
    existence = scaling_exists(kernel, p, q)
    if existence == "none":
        raise DataError(
            "expected a kernel with a plan on its positive entries, found that no matrix with its "
            f"{int((kernel == 0).sum())} zeros has these row and column sums; allow more entries"
        )
    for done, step in enumerate(alternating_projections(kernel, p, q)):
        ready = done > 0 and done % 2 == 0 and step.row_error < tolerance
        if ready or done >= 2 * passes:
            break
    plan, error = step.plan, step.row_error
    if existence == "limit":
        return ScaledKernel(plan, None, None, done // 2, error)
    log = torch.where(kernel > 0, plan.log() - kernel.log(), torch.nan)  # log u_i + log v_j
    log_u, log_v = potentials_on_support(log)
    return ScaledKernel(plan, log_u.exp(), log_v.exp(), done // 2, error)


def potentials_on_support(log: Tensor) -> tuple[Tensor, Tensor]:
    """f (n,) and g (m,) with f_i + g_j = log_ij wherever that is known (not NaN), f = 0 in the
    first row of each connected part."""
    f = torch.full_like(log[:, 0], torch.nan)
    g = torch.full_like(log[0], torch.nan)
    for row in range(len(f)):
        if not bool(f[row].isnan()):
            continue
        f[row] = 0.0
        while True:
            unknown = int(f.isnan().sum() + g.isnan().sum())
            g = torch.where(g.isnan(), (log - f[:, None]).nanmean(0), g)
            f = torch.where(f.isnan(), (log - g).nanmean(1), f)
            if int(f.isnan().sum() + g.isnan().sum()) == unknown:
                break
    return f, g


@dataclass(frozen=True)
class Optimality:
    """How far a plan is from the conditions of its optimum."""

    stationarity: float  # largest distance of log pi / K from f_i + g_j
    row_error: float
    column_error: float


def optimality(plan: Tensor, kernel: Tensor, p: Tensor, q: Tensor) -> Optimality:
    """Residuals of the Karush-Kuhn-Tucker conditions of a positive plan (n, m)."""
    log = plan.log() - kernel.log()
    additive = log.mean(1, keepdim=True) + log.mean(0) - log.mean()
    return Optimality(float((log - additive).abs().max()), l1(plan.sum(1), p), l1(plan.sum(0), q))


def barycentre(
    cost: Tensor, measures: Tensor, weights: Tensor, epsilon: float, passes: int = 1000
) -> Tensor:
    """The weights (n,) on fixed points that minimise sum_s lambda_s OT_epsilon(weights, b_s), for
    measures b (S, m), their weights lambda (S,) and costs (n, m) (Benamou et al. 2015)."""
    if bool((weights < 0).any()) or abs(float(weights.sum()) - 1) > 1e-6:
        raise DataError(
            f"expected weights that sum to one, found {weights.tolist()}; divide them by their sum"
        )
    log_k, log_b = -cost / epsilon, measures.log()  # (n, m), (S, m)
    g = torch.zeros_like(measures)  # log of the column scaling
    for _ in range(passes):
        rows = torch.logsumexp(log_k + g[:, None], 2)  # (S, n): log K v
        centre = weights @ rows
        f = centre - rows  # of the row scaling
        g = log_b - torch.logsumexp(log_k + f[:, :, None], 1)
    return torch.softmax(weights @ torch.logsumexp(log_k + g[:, None], 2), 0)


def unbalanced(
    cost: Tensor, a: Tensor, b: Tensor, epsilon: float, reach: float, passes: int = 1000
) -> Tensor:
    """The plan (n, m) that minimises <C, pi> + epsilon KL(pi | a b) + reach (KL(pi 1 | a) +
    KL(pi^T 1 | b)) for masses a (n,) and b (m,) of any sums (Chizat et al. 2018): mass that would
    move further than about `reach` in cost is destroyed and created instead."""
    share = 1.0 if math.isinf(reach) else reach / (reach + epsilon)
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(passes):
        f = -share * epsilon * torch.logsumexp((g - cost) / epsilon + b.log(), 1)
        g = -share * epsilon * torch.logsumexp((f[:, None] - cost) / epsilon + a.log()[:, None], 0)
    return ((f[:, None] + g - cost) / epsilon).exp() * a[:, None] * b
