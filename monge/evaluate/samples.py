"""Metrics and diagnostics that need only samples, with training rows as the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.gaussian_modes import GaussianModes
from ..core.metric import Metric
from ..core.model import Model
from .c2st import MIN_TEST_ROWS, c2st
from .coverage import LEVEL, duplicates, memorised, modes, prdc
from .energy_distance import FeatureMap
from .two_sample import large_sample_distances

Density = Callable[[Tensor], Tensor]
REAL = "_of_real_rows"
"""Suffix of a reference metric: training rows in place of samples."""
CLOSE, NUMBERS = 500, 1 << 20
"""Most rows, and elements, of each side of a jackknifed distance."""
COPIED_FROM = 10_000
"""Most training rows searched for copies."""


@dataclass(frozen=True)
class SampleComparison:
    """Samples, held-out rows and training rows, all as points (n, F)."""

    fake: Tensor
    real: Tensor
    train: Tensor
    x: Tensor  # the samples, (n, *event)
    truth: Tensor  # the held-out rows, (n, *event)

    @classmethod
    def at(cls, model: Model, x: Tensor, rows: Batch, train: Batch) -> SampleComparison:
        feature_map = FeatureMap.of(model, model.space)
        return cls(
            feature_map(Batch(x, given=rows.given)),
            feature_map(rows),
            feature_map(train),
            x,
            rows.x,
        )


def sample_metrics(
    compared: SampleComparison, density: Density | None, seed: int = 0
) -> dict[str, Metric]:
    """Metrics of samples, followed by their references if they have one."""
    n, found = min(len(compared.real), len(compared.fake)), dict[str, Metric]()
    real, fake, train = (
        spread(side, n) for side in (compared.real, compared.fake, compared.train)
    )
    if min(len(real), len(train)) >= MIN_TEST_ROWS:
        few = min(CLOSE, max(NUMBERS // real.shape[1], MIN_TEST_ROWS))
        near = spread(real, few)
        found |= with_references(
            *(large_sample_distances(spread(side, few), near, seed) for side in (fake, train))
        )
        found |= with_references(*({"c2st": c2st(side, real, seed)} for side in (fake, train)))
        found |= with_references(*(prdc(real, side) for side in (fake, train)))
        copied = {
            "memorised": memorised(compared.fake, compared.real, compared.train),
            "duplicates": duplicates(compared.fake, compared.real),
        }
        found |= with_references(
            copied, dict.fromkeys(copied, Metric(LEVEL, "exact", 0.0, "share"))
        )
    if isinstance(density, GaussianModes):
        found |= with_references(*(modes(side, density) for side in (compared.x, compared.truth)))
    return found


def with_references(found: Mapping[str, Metric], ideal: Mapping[str, Metric]) -> dict[str, Metric]:
    """Each metric of samples, followed by its reference."""
    return {
        key: score
        for name in found
        for key, score in ((name, found[name]), (name + REAL, ideal[name]))
    }


def spread(rows: Tensor, n: int) -> Tensor:
    """At most n rows, evenly spaced, since neighbouring rows may be related."""
    return rows[torch.linspace(0, len(rows) - 1, min(n, len(rows))).long()]
