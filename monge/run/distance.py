"""Distances between two data sets and a two-sample test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.config import Overrides, as_settings
from ..core.errors import DataError, UsageError
from ..core.metric import Metric, Metrics
from ..core.rng import make_generator
from ..core.space import Space
from ..data.dataset import Dataset
from ..data.loading import open as open_data
from ..evaluate.energy_distance import FeatureMap
from ..evaluate.two_sample import distances, frequencies

MAX_ROWS = 1000
"""Most rows of each data set: the cost is quadratic."""


@dataclass(frozen=True)
class TwoSamples:
    """Rows of two data sets in the space of the first."""

    space: Space
    names: tuple[str, str]
    rows: tuple[Batch, Batch]

    @property
    def features(self) -> tuple[Tensor, Tensor]:
        """Standardised rows of both, (n, F) and (m, F)."""
        read = FeatureMap(self.space)
        return read(self.rows[0]), read(self.rows[1])

    def distances(self, seed: int = 0) -> dict[str, Metric]:
        first, second = (rows.x for rows in self.rows)
        return distances(*self.features, seed) | frequencies(first, second, self.space)


def two_samples(a: Any, b: Any, *settings: str, rows: int = MAX_ROWS, seed: int = 0) -> TwoSamples:
    """At most `rows` rows of two data sets, the second read with the schema of the first."""
    overrides = Overrides.parse(settings)
    if overrides.model:
        raise UsageError(
            f"expected data options (data.KEY=VALUE), found {overrides.model[0]}; remove it"
        )
    first = open_data(a, *overrides.data)
    shared = [each for each in overrides.data if each.partition("=")[0] not in ("seed", "rows")]
    second = open_data(b, *shared, fields=first.fields_dict())
    chosen = choose_rows(first, rows, seed), choose_rows(second, rows, seed)
    return TwoSamples(first.view().space, (first.name, second.name), chosen)


def choose_rows(source: Dataset, rows: int, seed: int) -> Batch:
    """At most `rows` rows of all splits together, chosen by the seed."""
    every = source.view().split("all")
    few = every.batch(
        torch.randperm(len(every), generator=make_generator(seed))[:rows].sort().values
    )
    if not bool(few.observed_mask.all()):
        raise DataError(
            f"expected complete rows, found missing values in {source.name}; leave such rows out "
            "with data.missing=drop"
        )
    return few


def distance(
    a: Any, b: Any, *settings: str, rows: int = MAX_ROWS, seed: int = 0, **fields: Any
) -> Metrics:
    """Distances between two data sets and a two-sample test, as `monge distance` computes them.

    Parameters
    ----------
    a, b : str, Path, frame, array or rows
        The data sets; b is read with the schema of a.
    *settings : str
        Data options such as "data.missing=drop"; also as data={"missing": "drop"}.
    rows : int
        Most rows of each, chosen at random; the cost is quadratic.
    seed : int
        Same seed, same rows and same metrics.

    Returns
    -------
    Metrics
        A dict shown as a table: transport, energy and kernel distances on standardised rows, and
        a p-value.

    Examples
    --------
    >>> import monge
    >>> run = monge.fit("gaussian", "iris", budget="1epochs")
    >>> monge.distance("iris", run.sample(100, seed=0))["energy"].value < 1
    True
    """
    found = two_samples(a, b, *settings, *as_settings(fields), rows=rows, seed=seed)
    return Metrics(found.distances(seed))
