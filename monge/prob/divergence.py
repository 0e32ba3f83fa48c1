r"""Divergences between distributions: by densities, by kernels, by optimal transport.

For probability tables p, q on the same finite set (last axis; leading axes are a batch):

- entropy $H(p) = -\sum p \log p$, cross entropy $H(p, q) = -\sum p \log q = H(p) +
  \mathrm{KL}(p\|q)$;
- $\mathrm{KL}(p\|q) = \sum p \log (p/q) \ge 0$: infinite iff p has mass where q has none;
- Jeffreys $= \mathrm{KL}(p\|q) + \mathrm{KL}(q\|p)$, unbounded; Jensen-Shannon through the mixture
  $m = (p+q)/2$, between 0 and log 2, its value for disjoint supports;
- total variation $\tfrac12\sum|p - q|$, between 0 and 1, its value for disjoint supports.

For samples x (n, d) and y (m, d) of any two distributions: MMD, the Wasserstein distances, and the
Sinkhorn divergence, which also measure the distance of disjoint supports. For Gaussians in closed
form: KL, expected log-density, squared W_2 (`solve.transport.exact.bures`). Smoothing by a normal
makes the KL of any two samples finite, at a value that the bandwidth decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import DataError
from ..solve.transport.exact import exact, on_line
from ..solve.transport.ground_cost import Cost, CostName, Power, squared
from ..solve.transport.sinkhorn import sinkhorn


def entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)


def cross_entropy(p: Tensor, q: Tensor) -> Tensor:
    """H(p, q); infinite if p has mass where q has none."""
    return -torch.xlogy(p, q).sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q)."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def jeffreys(p: Tensor, q: Tensor) -> Tensor:
    return kl(p, q) + kl(q, p)


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """The Jensen-Shannon divergence, whose square root is a metric."""
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs().sum(-1) / 2


def gaussian_kl(mean_p: Tensor, cov_p: Tensor, mean_q: Tensor, cov_q: Tensor) -> Tensor:
    r"""$\mathrm{KL}(\mathcal N_p\|\mathcal N_q) = \tfrac12(\mathrm{tr}\,S_q^{-1}S_p - d +
    \delta^T S_q^{-1}\delta + \log\det S_q - \log\det S_p)$ for covariances (*S, d, d)."""
    low = torch.linalg.cholesky(cov_q)
    spread = torch.cholesky_solve(cov_p, low).diagonal(dim1=-2, dim2=-1).sum(-1)
    shift = torch.linalg.solve_triangular(low, (mean_q - mean_p)[..., None], upper=False)
    volume = low.diagonal(dim1=-2, dim2=-1).log().sum(-1) * 2 - torch.logdet(cov_p)
    return (spread - mean_p.shape[-1] + shift.square().sum((-2, -1)) + volume) / 2


def diagonal_kl(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """The same for standard deviations (*S, d), summed over d."""
    ratio, shift = (std_p / std_q).square(), ((mean_p - mean_q) / std_q).square()
    return ((ratio + shift - 1 - ratio.log()) / 2).sum(-1)


def gaussian_expected_log_density(
    mean_q: Tensor, cov_q: Tensor, mean_p: Tensor, cov_p: Tensor
) -> Tensor:
    r"""$E_{\mathcal N_q} \log \mathcal N_p = -\tfrac12(d \log 2\pi + \log\det S_p +
    \mathrm{tr}\,S_p^{-1}S_q + \delta^T S_p^{-1}\delta)$ for covariances (*S, d, d)."""
    low = torch.linalg.cholesky(cov_p)
    spread = torch.cholesky_solve(cov_q, low).diagonal(dim1=-2, dim2=-1).sum(-1)
    shift = torch.linalg.solve_triangular(low, (mean_q - mean_p)[..., None], upper=False)
    volume = low.diagonal(dim1=-2, dim2=-1).log().sum(-1) * 2
    constant = mean_p.shape[-1] * math.log(2 * math.pi)
    return -(constant + volume + spread + shift.square().sum((-2, -1))) / 2


def smoothed_kl(
    x: Tensor,
    y: Tensor,
    bandwidth: float,
    samples: int = 4,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""$\mathrm{KL}(\hat p * N(0, \sigma^2 I)\,\|\,\hat q * N(0, \sigma^2 I))$ of the empirical
    distributions of x (n, d) and y (m, d), by `samples` points around each x: finite for disjoint
    supports, but a value of the bandwidth as much as of the distributions."""
    noise = torch.randn(samples, *x.shape, generator=generator, dtype=x.dtype, device=x.device)
    points = (x + bandwidth * noise).flatten(0, 1)  # (samples n, d)
    p, q = (smoothed_log_density(points, centres, bandwidth) for centres in (x, y))
    return (p - q).mean()


