r"""The energy distance between samples and data, for every model that can sample.

$E(P, Q) = 2\,\mathbb E|X-Y| - \mathbb E|X-X'| - \mathbb E|Y-Y'| \ge 0$, zero only if P = Q
(Székely & Rizzo 2013), by its unbiased U-statistic on standardised features, so it can come out
slightly below zero. Conditions are part of the compared rows: the distributions are joint ones,
except for models of unpaired data, whose joint distribution is not observed.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from ..core.abilities import CanSample
from ..core.batch import Batch
from ..core.errors import DataError
from ..core.metric import Metric
from ..core.model import Model, device_of
from ..core.rng import make_generator
from ..core.space import Space
from ..nn.inputs.features import Conditions, Features
from .rejection import MAX_REPEATS, Obeys, draw_obeying

SAMPLES = 2000
"""Fewest samples of a distance."""
FIRST, PATIENCE = 64, 40.0
"""Samples that time the sampler, and most seconds of sampling in an evaluation."""


def energy(x: Tensor, y: Tensor) -> Metric:
    """The energy distance of two samples (n, F) and (m, F), with its standard error from the
    first-order terms of the statistic; not a number for single rows."""
    n, m = len(x), len(y)
    if min(n, m) < 2:
        return Metric(math.nan, "distance", math.nan, "energy")
    cross = torch.cdist(x, y)  # (n, m)
    within_x = torch.cdist(x, x).sum(1) / (n - 1)  # (n,) the diagonal is zero
    within_y = torch.cdist(y, y).sum(1) / (m - 1)
    value = 2 * cross.mean() - within_x.mean() - within_y.mean()
    spread_x = (2 * (cross.mean(1) - within_x)).var() / n
    spread_y = (2 * (cross.mean(0) - within_y)).var() / m
    return Metric(value.item(), "distance", (spread_x + spread_y).sqrt().item(), "energy")


class FeatureMap:
    """Rows as points: the standardised features of an event and of its conditions."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.features, self.conditions = Features(space), Conditions(space)

    @classmethod
    def of(cls, model: object, space: Space) -> FeatureMap:
        """The feature map for a model's samples."""
        unpaired = isinstance(model, Model) and model.is_unpaired
        return cls(replace(space, given={}) if unpaired else space)

    def __call__(self, batch: Batch) -> Tensor:  # (B, F)
        points = [self.features(batch), self.conditions(batch.given, len(batch))]
        return torch.cat(points, 1).double()


def distance(model: CanSample, space: Space, rows: Batch, seed: int = 0) -> Metric:
    """Energy distance between held-out rows and samples given the same conditions."""
    feature_map, device, every = FeatureMap.of(model, space), device_of(model), repeated(rows)
    x = model.sample(
        len(every), every.to(device).given, generator=make_generator(seed, device)
    ).cpu()
    return energy(feature_map(Batch(x, given=every.given)), feature_map(rows))


def repeated(rows: Batch) -> Batch:
    """Rows whose conditions are sampled for; few rows are repeated, which lowers the variance."""
    return rows[torch.arange(len(rows)).repeat(-(-SAMPLES // len(rows)))]


def sample_timed(
    model: CanSample, rows: Batch, seed: int, obeys: Obeys | None = None
) -> tuple[Batch, Tensor, float]:
    """The rows that were sampled for, a sample for each, and samples per second; if all would take
    longer than `PATIENCE`, fewer are sampled, for rows spread over all. Samples that do not obey
    the constraints of the data are drawn again."""
    device = device_of(model)
    rows = rows[torch.randperm(len(rows), generator=make_generator(seed))]
    generator, started = make_generator(seed, device), time.perf_counter()

    def sample(asked: Batch) -> Tensor:
        def draw(index: Tensor) -> Tensor:
            given = asked[index].to(device).given
            return model.sample(len(index), given, generator=generator).cpu()

        x, wrong = draw_obeying(draw, len(asked), obeys)
        if len(wrong):
            raise DataError(
                f"none of {MAX_REPEATS} samples in place of row {int(wrong[0]) + 1} obeys the "
                "constraints of the data, so that samples cannot be compared with it; train "
                "longer, or remove a constraint"
            )
        return x

    first = sample(rows[:FIRST])
    speed = len(first) / (time.perf_counter() - started)
    n = min(len(rows), max(len(first), int(PATIENCE * speed)))
    pieces = [first]
    if n > len(first):
        started, rest = time.perf_counter(), rows[len(first) : n]
        pieces.append(sample(rest))
        speed = len(rest) / (time.perf_counter() - started)
    return rows[:n], torch.cat(pieces), speed
