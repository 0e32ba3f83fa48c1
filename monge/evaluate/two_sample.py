r"""Distances between two datasets and a two-sample test.

Rows are points in standardised features, so distances are in standard deviations of the first
dataset. Errors come from a jackknife over groups of rows. The p-value of the hypothesis that both
have the same distribution is the share of random permutations of the rows whose energy distance is
at least as large.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.metric import Metric
from ..core.rng import make_generator
from ..core.space import Space
from ..prob import divergence
from ..solve.transport.exact import bures, sliced
from ..solve.transport.sinkhorn import Plan, sinkhorn
from .c2st import c2st
from .energy_distance import energy

GROUPS = 10
"""Groups of rows of the jackknife."""
EXACT = 500
"""Rows of each side up to which transport is solved exactly."""
SHUFFLES = 999
"""Permutations for the p-value."""
STATES = 64
"""Most values of a single entry whose frequencies are compared."""
EPSILON = 0.05
"""Entropy of plans, in units of the mean cost."""
BANDWIDTHS = (0.1, 0.3, 1.0)
"""Standard deviations of the smoothing whose KL divergences are compared."""

Measure = Callable[[Tensor, Tensor], Tensor]


def distances(x: Tensor, y: Tensor, seed: int = 0) -> dict[str, Metric]:
    """Every distance between points x (n, F) and y (m, F), float64."""
    if min(len(x), len(y)) < 2 * GROUPS:
        raise DataError(
            f"the smaller dataset has {min(len(x), len(y))} rows; a distance with "
            f"its error needs at least {2 * GROUPS}; give more rows"
        )

    few = x[:EXACT], y[:EXACT]
    found = {
        "energy": energy(x, y),
        **large_sample_distances(x, y, seed),
        "wasserstein_1": jackknife(divergence.wasserstein, *few),
        "wasserstein_2": jackknife(lambda x, y: divergence.wasserstein(x, y, 2.0), *few),
    }
    if min(len(x), len(y)) > 2 * x.shape[1]:
        found |= {
            "gaussian_kl": jackknife(gaussian_kl, x, y, "nats"),
            "gaussian_reverse_kl": jackknife(lambda x, y: gaussian_kl(y, x), x, y, "nats"),
            "gaussian_jeffreys": jackknife(
                lambda x, y: gaussian_kl(x, y) + gaussian_kl(y, x), x, y, "nats"
            ),
            "gaussian_wasserstein_2": jackknife(gaussian_w2, x, y),
        }
    for bandwidth in BANDWIDTHS:
        found[f"smoothed_kl_{bandwidth:g}"] = jackknife(smoothed(bandwidth, seed), *few, "nats")
    found["c2st"] = c2st(x, y, seed)
    found["p_value"] = Metric(p_value(x, y, seed), "estimate", unit="probability")
    return found


def smoothed(bandwidth: float, seed: int) -> Measure:
    return lambda x, y: divergence.smoothed_kl(
        x, y, bandwidth, generator=make_generator(seed, x.device)
    )


def large_sample_distances(x: Tensor, y: Tensor, seed: int = 0) -> dict[str, Metric]:
    """The distances that are feasible for many rows: kernel, sliced and entropic."""

    def slices(x: Tensor, y: Tensor) -> Tensor:
        return sliced(x, y, generator=make_generator(seed))

    def entropic(x: Tensor, y: Tensor) -> Tensor:
        return divergence.sinkhorn_divergence(x.float(), y.float(), EPSILON)

    return {
        "mmd": jackknife(divergence.mmd, x, y, "kernel"),
        "sliced_wasserstein_2": jackknife(slices, x, y),
        "sinkhorn_divergence": jackknife(entropic, x, y, "variances"),
    }


def frequencies(x: Tensor, y: Tensor, space: Space) -> dict[str, Metric]:
    """Divergences of the frequencies of a single finite entry; none for other data."""
    size = {"binary": 2, "label": space.size, "levels": space.size}.get(space.kind, 0)
    if space.dims != 1 or not 0 < size <= STATES:
        return {}
    known: dict[str, Measure] = {
        "kl": divergence.kl,
        "reverse_kl": lambda p, q: divergence.kl(q, p),
        "jeffreys": divergence.jeffreys,
        "jensen_shannon": divergence.jensen_shannon,
        "total_variation": divergence.total_variation,
    }

    def table(rows: Tensor) -> Tensor:
        return torch.bincount(rows.flatten().long(), minlength=size).double() / len(rows)

    def between(measure: Measure) -> Measure:
        return lambda x, y: measure(table(x), table(y))

    return {name: jackknife(between(measure), x, y) for name, measure in known.items()}


def jackknife(measure: Measure, x: Tensor, y: Tensor, unit: str = "standard deviations") -> Metric:
    """A distance with its jackknife standard error over groups of rows."""
    value = float(measure(x, y))
    without = []
    for group in range(GROUPS):
        keep = [torch.arange(len(rows)) % GROUPS != group for rows in (x, y)]
        without.append(measure(x[keep[0]], y[keep[1]]))
    spread = torch.stack(without).double().var(correction=0) * (GROUPS - 1)
    return Metric(value, "distance", float(spread.sqrt()), unit)


def gaussian_kl(x: Tensor, y: Tensor) -> Tensor:
    """KL of the normal distributions with the moments of the samples."""
    return divergence.gaussian_kl(x.mean(0), covariance(x), y.mean(0), covariance(y))


def gaussian_w2(x: Tensor, y: Tensor) -> Tensor:
    return bures(x.mean(0), covariance(x), y.mean(0), covariance(y)).clamp_min(0).sqrt()


def covariance(x: Tensor) -> Tensor:
    """Plus a small multiple of the identity, so that constant columns can be inverted."""
    return x.T.cov().reshape(x.shape[1], -1) + 1e-6 * torch.eye(x.shape[1]).to(x)


def p_value(x: Tensor, y: Tensor, seed: int = 0) -> float:
    """The share of random permutations of all rows with at least as large an energy distance."""
    pool, n, m = torch.cat([x, y]), len(x), len(y)
    pairs = torch.cdist(pool, pool)
    order = torch.rand(SHUFFLES, len(pool), generator=make_generator(seed)).argsort(1)
    first = torch.zeros(SHUFFLES + 1, len(pool), dtype=pairs.dtype)
    first[:-1].scatter_(1, order[:, :n], 1.0)
    first[-1, :n] = 1.0
    near = first @ pairs  # (S, N)
    within_x, whole = (near * first).sum(1), pairs.sum()
    across = near.sum(1) - within_x
    within_y = whole - within_x - 2 * across
    value = 2 * across / (n * m) - within_x / (n * (n - 1)) - within_y / (m * (m - 1))
    return float((value >= value[-1] - 1e-12).double().mean())


def plan(x: Tensor, y: Tensor) -> Plan:
    """The entropic plan between two samples, for a plot or a file."""
    return sinkhorn(x.float(), y.float(), EPSILON / 5, relative=True)
