r"""What samples of a table reveal about the training rows, with held-out rows as the reference.

Rows are points in standardised features. Held-out rows come from the same distribution and were
not trained on, so a model that generalises puts its samples as far from the training rows:

distance to closest record   of samples, and of held-out rows, to the training rows
nearest-neighbour ratio      of the distances to the nearest and to the second nearest training row
exact copies                 rows that equal a training row in every cell
membership inference         an attacker who sees the samples takes the rows near a sample for
                             training rows (Chen et al. 2020)
attribute disclosure         an attacker who knows all cells of a row but one takes it from the
                             closest sample

The figures describe these attacks only; they do not show that samples are safe to publish.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..core.metric import Metric
from ..core.rng import make_generator
from ..core.space import Space
from ..nn.inputs.features import Features
from .coverage import ROWS, share
from .samples import spread, with_references
from .tabular import NAMES, roc_area

TRAIN_ROWS = 20_000
"""Most training rows that are searched."""
ATTACKED = 1000
"""Most rows of each side of an attack."""
MAX_ATTRIBUTES = 20
"""Most columns that an attacker predicts."""
CLOSE = 0.05
"""Share of held-out rows that count as close to a training row."""
SAME = 1e-6
"""Distances up to this are rounding of equal points."""
RESAMPLED = 200
"""Bootstrap samples of the error of a median."""


def privacy_metrics(
    fake: Tensor, held: Tensor, train: Tensor, space: Space, seed: int = 0
) -> dict[str, Metric]:
    """Metrics of samples, held-out and training rows, tables (n, D) with columns of `space`."""
    points = Points(space)
    x, y, others = (points(rows) for rows in (fake, held, train))
    a, b = (closest(side, others) for side in (x, y))  # (n, 2), (m, 2)
    limit = b[:, 0].quantile(CLOSE)
    found = with_references(
        *(
            {
                "closest_record_distance": median(near[:, 0], seed),
                "closer_than_held_out": share(near[:, 0] < limit),
                "nearest_neighbour_ratio": median(neighbour_ratio(near), seed, "ratio"),
                "exact_copies": share(copies(rows, train)),
            }
            for near, rows in ((a, fake), (b, held))
        )
    )
    if float(b[:, 0].median()):
        found["closest_record_ratio"] = median_ratio(a[:, 0], b[:, 0], seed)
    n = min(len(held), len(train), ATTACKED)
    sides = [spread(train, n), spread(held, n)]
    scores = [-closest(points(rows), x)[:, 0] for rows in sides]
    found["membership_auc"] = roc_area(*scores)
    disclosed = [attribute_disclosure(rows, spread(fake, 2 * n), points) for rows in sides]
    if all(disclosed):
        found |= with_references(*disclosed)
    return found | {"training_rows_searched": Metric(len(train), "exact", 0.0, "rows")}


class Points:
    """Rows of a table as points; an unknown cell is the mean, an empty one has an indicator."""

    def __init__(self, space: Space) -> None:
        self.space, self.features = space, Features(space).double()

    def __call__(self, rows: Tensor) -> Tensor:  # (n, F)
        unknown = rows.isnan() & ~self.space.empty(rows)
        points = self.features.read(rows[:, self.features.owner])
        return points.where(~unknown[:, self.features.owner], 0.0)


def closest(x: Tensor, others: Tensor) -> Tensor:
    """The distances of each x (n, F) from the two nearest of the others, (n, 2)."""
    k = min(2, len(others))
    found = torch.cat(
        [torch.cdist(part, others).topk(k, largest=False).values for part in x.split(ROWS)]
    )
    return found.where(found > SAME, 0.0)


def neighbour_ratio(near: Tensor) -> Tensor:
    """The nearest distance over the second nearest; 1 for two training rows at the same place."""
    return torch.where(near[:, -1] > 0, near[:, 0] / near[:, -1], 1.0)


def copies(rows: Tensor, train: Tensor) -> Tensor:
    """Which rows (n, D) equal a training row in every cell."""
    known = {row.tobytes() for row in comparable(train)}
    return torch.tensor([row.tobytes() in known for row in comparable(rows)])


def comparable(rows: Tensor) -> np.ndarray:
    """Rows whose bytes are equal if their cells are: one NaN, one zero."""
    return torch.where(rows.isnan(), torch.nan, rows.double() + 0.0).numpy()


def bootstrap(statistic: Callable[[list[Tensor]], Tensor], *sides: Tensor, seed: int) -> float:
    """The standard error of a statistic of samples (n,)."""
    generator, found = make_generator(seed), []
    for _ in range(RESAMPLED):
        again = [side[torch.randint(len(side), side.shape, generator=generator)] for side in sides]
        found.append(statistic(again))
    return float(torch.stack(found).std())


def median(values: Tensor, seed: int, unit: str = "standard deviations") -> Metric:
    error = bootstrap(lambda sides: sides[0].median(), values, seed=seed)
    return Metric(float(values.median()), "estimate", error, unit)


def median_ratio(x: Tensor, y: Tensor, seed: int) -> Metric:
    """The ratio of medians."""

    def ratio(sides: list[Tensor]) -> Tensor:
        return sides[0].median() / sides[1].median().clamp_min(1e-12)

    return Metric(float(ratio([x, y])), "estimate", bootstrap(ratio, x, y, seed=seed), "ratio")


def attribute_disclosure(rows: Tensor, fake: Tensor, points: Points) -> dict[str, Metric]:
    """How often the closest sample on the other columns has the name of a row, over the columns
    of names; none if there are no such columns, or no others to find the row by."""
    columns = points.space.columns
    names = torch.tensor([i for i, part in enumerate(columns) if part.kind in NAMES])
    if not len(names) or len(columns) < 2:
        return {}
    x, y, hits = points(rows), points(fake), []
    for column in spread(names, MAX_ATTRIBUTES).tolist():
        other = points.features.owner != column
        nearest = torch.cdist(x[:, other], y[:, other]).argmin(1)
        hit = (fake[nearest, column] == rows[:, column]).double()
        hits.append(torch.where(rows[:, column].isnan(), torch.nan, hit))
    each = torch.stack(hits, 1).nanmean(1)  # (n,): the share of the names of a row
    each = each[~each.isnan()]
    if len(each) < 2:
        return {}
    error = float(each.std()) / len(each) ** 0.5
    return {"attribute_disclosure": Metric(float(each.mean()), "estimate", error, "accuracy")}
