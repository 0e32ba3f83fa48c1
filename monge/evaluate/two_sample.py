r"""Distances between two datasets and a two-sample test.

Rows are points in standardised features, so distances are in standard deviations of the first
dataset. Errors come from a jackknife over groups of rows. The p-value of the hypothesis that both
have the same distribution is the share of random permutations of the rows whose energy distance is
at least as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import DataError
from ..core.metric import Metric
from ..core.rng import make_generator
from ..core.space import Space
from ..prob import divergence
from ..solve.transport.exact import bures, exact, sliced
from ..solve.transport.ground_cost import squared
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

SMOOTHED = ("reverse_kl", "jeffreys", "jensen_shannon", "total_variation")
"""Other divergences of densities that are compared, at one bandwidth."""
SMOOTHED_BANDWIDTH = 0.3

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
    found |= smoothed_metrics(*few, seed)
    found["c2st"] = c2st(x, y, seed)
    found["p_value"] = Metric(p_value(x, y, seed), "estimate", unit="probability")
    return found


def smoothed(bandwidth: float, seed: int) -> Measure:
    return lambda x, y: divergence.smoothed_kl(
        x, y, bandwidth, generator=make_generator(seed, x.device)
    )


def smoothed_metrics(x: Tensor, y: Tensor, seed: int) -> dict[str, Metric]:
    """The other divergences of densities, smoothed at one bandwidth."""

    def measure(x: Tensor, y: Tensor) -> Tensor:
        found = divergence.smoothed_divergences(
            x, y, SMOOTHED_BANDWIDTH, samples=1, generator=make_generator(seed, x.device)
        )
        return torch.stack([found[name] for name in SMOOTHED])

    values, errors = jackknifed(measure, x, y)
    return {
        f"smoothed_{name}_{SMOOTHED_BANDWIDTH:g}": Metric(
            value, "distance", error, "probability" if name == "total_variation" else "nats"
        )
        for name, value, error in zip(SMOOTHED, values.tolist(), errors.tolist(), strict=True)
    }


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
    value, error = jackknifed(measure, x, y)
    return Metric(float(value), "distance", float(error), unit)


def jackknifed(measure: Measure, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The values of a measure and their jackknife standard errors."""
    value = measure(x, y)
    without = []
    for group in range(GROUPS):
        keep = [torch.arange(len(rows)) % GROUPS != group for rows in (x, y)]
        without.append(measure(x[keep[0]], y[keep[1]]))
    spread = torch.stack(without).double().var(0, correction=0) * (GROUPS - 1)
    return value, spread.sqrt()


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


SWEEP_SIZES = (8, 16, 32, 64, 128, 256, 512)
"""Rows of a minibatch whose transport costs are compared."""
SWEEP_EPSILONS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Entropies in units of the mean cost that are compared."""
SWEEP_REPEATS = 8
"""Minibatches of each size, at most."""


@dataclass(frozen=True)
class Sweep:
    """Transport costs of squared distances along a setting, with standard errors.

    value: <c, pi> + epsilon KL of the plan; cost: <c, pi>; divergence: the value debiased by those
    of each side with itself; exact: without entropy; within: the exact cost of x with itself in
    two halves, which a distance would find 0.
    """

    setting: str
    at: tuple[float, ...]
    curves: dict[str, list[Metric]]

    def to_dict(self) -> dict[str, Any]:
        curves = {name: [m.to_dict() for m in each] for name, each in self.curves.items()}
        return {"setting": self.setting, "at": list(self.at), "curves": curves}


def sweep_batch_size(x: Tensor, y: Tensor, seed: int = 0) -> Sweep:
    """Costs between disjoint minibatches of x (n, F) and y (m, F) by their size: the plain cost
    is biased upwards, the more the smaller they are (Genevay et al. 2019)."""
    most = min(len(x) // 2, len(y))
    sizes = tuple(size for size in SWEEP_SIZES if size <= most)
    generator = make_generator(seed)
    x, y = (side[torch.randperm(len(side), generator=generator)] for side in (x, y))
    epsilon = EPSILON * float(squared(x, y).mean())
    curves: dict[str, list[Metric]] = {}
    for size in sizes:
        count = min(SWEEP_REPEATS, most // size)
        found: dict[str, list[float]] = {}
        for k in range(count):
            a, other = x[2 * k * size :][:size], x[(2 * k + 1) * size :][:size]
            values = costs_of(a, y[k * size :][:size], epsilon)
            values["within"] = float(exact(squared(a, other)).cost)
            for name, value in values.items():
                found.setdefault(name, []).append(value)
        for name, each in found.items():
            curves.setdefault(name, []).append(mean_metric(each))
    return Sweep("batch_size", sizes, curves)


def sweep_epsilon(x: Tensor, y: Tensor, seed: int = 0) -> Sweep:
    """Costs between at most EXACT rows of each side by the entropy: from exact transport at 0 to
    the product of both, whose cost is the mean of all pairs (Cuturi 2013)."""
    generator = make_generator(seed)
    a, b = (side[torch.randperm(len(side), generator=generator)[: EXACT // 2]] for side in (x, y))
    pairs = squared(a, b)
    best, product = float(exact(pairs).cost), float(pairs.mean())
    curves: dict[str, list[Metric]] = {}
    for share in SWEEP_EPSILONS:
        values = costs_of(a, b, share * product, best) | {"product": product}
        for name, value in values.items():
            curves.setdefault(name, []).append(Metric(value, "distance", 0.0, "variances"))
    return Sweep("epsilon", SWEEP_EPSILONS, curves)


def costs_of(x: Tensor, y: Tensor, epsilon: float, known: float | None = None) -> dict[str, float]:
    """Costs of the plans between and within two samples."""
    between, *within = (
        sinkhorn(*pair, epsilon, tolerance=1e-5) for pair in ((x, y), (x, x), (y, y))
    )
    own = sum(float(each.value) for each in within) / 2
    return {
        "exact": float(exact(squared(x, y)).cost) if known is None else known,
        "cost": float(between.cost),
        "value": float(between.value),
        "divergence": float(between.value) - own,
    }


def mean_metric(values: Sequence[float]) -> Metric:
    found = torch.tensor(values, dtype=torch.float64)
    error = float(found.std() / len(found) ** 0.5) if len(found) > 1 else math.nan
    return Metric(float(found.mean()), "distance", error, "variances")


def plan(x: Tensor, y: Tensor) -> Plan:
    """The entropic plan between two samples, for a plot or a file."""
    return sinkhorn(x.float(), y.float(), EPSILON / 5, relative=True)
