r"""Exact optimal transport: $\min_{\pi \in \Pi(a, b)} \langle c, \pi\rangle$, the linear program.

Uniform point clouds of equal size are an assignment problem, which is sped up by an entropic plan;
others are solved as a linear program (or by POT's network simplex, if it is installed). On a line,
sorted points are matched in order for any convex cost; over random lines this gives the sliced
distance. Between Gaussians the squared distance is (Bures)

$|\mu_1 - \mu_2|^2 + \mathrm{tr}(S_1 + S_2 - 2 (S_1^{1/2} S_2 S_1^{1/2})^{1/2})$.

Any positive matrix can be scaled to one whose rows and columns sum to one (Sinkhorn 1964).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Generator, Tensor

from ...core.errors import DataError
from .sinkhorn import sinkhorn, weights

Proof = Callable[[], tuple[np.ndarray, np.ndarray]]
ENTROPIC_START_ROWS = 200
"""Rows from which an assignment is sped up by an entropic plan."""
ENTROPIC_START = (0.002, 1e-2)
"""Its entropy, in units of the mean cost, and its marginal error."""


@dataclass(frozen=True)
class Exact:
    """An optimal plan pi (n, m) with potentials that prove it: f_i + g_j <= c_ij everywhere, with
    equality where the plan moves mass, so that <f, a> + <g, b> = <c, pi>."""

    plan: Tensor
    cost: Tensor  # ()
    prove: Proof = field(repr=False)

    @cached_property
    def potentials(self) -> tuple[Tensor, Tensor]:
        """f (n,) and g (m,), computed on first use."""
        f, g = (torch.from_numpy(potential).to(self.plan) for potential in self.prove())
        return f, g


def exact(
    matrix: Tensor, a: Tensor | None = None, b: Tensor | None = None, normalise: bool = False
) -> Exact:
    """The cheapest plan for a cost matrix (n, m); its cost is differentiable in the matrix.
    normalise: weights are divided by their sum."""
    if not bool(matrix.isfinite().all()):
        raise DataError("the cost matrix holds values that are not finite; fix or drop such rows")
    n, m = matrix.shape
    uniform = a is None and b is None and n == m
    a = weights(a, torch.Size([n]), matrix, "a", normalise)
    b = weights(b, torch.Size([m]), matrix, "b", normalise)
    cost = matrix.detach().double().cpu().numpy()
    plan, prove = (
        matched(cost)
        if uniform
        else weighted(cost, a.double().cpu().numpy(), b.double().cpu().numpy())
    )
    found = torch.from_numpy(plan).to(matrix)
    return Exact(found, (found * matrix).sum(), prove)


def matched(cost: np.ndarray) -> tuple[np.ndarray, Proof]:
    """The plan by assignment. Subtracting the potentials of an entropic plan from a large cost
    does not change the optimum and makes the search much shorter."""
    from scipy.optimize import linear_sum_assignment

    first, last, size = np.zeros(len(cost)), np.zeros(len(cost)), np.ptp(cost)
    if len(cost) >= ENTROPIC_START_ROWS and size > 0:
        near = sinkhorn(
            torch.from_numpy((cost - cost.min()) / size).float(),
            epsilon=ENTROPIC_START[0],
            relative=True,
            tolerance=ENTROPIC_START[1],
        )
        first, last = (size * potential.double().numpy() for potential in (near.f, near.g))
    rest = cost - first[:, None] - last
    rows, columns = linear_sum_assignment(rest)
    plan = np.zeros_like(cost)
    plan[rows, columns] = 1 / len(cost)

    def prove() -> tuple[np.ndarray, np.ndarray]:
        f, g = shortest(rest, columns)
        return f + first, g + last

    return plan, prove


def shortest(cost: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The potentials of an assignment by shortest paths in its residual graph."""
    own = cost[np.arange(len(cost)), columns]
    slack = cost[:, columns] - own  # extra cost of row i over row k for the column of row k
    f = np.zeros(len(cost))
    for _ in range(len(cost)):
        lower = np.minimum(f, (f[None, :] + slack).min(1))
        if np.array_equal(lower, f):
            break
        f = lower
    g = np.empty_like(f)
    g[columns] = own - f
    return f, g


def weighted(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Proof]:
    solver = simplex if importlib.util.find_spec("ot") else program
    plan, f, g = solver(cost, a, b)
    return plan, lambda: (f, g)