def fisher_divergence(
    score: Callable[[Tensor], Tensor], log_density: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    r"""$\tfrac12 |s(x) - \nabla\log p(x)|^2$ at each of the points x (n, ...), (n,): explicit
    score matching (Hyvarinen 2005) against a density that is known, for x ~ p. Differentiable in
    s."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(log_density(point).sum(), point)
    return (score(x) - slope.detach()).square().flatten(1).sum(1) / 2


def smoothed_divergences(
    x: Tensor,
    y: Tensor,
    bandwidth: float,
    samples: int = 4,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """All divergences of densities between the samples x (n, d) and y (m, d) smoothed by a normal
    of this bandwidth: KL, reverse KL, Jeffreys, Jensen-Shannon and total variation, each a mean
    over `samples` points around each row."""
    ratios = []  # log p / q at points of p, and of q
    for side in (x, y):
        noise = torch.randn(
            samples, *side.shape, generator=generator, dtype=side.dtype, device=side.device
        )
        points = (side + bandwidth * noise).flatten(0, 1)
        p, q = (smoothed_log_density(points, centres, bandwidth) for centres in (x, y))
        ratios.append(p - q)
    at_p, at_q = ratios
    forward, reverse = at_p.mean(), -at_q.mean()
    middle = [math.log(2) - torch.nn.functional.softplus(-r).mean() for r in (at_p, -at_q)]
    # TV = E_p (1 - q/p)_+ and as well E_q (1 - p/q)_+
    apart = [(1 - torch.exp(-r)).clamp_min(0).mean() for r in (at_p, -at_q)]
    return {
        "kl": forward,
        "reverse_kl": reverse,
        "jeffreys": forward + reverse,
        "jensen_shannon": (middle[0] + middle[1]) / 2,
        "total_variation": (apart[0] + apart[1]) / 2,
    }


def smoothed_log_density(points: Tensor, centres: Tensor, bandwidth: float) -> Tensor:
    """log of the mean normal density around the centres (m, d) at points (n, d), up to a
    constant of the bandwidth, (n,)."""
    near = -squared(points, centres) / (2 * bandwidth**2)
    return near.logsumexp(1) - math.log(len(centres))


def compare_divergences(
    p: Tensor, q: Tensor, points: Tensor | None = None, epsilon: float = 0.05
) -> dict[str, float]:
    """Every divergence between probability tables p and q (n,): by densities, and, where the
    values lie at points (n, d) (by default 0, 1, ... on a line), by transport and kernels.

    Disjoint supports have an infinite KL, a Jensen-Shannon divergence of log 2 and a total
    variation of 1 however far apart they are; transport tells how far.

    Examples
    --------
    >>> import torch
    >>> from monge.prob.divergence import compare_divergences
    >>> p, near, far = torch.eye(10, dtype=torch.float64)[[0, 1, 9]]
    >>> a, b = compare_divergences(p, near), compare_divergences(p, far)
    >>> a["kl"], a["total_variation"] == b["total_variation"], a["wasserstein_1"]
    (inf, True, 1.0)
    >>> round(b["wasserstein_1"], 6)
    9.0
    """
    if points is None:
        points = torch.arange(len(p), dtype=p.dtype)[:, None]
    if not len(p) == len(q) == len(points):
        raise DataError(
            f"expected as many probabilities as points, found {len(p)}, {len(q)} and "
            f"{len(points)}; give tables over the same points"
        )
    line = points.shape[1] == 1
    costs = {power: Power(power)(points, points) for power in (1.0, 2.0)}

    def moved(power: float) -> Tensor:
        if line:
            return on_line(points[:, 0], points[:, 0], power, p, q).pow(1 / power)
        return exact(costs[power], p, q).cost.pow(1 / power)

    scale = max(float(costs[2.0].mean()), 1e-12)
    both = (p[:, None] * q, p[:, None] * p, q[:, None] * q)
    kernel = torch.exp(-costs[2.0] / (2 * scale))
    within = [float((kernel * weight).sum()) for weight in both]

    def entropic(a: Tensor, b: Tensor) -> float:
        rows, columns = a > 0, b > 0  # passes converge slowly where weights are nothing
        cost = costs[2.0][rows][:, columns]
        plan = sinkhorn(cost, None, epsilon * scale, a=a[rows], b=b[columns], tolerance=1e-9)
        return float(plan.value)

    found = {
        "kl": kl(p, q),
        "reverse_kl": kl(q, p),
        "jeffreys": jeffreys(p, q),
        "jensen_shannon": jensen_shannon(p, q),
        "total_variation": total_variation(p, q),
        "wasserstein_1": moved(1.0),
        "wasserstein_2": moved(2.0),
        "sinkhorn_divergence": entropic(p, q) - (entropic(p, p) + entropic(q, q)) / 2,
        "mmd": within[1] + within[2] - 2 * within[0],
    }
    return {name: float(torch.as_tensor(value)) for name, value in found.items()}


def mmd(x: Tensor, y: Tensor, bandwidth: float | None = None) -> Tensor:
    r"""$\mathbb E k(x,x') + \mathbb E k(y,y') - 2\mathbb E k(x,y)$ by its unbiased statistic, for
    the Gaussian kernel; the bandwidth is the median distance by default."""
    pairs = squared(x, y), squared(x, x), squared(y, y)
    if bandwidth is None:
        bandwidth = float(pairs[0].detach().median().sqrt())
    cross, within_x, within_y = (torch.exp(-d / (2 * (bandwidth or 1.0) ** 2)) for d in pairs)
    return off_diagonal(within_x) + off_diagonal(within_y) - 2 * cross.mean()


def off_diagonal(matrix: Tensor) -> Tensor:
    """The mean of a square matrix without its diagonal."""
    n = len(matrix)
    if n < 2:
        raise DataError(
            f"expected at least 2 rows for an unbiased statistic, found {n}; give more"
        )
    return (matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))


def wasserstein(x: Tensor, y: Tensor, p: float = 1.0) -> Tensor:
    """The exact W_p distance of two samples."""
    if x.shape[-1] == 1:
        return on_line(x[..., 0], y[..., 0], p).pow(1 / p)
    return exact(Power(p)(x, y)).cost.pow(1 / p)


def sinkhorn_divergence(
    x: Tensor,
    y: Tensor,
    epsilon: float = 0.05,
    cost: CostName | float | Cost = "squared",
    variant: Literal["entropic", "sharp"] = "entropic",
    relative: bool = True,
    tolerance: float = 1e-4,
) -> Tensor:
    """S(x, y) = OT(x, y) - OT(x, x) / 2 - OT(y, y) / 2 (Genevay et al. 2018, Feydy et al. 2019):
    zero for equal samples, unlike the entropic cost.

    `sharp` uses the cost of the plans without the entropy; relative: epsilon in units of the mean
    cost between x and y. Differentiable in both samples.
    """
    if relative:
        first = sinkhorn(x, y, epsilon, cost_of=cost, relative=True, tolerance=tolerance)
        epsilon = first.epsilon
    else:
        first = sinkhorn(x, y, epsilon, cost_of=cost, tolerance=tolerance)
    plans = [first] + [sinkhorn(z, z, epsilon, cost_of=cost, tolerance=tolerance) for z in (x, y)]
    values = [plan.value if variant == "entropic" else plan.cost for plan in plans]
    return values[0] - (values[1] + values[2]) / 2
