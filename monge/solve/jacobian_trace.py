r"""The trace of a Jacobian, $\mathrm{tr}\, \partial v / \partial x$, row by row.

The exact trace takes one vector-Jacobian product per entry. For a random e with $E\, e e^T = I$,
$e^T (\partial v / \partial x)\, e$ is an unbiased estimate (Hutchinson 1989) at the cost of one
product; its variance is $2 \sum_{i \ne j} S_{ij}^2$ with S the symmetric part for signs, and
$2 \sum_{ij} S_{ij}^2$ for normal e.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..core.rng import keyed_normal, keyed_uniform

Map = Callable[[Tensor], Tensor]
Probe = Literal["rademacher", "gaussian"]


def exact_trace(v: Map, x: Tensor) -> tuple[Tensor, Tensor]:
    """v(x) and the trace of its Jacobian, (B,); each row of v may depend only on its own row of x
    (B, ...). Both are differentiable if gradients are enabled."""
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        point, value = evaluate(v, x)
        flat = value.reshape(len(value), -1)  # (B, D)
        total = flat.new_zeros(len(flat))
        for i in range(flat.shape[1]):
            total = total + gradient(flat[:, i].sum(), point, keep).reshape(flat.shape)[:, i]
    return (value, total) if keep else (value.detach(), total.detach())


def hutchinson_trace(v: Map, x: Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """v(x) and e^T (dv/dx) e for each of the probes e (B, K, ...), (B, K)."""
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        point, value = evaluate(v, x)
        each = [
            (gradient((value * e).sum(), point, keep) * e).reshape(len(x), -1).sum(1)
            for e in probes.unbind(1)
        ]
    found = torch.stack(each, 1)
    return (value, found) if keep else (value.detach(), found.detach())


def evaluate(v: Map, x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of x that requires a gradient, and v at it."""
    point = x if x.requires_grad else x.detach().requires_grad_()
    return point, v(point)


def gradient(value: Tensor, x: Tensor, keep: bool) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(
        value, x, retain_graph=True, create_graph=keep, materialize_grads=True
    )[0]


def sample_probes(
    rows: Tensor, count: int, shape: Sequence[int], seed: int = 0, kind: Probe = "rademacher"
) -> Tensor:
    """Probes keyed by the row's number, float64, (B, count, *shape)."""
    if kind == "gaussian":
        return keyed_normal(rows, (count, *shape), seed)
    return torch.where(keyed_uniform(rows, (count, *shape), seed) < 0.5, -1.0, 1.0).double()


def mean_and_error(estimates: Tensor) -> tuple[Tensor, Tensor | None]:
    """The mean of K estimates (B, K) and its standard error (B,), None if K is 1."""
    count = estimates.shape[1]
    error = estimates.std(1) / count**0.5 if count > 1 else None
    return estimates.mean(1), error