def simplex(
    cost: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import ot

    plan, log = ot.emd(a / a.sum(), b / b.sum(), cost, log=True, numItermax=10_000_000)
    return plan, log["u"], log["v"]


def program(
    cost: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    n, m = cost.shape
    sums = vstack([kron(eye_array(n), np.ones((1, m))), kron(np.ones((1, n)), eye_array(m))])
    total = np.concatenate([a / a.sum(), b / b.sum()])
    found = linprog(cost.ravel(), A_eq=sums.tocsr(), b_eq=total, method="highs")
    if found.x is None:
        raise DataError(f"no plan was found ({found.message}); check the weights")
    return found.x.reshape(n, m), found.eqlin.marginals[:n], found.eqlin.marginals[n:]


def on_line(
    x: Tensor, y: Tensor, p: float = 1.0, a: Tensor | None = None, b: Tensor | None = None
) -> Tensor:
    r"""$W_p^p = \int_0^1 |F^{-1}(t) - G^{-1}(t)|^p dt$ of points x (*S, n) and y (*S, m) on a
    line, (*S,); for p >= 1."""
    if p < 1:
        raise DataError(f"p={p}: distances on a line need p >= 1; give a larger p")
    if a is None and b is None and x.shape[-1] == y.shape[-1]:
        return (x.sort(-1).values - y.sort(-1).values).abs().pow(p).mean(-1)
    sides = [(x, weights(a, x.shape, x, "a")), (y, weights(b, y.shape, y, "b"))]
    ordered = [(values.sort(-1), mass) for values, mass in sides]
    ends = [mass.gather(-1, order.indices).cumsum(-1) for order, mass in ordered]
    cuts = torch.cat(ends, -1).sort(-1).values  # (*S, n + m)
    widths = cuts.diff(dim=-1, prepend=torch.zeros_like(cuts[..., :1]))
    middle = (cuts - widths / 2).contiguous()
    at = [
        order.values.gather(
            -1, torch.searchsorted(end.contiguous(), middle).clamp(max=end.shape[-1] - 1)
        )
        for (order, _), end in zip(ordered, ends, strict=True)
    ]
    return (widths * (at[0] - at[1]).abs().pow(p)).sum(-1)


def sliced(
    x: Tensor, y: Tensor, p: float = 2.0, directions: int = 128, generator: Generator | None = None
) -> Tensor:
    r"""$(\mathbb E_\theta W_p^p(\theta^T x, \theta^T y))^{1/p}$ over random directions, ()."""
    lines = torch.randn(
        directions, x.shape[-1], dtype=x.dtype, device=x.device, generator=generator
    )
    lines = torch.nn.functional.normalize(lines, dim=-1)
    return on_line(lines @ x.mT, lines @ y.mT, p).mean().pow(1 / p)


def bures(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> Tensor:
    """The squared W_2 distance of two Gaussians, ()."""
    half = root(cov_a)
    cross = root(half @ cov_b @ half)
    shift = (mean_a - mean_b).square().sum(-1)
    return shift + (cov_a + cov_b - 2 * cross).diagonal(dim1=-2, dim2=-1).sum(-1)


def root(matrix: Tensor) -> Tensor:
    """The positive square root of a symmetric matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT


def doubly_stochastic(matrix: Tensor, tolerance: float = 1e-9, passes: int = 10_000) -> Tensor:
    """D_1 A D_2 whose rows and columns sum to one, for a positive square matrix (*S, n, n);
    differentiable through its passes, which work on logarithms."""
    if bool((matrix <= 0).any()) or matrix.shape[-1] != matrix.shape[-2]:
        raise DataError(
            "expected a square matrix of positive numbers to scale rows and columns to sum to "
            f"one, found shape {tuple(matrix.shape)} with smallest entry "
            f"{matrix.min().item():.3g}; fix the matrix"
        )
    log = matrix.log()
    for _ in range(passes):
        log = log - log.logsumexp(-1, keepdim=True)
        log = log - log.logsumexp(-2, keepdim=True)
        if float((log.detach().exp().sum(-1) - 1).abs().max()) < tolerance:
            break
    return log.exp()


def soft_permutation(scores: Tensor, temperature: float = 1.0, passes: int = 20) -> Tensor:
    """A Sinkhorn layer (Mena et al. 2018): scores (*S, n, n) to nearly doubly stochastic matrices,
    which become permutations as the temperature falls."""
    log = scores / temperature
    for _ in range(passes):
        log = log - log.logsumexp(-1, keepdim=True)
        log = log - log.logsumexp(-2, keepdim=True)
    return log.exp()
